"""The dimensions of vendors' matrices of packed words, from the sizes of the codes in them, and back."""

from __future__ import annotations

from collections.abc import Sequence

from fastindex.patterns.named_formats import Chosen

#: Bits of a word, and how many rows of codes one row of words holds, where a word holds codes along the last dimension.
_WORDS = {
    "awq": (32, 1),
    "awq_gemv_fast": (16, 4),
    "marlin": (32, 16),
    "marlin_24_values": (32, 16),
    "marlin_zero_points": (32, 1),
    "pack_quantized": (32, 1),
    "mlx": (32, 1),
    "nvfp4": (8, 1),
    "aten_int4pack_cpu": (8, 1),
    # A word is an element, and a byte at least.
    "marlin_scales": (0, 1),
    "trtllm_shuffle_matrix_a": (0, 1),
    "trtllm_gated_rows": (0, 1),
    "aiter_shuffle_weight": (0, 1),
}
#: Bits of a word that holds codes along the first dimension.
_COLUMN_WORDS = {"gptq": 32}


def has_words(name: str) -> bool:
    """Whether the vendor of a format stores it as a matrix of words, whose dimensions tell those of the codes.

    Examples
    --------
    >>> has_words("awq"), has_words("blocked_scales")
    (True, False)
    """
    return name in _WORDS or name in _COLUMN_WORDS


def words_of(one: Chosen, sizes: Sequence[int]) -> tuple[int, int]:
    """Return the dimensions of the matrix of words.

    Examples
    --------
    >>> from fastindex.patterns.named_formats import chosen
    >>> words_of(chosen("awq", 4, {}), (4096, 11008)), words_of(chosen("marlin", 4, {}), (4096, 11008))
    ((4096, 1376), (256, 22016))
    """
    word, rows, bits = word_bits(one), _rows_of_words(one), one.bits
    spread = one.row.when.get("dense") is False

    def count(codes: int) -> int:
        return -(-codes // (word // bits)) if spread else -(-codes * bits // word)

    first, last = sizes
    return (-(-first // rows), count(last * rows)) if rows else (count(first), last)


def sizes_of_words(one: Chosen, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the codes in matrices of words, one after the other; padding within words counts as codes.

    Examples
    --------
    >>> from fastindex.patterns.named_formats import chosen
    >>> sizes_of_words(chosen("awq", 4, {}), (4096, 1376)), sizes_of_words(chosen("gptq", 4, {}), (2, 512, 7))
    ((4096, 11008), (2, 4096, 7))
    """
    word, rows, bits = word_bits(one), _rows_of_words(one), one.bits
    spread = one.row.when.get("dense") is False

    def count(words: int) -> int:
        return words * (word // bits) if spread else words * word // bits

    *batch, first, last = dimensions
    return (*batch, first * rows, count(last) // rows) if rows else (*batch, count(first), last)


def word_bits(one: Chosen) -> int:
    """Return the bits of a word of a format that has them.

    Examples
    --------
    >>> from fastindex.patterns.named_formats import chosen
    >>> word_bits(chosen("nvfp4", 4, {})), word_bits(chosen("marlin_scales", 16, {}))
    (8, 16)
    """
    return _COLUMN_WORDS.get(one.row.name) or _WORDS[one.row.name][0] or max(one.bits, 8)


def _rows_of_words(one: Chosen) -> int:
    """Return how many rows of codes a row of words holds; 0 where a word holds codes along the first dimension."""
    if one.row.name in _COLUMN_WORDS or one.row.when.get("packed_dim") == 0:
        return 0
    return _WORDS[one.row.name][1]
