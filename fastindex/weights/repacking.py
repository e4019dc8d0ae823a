"""Named formats of quantised weights and blocked tensors: moves between them, and a list of their properties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.patterns.format_rows import Row
from fastindex.patterns.format_table import LAST_BLOCKS, PARAMETERS, REFUSED, ROWS
from fastindex.patterns.known_names import PLAIN, known_name, names, takes_any_width
from fastindex.patterns.named_formats import chosen, last_block, multiple_of, row_letters, text_of
from fastindex.runtime.threads import check_threads
from fastindex.weights.discovery import NAME, Discovery
from fastindex.weights.found_formats import FoundFormat
from fastindex.weights.repack_arguments import (
    Parameters,
    check_words,
    checked_bits,
    checked_bytes,
    checked_out,
    checked_parameters,
    checked_sizes,
    element_bits,
    given_array,
    signed_bits,
    sizes_of,
)
from fastindex.weights.repack_plans import Format, repack_plan

#: Widths, in bits, of elements of formats that take any width.
_WIDTHS = (8, 16, 32, 64)


def values_for(row: Row) -> dict[str, Any]:
    """Return parameters that select a row.

    Examples
    --------
    >>> [values_for(row) for row in ROWS if row.name == "trtllm_shuffle_matrix_a"]
    [{'epilogue_tile_m': 128}, {'epilogue_tile_m': 64}]
    """
    found = {}
    for key, value in row.when.items():
        name, _, modulus = key.rstrip("!").partition("%")
        if modulus:
            value = int(modulus) // 2 if key.endswith("!") else int(modulus)
        found[name] = value
    return found


def variants(name: str) -> list[dict[str, Any]]:
    """Return the variants of a format, the default first: each width, and each parameter value that selects a row.

    Keys are those that `fastindex.weights.formats` documents.

    Examples
    --------
    >>> one = variants("bnb_nf4")[0]
    >>> one["layout"], one["unit_order"], one["fill"]
    ('u4[L/2,2]{1,0:E(4)}', (4, 5, 6, 7, 0, 1, 2, 3), 7)
    """
    rows = [row for row in ROWS if row.name == name]
    found = [variant for row in rows for bits in _widths(row) if (variant := _variant(row, bits)) is not None]
    default = chosen(name, None, {}) if rows else None
    # The default has the key False, which sorts first.
    return sorted(
        found, key=lambda one: default is None or (one["layout"], one["bits"]) != (text_of(default), default.bits)
    )


def _widths(row: Row) -> tuple[int, ...]:
    return _WIDTHS if row.bits is None else (row.bits,)


def _variant(row: Row, bits: int) -> dict[str, Any] | None:
    """Return the variant of a row for a width; None if a parameter has no default for it."""
    given = values_for(row)
    try:
        one = chosen(row.name, bits, given)
    except FastIndexError:
        return None
    return {
        "bits": bits,
        "parameters": {k: one.values[k] for k in PARAMETERS.get(row.name, {})},
        "layout": text_of(one),
        "multiples": {letter: multiple_of(one, letter) for letter in row.divides},
        "padded": dict(row.pads),
        "unit_order": unit_order(row),
        "flipped_bits": 1 << bits - 1 if row.stored == "signed" else 0,
        "fill": row.fill,
        "source": row.source,
    }


def unit_order(row: Row) -> tuple[int, ...]:
    """Return the position of each bit of a unit, as `fastindex.weights.discover` does; empty if bits are in order.

    Examples
    --------
    >>> [unit_order(row) for row in ROWS if row.name == "bnb_nf4"]
    [(4, 5, 6, 7, 0, 1, 2, 3)]
    """
    width = row.order_bits
    return tuple(place * width + bit for place in row.order for bit in range(width))


def repack(
    buffer: Any,
    source: str | Discovery,
    destination: str | Discovery,
    *,
    shape: Sequence[int] | None = None,
    bits: int | None = None,
    out: Any = None,
    threads: int | None = None,
    order: Any = None,
    **parameters: Any,
) -> Any:
    """Move quantised weights, scales or a blocked tensor from one named format to another.

    Parameters
    ----------
    buffer : array, bytes, or anything with the buffer protocol
        In format `source`. ``"plain"`` is the array itself: codes one per byte, or elements of their own width, in the
        order of their dimensions. Any other format is its bytes, in an array of any dtype. Arrays of PyTorch and JAX
        in host memory are accepted, too; the result is a NumPy array, as for `relayout`.
    source, destination : str or Discovery
        Names that `formats` lists, in any case and with hyphens too, or ``"plain"``; or what `discover` found, at its
        sizes, and if it has `grows`, at all multiples of its blocks. One without a layout is moved by a table, at its
        own sizes.
    shape : sequence of int, optional
        The dimensions that `formats` names, without padding: in the order of `source`, or of `destination` if `source`
        is ``"plain"``. By default, derived from the dimensions of `buffer`, if they are those of the plain array or of
        the matrix of words that the vendor stores; padding within words then counts as codes. Dimensions that
        contradict `shape` are an error. A discovery has its own shape.
    bits : int, optional
        Of a code or an element; for a format of several widths, 4 by default, or the default that `formats` lists.
    out : array, optional
        Output array; it may not overlap `buffer`.
    threads : int, optional
        The most threads to use.
    order : sequence of int, optional
        A data-dependent order of K, such as ``argsort(g_idx)``: row i of `destination` is row ``order[i]`` of `source`.
    **parameters
        Of either format, with the names that `formats` lists.

    Returns
    -------
    array
        The bytes of `destination`, in one dimension; for ``"plain"``, an array of `shape`.

    Raises
    ------
    FastIndexError
        No such format, parameter or width; sizes that the format does not take; a buffer of another size; a plain code
        that is too large.
    ArgumentTypeError
        Plain elements of another dtype than the format's codes have.
    UnsupportedError
        A format that is no permutation of bits; the message says why. An array on a GPU, or of Dask.

    Notes
    -----
    Codes are unsigned: a plain uint8 array is the codes themselves, for every format, and a code is the value plus
    ``2**(bits-1)``. A plain array of a signed type as wide as a code, such as int8 with 8 bits, holds values; for
    ``"pack_quantized"`` and ``"cutlass_mixed_gemm"`` int8 does so with any width, as for their packers.
    ``"ggml_q4_0_repacked_body"`` and GGUF's Q8_0, ``"gguf_body"`` with ``type="q8_0"``, store two's complement: int8 as
    it is, and codes with the sign bit flipped. Formats of elements of any width keep them as they are. A code with more
    bits than the format stores is an error, never truncated.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    >>> words = fi.weights.repack(codes, "plain", "awq", shape=(2, 8))
    >>> words.view(np.uint32).tolist()
    [1966171168, 4256820392]
    >>> bytes(fi.weights.repack(words, "awq", "gptq", shape=(2, 8))[:4]).hex()
    '80000000'
    """
    check_threads(threads)
    sizes = None if shape is None else checked_sizes(shape)
    width, given = checked_bits(bits), checked_parameters(parameters)
    left, right = _format_of(source), _format_of(destination)
    if isinstance(left, Discovery) or isinstance(right, Discovery):
        if order is not None:
            raise UnsupportedError("order= is for plain codes that become a named format")
        return _by_table(buffer, left, right, sizes, width, given, out)
    array = given_array(buffer)
    if sizes is None:
        sizes = left.shape if isinstance(left, FoundFormat) else sizes_of(array, left, width, given)
    if PLAIN in (left, right) and order is None and (last := _last_rows(left, right, sizes, width, given)):
        return _by_blocks(
            buffer if array.ndim > 1 else array, str(left), str(right), sizes, last, out, bits=width, **parameters
        )
    if width is None:
        width = _width_of_plain(buffer, array, out, left, right, math.prod(sizes))
    plan = repack_plan(left, right, sizes, width, given)
    check_words(plan.ends[0], array.shape, 8 * array.dtype.itemsize, "the buffer")
    data = checked_bytes(array, plan.ends[0], "the buffer")
    if order is not None:
        data = plan.ordered(data, order)
    target = plan.new_target() if out is None else out
    written, kind = checked_out(target, plan.ends[1], data)
    plan.run(data, written, (signed_bits(buffer, array.dtype), signed_bits(out, kind)), threads)
    return target


def _format_of(given: str | Discovery) -> Format | Discovery:
    """Return a format by its name, or a discovered one; a discovery without a layout as it is.

    Raises
    ------
    FastIndexError, UnsupportedError
        No such format, or nothing that can be moved.
    """
    if not isinstance(given, Discovery):
        return known_name(given)
    given.check_permutation()
    return given if given.layout is None else given.as_format()


def _by_table(
    buffer: Any,
    source: Format | Discovery,
    destination: Format | Discovery,
    sizes: tuple[int, ...] | None,
    bits: int | None,
    parameters: Parameters,
    out: Any,
) -> Any:
    """Move plain codes to or from a discovery without a layout."""
    found = source if isinstance(source, Discovery) else destination
    assert isinstance(found, Discovery)
    if PLAIN not in (source, destination):
        raise UnsupportedError("a discovery without a layout moves from and to 'plain' only; convert to 'plain' first")
    if bits not in (None, found.bits) or parameters:
        raise FastIndexError(f"{NAME} has {found.bits} bits and no parameters, got bits={bits}, {parameters}")
    array = given_array(buffer)
    if sizes is None:
        sizes = array.shape if found is destination and array.ndim > 1 else found.shape
    if sizes[len(sizes) - len(found.shape) :] != found.shape:
        raise FastIndexError(
            f"{NAME} is not an order of digits, so it is for its own sizes only, {found.shape}, got {sizes}; "
            f"discover it at {sizes}"
        )
    if found is destination:
        if found.has_ones:
            raise UnsupportedError(f"{NAME} has ones in its padding, which repack does not write; it unpacks it")
        if array.size != math.prod(sizes):
            raise FastIndexError(f"the buffer must have the dimensions {sizes}, got {array.shape}")
        return found.plan()(array.reshape(sizes), out)
    count = math.prod(sizes[: len(sizes) - len(found.shape)])
    if array.nbytes != count * found.plan().nbytes:
        raise FastIndexError(
            f"{NAME} of {sizes} takes {count * found.plan().nbytes} bytes, the buffer has {array.nbytes}"
        )
    result = found.plan().inverse(array, out)
    return result if out is not None else result.reshape(sizes)


def _last_rows(
    source: Format, destination: Format, sizes: Sequence[int], bits: int | None, parameters: Parameters
) -> int:
    """Return the rows of a last block that is stored in another way than those before it; 0 if there is none."""
    name = next((str(one) for one in (source, destination) if one in LAST_BLOCKS), None)
    if name is None or len(sizes) < 2 or 0 in sizes:
        return 0
    own = {key: value for key, value in parameters if key in PARAMETERS[name]}
    rows = last_block(chosen(name, bits, own), sizes[-2])[1]
    return rows if rows < sizes[-2] else 0


def _by_blocks(
    buffer: Any, source: str, destination: str, sizes: tuple[int, ...], last: int, out: Any, **options: Any
) -> Any:
    """Move plain codes to or from a format whose last rows are stored in another way than those before them."""
    count, rows, inner = math.prod(sizes[:-2]), *sizes[-2:]
    given = buffer if isinstance(buffer, np.ndarray) else given_array(buffer)
    target = out
    if out is None:
        target = np.empty(sizes if destination == PLAIN else math.prod(sizes) // 2, np.uint8)
    elif not isinstance(out, np.ndarray) or not out.flags.c_contiguous or np.may_share_memory(out, given):
        raise FastIndexError("out must be a contiguous NumPy array that does not overlap the buffer")
    cuts = [(n * rows + a, n * rows + b) for n in range(count) for a, b in ((0, rows - last), (rows - last, rows))]

    def parts(array: NDArray[Any], name: str, what: str) -> list[NDArray[Any]]:
        flat, codes = (array.reshape(-1), 1) if name == PLAIN else (array.reshape(-1).view(np.uint8), 2)
        row = array.shape if name == PLAIN else (*sizes[:-1], array.shape[-1] * array.itemsize * codes)
        if array.ndim > 1 and row != sizes:
            raise FastIndexError(f"{name} of {sizes}: {what} has the dimensions {array.shape}; give its own shape=")
        if flat.size * codes != math.prod(sizes):
            raise FastIndexError(f"{name} of {sizes} has {math.prod(sizes) // codes} elements, {what} has {flat.size}")
        return [flat[a * inner // codes : b * inner // codes] for a, b in cuts]

    pairs = zip(
        parts(np.ascontiguousarray(given), source, "the buffer"), parts(target, destination, "out"), strict=True
    )
    for (a, b), (part, made) in zip(cuts, pairs, strict=True):
        repack(part, source, destination, shape=(b - a, inner), out=made, **options)
    return target


def _width_of_plain(buffer: Any, array: Any, out: Any, source: Format, destination: Format, count: int) -> int | None:
    """Return the bits of `count` plain elements by their dtype, if the format on the other side takes any width."""
    given = element_bits(buffer, array.dtype)
    if source == PLAIN and given < 8:
        return given
    for name, other, plain in ((source, destination, array), (destination, source, out)):
        kind = getattr(plain, "dtype", None)
        if name != PLAIN or not takes_any_width(other) or kind is None:
            continue
        # A flat array of bytes may hold wider elements: the number of elements decides.
        if plain.ndim > 1 or kind.itemsize > 1 or math.prod(plain.shape) == count:
            return int(8 * kind.itemsize)
    return None


def layout_of(name: str, shape: Sequence[int], bits: int | None = None, **parameters: Any) -> Shape:
    """Return the XLA shape of an array in a named format, for `pack`, `unpack`, `draw` and `explain`.

    Parameters
    ----------
    name : str
        A format that `formats` lists.
    shape : sequence of int
        The dimensions that `formats` names, in the order of the format.
    bits : int, optional
        Of a code; as for `repack`.
    **parameters
        Of the format, with the names that `formats` lists.

    Returns
    -------
    Shape
        Of the split array: ``pack(codes.reshape(result.dimensions), result)`` has the bytes of the format. Its sizes
        are those of the padded array where the format pads. Where the bits of a code are apart, the last dimension is
        the bit.

    Raises
    ------
    FastIndexError
        As `repack`.
    UnsupportedError
        The layout alone does not determine the bytes: bits within a unit have another order, or codes are signed.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> layout = fi.weights.layout_of("awq", (16, 64), bits=4)
    >>> print(layout)
    u4[16,8,4,2]{2,3,1,0:E(4)}
    >>> codes = np.arange(1024, dtype=np.uint8).reshape(16, 64) % 16
    >>> packed = fi.pack(codes.reshape(layout.dimensions), layout)
    >>> packed.tobytes() == fi.weights.repack(codes, "plain", "awq", shape=(16, 64)).tobytes()
    True
    """
    name = known_name(name)
    end = repack_plan(PLAIN, name, checked_sizes(shape), checked_bits(bits), checked_parameters(parameters)).ends[1]
    row = end.row
    if row is not None and (row.order or row.stored == "signed"):
        why = "orders the bits within a unit" if row.order else "stores two's complement"
        raise UnsupportedError(f"{name} {why}, which no layout expresses; repack writes its bytes")
    return end.side.shape


def formats() -> list[dict[str, Any]]:
    """List the named formats.

    Returns
    -------
    list of dict
        For each `name`: its `dimensions` in order, the `bits` of a code that it supports (None: any whole number of
        bytes), its `parameters` with their defaults (None: derived from the bits, or no default), its `layouts` as
        XLA's text of the split array, the `source` of the definition, and its `variants`, the default first. `refused`
        is the reason why a name is not supported, else None.

        A variant has its `bits` and `parameters`; its `layout`, with numbers in place of parameters; `multiples`, of
        which sizes must be multiples; `padded`, the multiple to which a dimension is padded beyond the split of the
        layout; `unit_order` and `flipped_bits`, as in `Discovery`, if the layout alone does not determine the place of
        bits; `fill`, the code in padding; and its `source`. `multiples`, `unit_order` and `flipped_bits` of the name
        are those of the default.

    Examples
    --------
    >>> import fastindex as fi
    >>> [one["parameters"] for one in fi.weights.formats() if one["name"] == "marlin"]
    [{'activation_bits': 16}]
    >>> awq = fi.weights.formats()[0]
    >>> awq["layouts"][0], awq["multiples"], [one["multiples"] for one in awq["variants"] if one["bits"] == 8]
    ('u4[K,N/8,4,2]{2,3,1,0:E(4)}', {'N': 8}, [{'N': 4}, {}, {'N': 32}])
    """
    found: list[dict[str, Any]] = []
    for name in names():
        rows = [row for row in ROWS if row.name == name]
        letters = row_letters(rows[0].text) if rows else ""
        known = variants(name)
        default: dict[str, Any] = known[0] if known else {"multiples": {}, "unit_order": (), "flipped_bits": 0}
        found.append(
            {
                "name": name,
                "dimensions": tuple(letters),
                "bits": tuple(dict.fromkeys(row.bits for row in rows)),
                "parameters": dict(PARAMETERS.get(name, {})),
                "multiples": default["multiples"],
                "unit_order": default["unit_order"],
                "flipped_bits": default["flipped_bits"],
                "variants": known,
                "layouts": tuple(dict.fromkeys(row.text for row in rows)),
                "source": rows[0].source if rows else "oneDNN dnnl_format_tag_t",
                "refused": None,
            }
        )
    nothing = {key: type(value)() for key, value in found[0].items()}
    return found + [{**nothing, "name": name, "refused": why} for name, why in REFUSED.items()]
