"""Check the arguments of `repack`: sizes, widths, parameters, the dimensions of vendors' matrices of words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.arrays import check_no_overlap, check_target, described
from fastindex.arrays.engines import engine_of, on_gpu
from fastindex.core.foreign_arrays import host_array, host_target
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError, integer_of
from fastindex.patterns.format_table import PARAMETERS
from fastindex.patterns.known_names import PLAIN, widths_of
from fastindex.patterns.named_formats import Chosen, chosen
from fastindex.weights.repack_plans import Bytes, End, Format, repack_plan

#: Bits of a word, and rows of codes per row of words, for formats whose words hold codes along the last dimension.
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
    # A word is one element, of at least a byte.
    "marlin_scales": (0, 1),
    "trtllm_shuffle_matrix_a": (0, 1),
    "trtllm_gated_rows": (0, 1),
    "aiter_shuffle_weight": (0, 1),
}
#: Bits of a word that holds codes along the first dimension.
_COLUMN_WORDS = {"gptq": 32}


def has_words(name: Format) -> bool:
    """Whether the vendor of a format stores it as a matrix of words, whose dimensions determine those of the codes.

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
    word, rows, bits = word_bits(one), rows_of_words(one), one.bits
    spread = one.row.when.get("dense") is False

    def count(codes: int) -> int:
        return -(-codes // (word // bits)) if spread else -(-codes * bits // word)

    first, last = sizes
    return (-(-first // rows), count(last * rows)) if rows else (count(first), last)


def sizes_of_words(one: Chosen, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the codes in a matrix of words, or a batch of them; padding within words counts as codes.

    Examples
    --------
    >>> from fastindex.patterns.named_formats import chosen
    >>> sizes_of_words(chosen("awq", 4, {}), (4096, 1376)), sizes_of_words(chosen("gptq", 4, {}), (2, 512, 7))
    ((4096, 11008), (2, 4096, 7))
    """
    word, rows, bits = word_bits(one), rows_of_words(one), one.bits
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


def rows_of_words(one: Chosen) -> int:
    """Return how many rows of codes a row of words holds; 0 where a word holds codes along the first dimension."""
    if one.row.name in _COLUMN_WORDS or one.row.when.get("packed_dim") == 0:
        return 0
    return _WORDS[one.row.name][1]


Parameters = tuple[tuple[str, Any], ...]

# Bits of elements that are stored one per byte, by the names of their dtypes: the codes themselves.
_UNSIGNED_CODES = {"uint1": 1, "uint2": 2, "uint4": 4, "bool": 8}
_SIGNED_CODES = {"int1": 1, "int2": 2, "int4": 4}


def checked_sizes(shape: Any) -> tuple[int, ...]:
    """Return the sizes of a shape as integers.

    Raises
    ------
    ArgumentTypeError, FastIndexError

    Examples
    --------
    >>> checked_sizes([np.int32(3), 4])
    (3, 4)
    """
    try:
        sizes = tuple(int(size.__index__()) for size in shape)
        if any(isinstance(size, bool) for size in shape):
            raise TypeError
    except (TypeError, AttributeError):
        raise ArgumentTypeError(f"shape must be a sequence of sizes such as (4096, 11008), got {shape!r}") from None
    if not sizes or any(size < 0 for size in sizes):
        raise FastIndexError(f"a shape has one size or more, none below 0, got {sizes}")
    return sizes


def checked_bits(bits: Any) -> int | None:
    """Return the bits of a code as an integer.

    Raises
    ------
    ArgumentTypeError, FastIndexError
    """
    if bits is None:
        return None
    number = integer_of(bits)
    if number is None:
        raise ArgumentTypeError(f"bits must be an integer such as 4, got {bits!r:.80}")
    if not 1 <= number <= 64:
        raise FastIndexError(f"bits must be from 1 to 64, got {number}")
    return number


def checked_parameters(given: Mapping[str, Any]) -> Parameters:
    """Return parameters sorted by name, with hashable values.

    Raises
    ------
    ArgumentTypeError

    Examples
    --------
    >>> checked_parameters({"face": [16, np.int64(16)], "capability": "avx2"})
    (('capability', 'avx2'), ('face', (16, 16)))
    """
    return tuple(sorted((name, _plain_value(name, value)) for name, value in given.items()))


def _plain_value(name: str, value: Any) -> Any:
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bool | np.bool):
        return bool(value)
    if isinstance(value, list | tuple | np.ndarray) and np.ndim(value):
        return tuple(_plain_value(name, one) for one in value)
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise ArgumentTypeError(f"{name} must be a number, text or a pair of numbers, got {value!r}") from None


def given_array(buffer: Any) -> NDArray[Any]:
    """Return the buffer to move as a NumPy array, with codes of less than a byte as one-byte integers.

    Raises
    ------
    UnsupportedError
        An array on a device, or a lazy one.
    ArgumentTypeError
        Objects or text.
    """
    if isinstance(buffer, memoryview) and not buffer.c_contiguous:
        return np.frombuffer(buffer.tobytes(), np.uint8)
    if isinstance(buffer, bytes | bytearray | memoryview):
        return np.frombuffer(buffer, np.uint8)
    if on_gpu(buffer):
        raise UnsupportedError(
            "repack moves arrays in host memory, and this one is on a GPU; copy it to the host first"
        )
    if engine_of(buffer) is not None:
        raise UnsupportedError("repack moves arrays in memory, and this one is computed later; compute it first")
    array = host_array(buffer)
    kind = array.dtype
    if kind.hasobject or kind.kind in "SUMm" or kind.names is not None:
        raise ArgumentTypeError(f"repack moves numbers, the buffer has dtype {kind}")
    if kind.name in _UNSIGNED_CODES or kind.name in _SIGNED_CODES:
        return array.astype(np.uint8 if kind.name in _UNSIGNED_CODES else np.int8)
    return array if kind.isnative else array.astype(kind.newbyteorder("="))


def element_bits(given: Any, kind: np.dtype[Any]) -> int:
    """Return the bits of an element of a caller's array; `kind` is the dtype of the NumPy array that holds it.

    Examples
    --------
    >>> element_bits(np.zeros(1, np.int8), np.dtype("i1"))
    8
    """
    name = str(getattr(given, "dtype", ""))
    return (_UNSIGNED_CODES | _SIGNED_CODES).get(name, 8 * kind.itemsize)


def signed_bits(given: Any, kind: np.dtype[Any]) -> int:
    """Return the bits of an element of a caller's array if it holds signed integers; else 0.

    Parameters
    ----------
    given : object
    kind : dtype
        Of the NumPy array that holds it.

    Examples
    --------
    >>> signed_bits(np.zeros(1, np.int8), np.dtype("i1")), signed_bits(b"1", np.dtype("u1"))
    (8, 0)
    """
    return element_bits(given, kind) if kind.kind == "i" else 0


def sizes_of(array: NDArray[Any], name: Format, bits: int | None, parameters: Parameters) -> tuple[int, ...]:
    """Return the sizes of the codes in an array, as its dimensions determine them.

    Raises
    ------
    FastIndexError
        They do not determine them.

    Examples
    --------
    >>> sizes_of(np.zeros((4096, 1376), np.int32), "awq", None, ())
    (4096, 11008)
    """
    if name == PLAIN and array.ndim:
        return array.shape
    if not isinstance(name, str) or not has_words(name) or array.ndim < 2:
        raise FastIndexError(f"{name} does not tell its sizes by the dimensions {array.shape}; give shape=")
    one = chosen(name, bits, {k: v for k, v in parameters if k in PARAMETERS.get(name, {})})
    words = _in_words(one, array.shape, 8 * array.dtype.itemsize)
    if words is None:
        raise FastIndexError(
            f"rows of the buffer are not whole words of {word_bits(one)} bits, as {name} has; give shape="
        )
    return sizes_of_words(one, words)


def _in_words(one: Chosen, dimensions: Sequence[int], bits: int) -> tuple[int, ...] | None:
    """Return the dimensions in words of an array whose elements have `bits`; None if rows are not whole words."""
    words, remainder = divmod(dimensions[-1] * bits, word_bits(one))
    return None if remainder else (*dimensions[:-1], words)


def check_words(end: End, dimensions: Sequence[int], bits: int, what: str) -> None:
    """Require a matrix of words to have the dimensions that follow from the sizes of the codes.

    Other formats, and flat buffers, are accepted with any dimensions.

    Parameters
    ----------
    end : End
    dimensions : sequence of int
        Of the array that holds the format.
    bits : int
        Of an element of that array.
    what : str

    Raises
    ------
    FastIndexError
    """
    size = math.prod(dimensions)
    if end.one is None or not has_words(end.name) or size in (0, *dimensions) or not dimensions:
        return
    found, expected = _in_words(end.one, dimensions, bits), words_of(end.one, end.sizes)
    # A batch of matrices may be stored one after the other.
    if found is not None and found[-1] == expected[1] and math.prod(found[:-1]) % max(expected[0], 1) == 0:
        return
    own = "" if found is None else f": its shape is {sizes_of_words(end.one, found)}"
    raise FastIndexError(
        f"{end.name} of {end.sizes} is a matrix of {expected} words of {word_bits(end.one)} bits, {what} has the "
        f"dimensions {tuple(dimensions)}{own}{other_version(end, size * bits // 8)}"
    )


def other_version(end: End, nbytes: int) -> str:
    """Return a hint for an error: the width, or the version of the format, that takes `nbytes`, if there is one."""
    if end.one is None or end.row is None or end.name == PLAIN:
        return ""
    own = {name: end.one.values[name] for name in PARAMETERS.get(end.name, {}) if name in end.one.values}
    tries: list[tuple[str, int, dict[str, Any]]] = [
        (f"bits={bits}", bits, own) for bits in widths_of(end.name) if bits != end.bits
    ]
    if "dense" in end.row.when:
        dense = not end.row.when["dense"]
        tries.insert(0, (f"dense={dense}", end.bits, {**own, "dense": dense}))
    for what, bits, parameters in tries:
        try:
            other = repack_plan(end.name, PLAIN, end.sizes, bits, checked_parameters(parameters)).ends[0]
        except FastIndexError:
            continue
        if other.row is not None and other.side.nbytes == nbytes != end.side.nbytes:
            return f" ({nbytes} bytes with {what}: {other.row.source})"
    return ""


def checked_bytes(array: NDArray[Any], end: End, what: str) -> Bytes:
    """Return the bytes of an array that holds a format.

    Raises
    ------
    FastIndexError
        Another size, or other dimensions.
    ArgumentTypeError
        Plain elements of another width.
    """
    if end.row is None:
        width = -(-end.bits // 8)
        if array.dtype.itemsize != width or (end.bits % 8 and array.dtype.kind not in "iu"):
            kinds = "uint8 or int8" if width == 1 else f"a dtype of {width} bytes"
            raise ArgumentTypeError(
                f"plain codes of {end.bits} bits take {width} byte{'s' * (width > 1)} each, as {kinds}; "
                f"{what} has dtype {array.dtype}"
            )
        flat = array.ndim <= 1 or len(end.sizes) == 1
        if (flat and array.size != math.prod(end.sizes)) or (not flat and array.shape != end.sizes):
            raise FastIndexError(f"{what} must have the dimensions {end.sizes}, got {array.shape}")
    if array.nbytes != end.side.nbytes:
        raise FastIndexError(
            f"{end.name} of {end.sizes} takes {end.side.nbytes} bytes{other_version(end, array.nbytes)}, "
            f"{what} has {array.nbytes}"
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def checked_out(out: Any, end: End, data: Bytes) -> tuple[Bytes, np.dtype[Any]]:
    """Return the bytes of `out` to write to, and its dtype.

    Raises
    ------
    FastIndexError, ArgumentTypeError
        As `checked_bytes`; or `out` cannot be written in place, or overlaps the input.
    """
    if engine_of(out) is not None or on_gpu(out):
        raise UnsupportedError(f"out must be an array in host memory, got {type(out).__name__}")
    target = host_target(out)
    if not target.flags.c_contiguous:
        raise FastIndexError("out must be contiguous")
    if not target.dtype.isnative or target.dtype.hasobject:
        raise ArgumentTypeError(f"out must hold numbers in the byte order of this machine, it has dtype {target.dtype}")
    check_target(described(target))
    check_no_overlap(described(target), (described(data),))
    return checked_bytes(target, end, "out"), target.dtype
