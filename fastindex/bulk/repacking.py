"""Named formats of quantised weights and blocked tensors: from one to another in one move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.advice.format_names import named_layout
from fastindex.arguments.arrays import check_apart, check_target, described
from fastindex.arguments.buffers import aligned_bytes
from fastindex.bulk.rearrangements import RearrangePlan
from fastindex.bulk.relayouts import plan_relayout, relayout
from fastindex.cpu.threads import check_threads
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.interop.host_arrays import host_array
from fastindex.lazy import lazy_property
from fastindex.lowering.index.regrouped import RegroupedShape
from fastindex.patterns.format_table import ORDERED, PARAMETERS, REFUSED, ROWS, Row
from fastindex.patterns.named_formats import (
    PLAIN,
    Chosen,
    check_name,
    chosen,
    format_side,
    in_bits,
    names,
    of_bits,
    plain_side,
    row_letters,
)
from fastindex.shapes.shape import Shape
from fastindex.tiling.digits import Digit, Digits, Variable, digit

Bytes = NDArray[np.uint8]

# Units that are ordered at a time: what that takes stays in the cache.
_UNITS_AT_ONCE = 1 << 16
# Bytes of a slab of codes, one in a byte: it and what it becomes stay in the cache.
_SLAB_BYTES = 1 << 20


def repack(
    buffer: Any,
    source: str,
    destination: str,
    *,
    shape: Sequence[int],
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
        Of format `source`. ``"plain"`` is the array itself: codes one in a byte, or elements of their own width, in the
        order of their dimensions. Any other format is its bytes, in an array of any dtype.
    source, destination : str
        Names that `formats` lists, or ``"plain"``.
    shape : sequence of int
        The dimensions that `formats` names, as they are without padding: in the order of `source`, or of `destination`
        where `source` is ``"plain"``.
    bits : int, optional
        Of a code or an element; where a format has several widths, 4, or what `formats` says.
    out : array, optional
        Where to write; it may not overlap `buffer`.
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
        No such format, parameter or width; sizes that the format does not take; a buffer of another size.
    UnsupportedError
        What is no permutation of bits; the message names the step that is none.

    Notes
    -----
    Codes are unsigned. Where a format stores them with a bit flipped, so does this: ``"pack_quantized"`` and
    ``"cutlass_mixed_gemm"`` take plain int8 as two's complement and add ``2**(bits-1)``, as their packers do, and plain
    uint8 as it is; ``"ggml_q4_0_repacked_body"`` stores two's complement.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    >>> fi.repack(codes, "plain", "awq", shape=(2, 8)).view(np.uint32).tolist()
    [1966171168, 4256820392]
    >>> bytes(fi.repack(fi.repack(codes, "plain", "awq", shape=(2, 8)), "awq", "gptq", shape=(2, 8))[:4]).hex()
    '80000000'
    """
    check_threads(threads)
    for name in (source, destination):
        check_name(name)
    array = _as_array(buffer)
    if bits is None and source == PLAIN and array.dtype.itemsize > 1:
        bits = 8 * array.dtype.itemsize
    plan = repack_plan(source, destination, _sizes(shape), bits, tuple(sorted(parameters.items())))
    data = _checked_bytes(array, plan.ends[0], "the buffer")
    if order is not None:
        data = plan.ordered(data, order)
    target = plan.new_target() if out is None else out
    written = _checked_out(target, plan.ends[1], data)
    signed = array.dtype == np.int8, target.dtype == np.int8
    plan.run(data, written, signed, threads)
    return target


def formats() -> list[dict[str, Any]]:
    """List the named formats.

    Returns
    -------
    list of dict
        For each `name`: its `dimensions` in order, the `bits` of a code that it knows (None: any whole bytes), its
        `parameters` with their defaults, `multiples` that sizes must be of, its `layouts` as XLA's text of the split
        array, and the `source` of the definition. What is `refused` says why.

    Examples
    --------
    >>> import fastindex as fi
    >>> [one["parameters"] for one in fi.formats() if one["name"] == "marlin"]
    [{'activation_bits': 16}]
    >>> print(fi.formats()[0]["layouts"][0])
    u4[K,N/8,4,2]{2,3,1,0:E(4)}
    """
    found: list[dict[str, Any]] = []
    for name in names():
        rows = [row for row in ROWS if row.name == name]
        letters = row_letters(rows[0].text) if rows else ""
        multiples: dict[str, Any] = {}
        for row in rows:
            multiples |= row.divides
        found.append(
            {
                "name": name,
                "dimensions": tuple(letters),
                "bits": tuple(dict.fromkeys(row.bits for row in rows)),
                "parameters": dict(PARAMETERS.get(name, {})),
                "multiples": multiples,
                "layouts": tuple(dict.fromkeys(row.text for row in rows)),
                "source": rows[0].source if rows else "oneDNN dnnl_format_tag_t",
                "refused": None,
            }
        )
    for name, why in REFUSED.items():
        found.append({"name": name, "refused": why})
    return found


# Plans


@dataclass(frozen=True)
class End:
    """A format at one end of a move.

    Attributes
    ----------
    name : str
    sizes : tuple of int
        Of the array, in the order of this format.
    bits : int
        Of a code.
    side : RegroupedShape
    row : Row or None
        None for the plain array.
    """

    name: str
    sizes: tuple[int, ...]
    bits: int
    side: RegroupedShape
    row: Row | None

    @property
    def stored(self) -> str:
        return "codes" if self.row is None else self.row.stored


@dataclass(frozen=True)
class RepackPlan:
    """How one format becomes another: a rearrangement of codes or bits, and the order within units at either end."""

    ends: tuple[End, End]
    plan: RearrangePlan

    def new_target(self) -> NDArray[Any]:
        """Return a new array for the result."""
        end = self.ends[1]
        made = aligned_bytes(end.side.nbytes)
        if end.row is not None:
            return made
        return made.view(f"u{max(end.bits // 8, 1)}").reshape(end.sizes)

    def run(self, data: Bytes, target: Bytes, signed: tuple[bool, bool], threads: int | None) -> None:
        """Move the bytes of the source to those of the destination; plain ends may hold two's complement."""
        source, destination = self.ends
        flipped = _is_twos_complement(source, destination, signed[0])
        flipped ^= _is_twos_complement(destination, source, signed[1])
        mask = 1 << source.bits - 1
        if flipped and source.row is None:
            data = data ^ np.uint8(mask)
        if source.row is not None and source.row.order:
            data = _in_units(data, source.row, back=True)
        row = destination.row
        pattern = None if row is None or not row.fill else bytes([row.fill])
        if pattern is None and self.slabs:
            _run_in_slabs(self, data, target, threads)
        else:
            self.plan.apply(data, pattern, target, threads)
        if row is not None and row.order:
            _in_units(target, row, back=False)
        if flipped and source.row is not None:
            target ^= np.uint8(mask if destination.row is None else mask * (0x11 if source.bits == 4 else 1))
        if signed[1] and destination.row is None and destination.bits < 8 and "codes" not in (source.stored, ""):
            # Two's complement fills the byte.
            target[...] = ((target ^ np.uint8(mask)) - np.uint8(mask)).astype(np.uint8)

    @property
    def step(self) -> int | None:
        """Of how many values of the first dimension parts are multiples; None where it is not outermost in both."""
        found = [_outermost(end) for end in self.ends]
        if found[0] is None or found[1] is None or found[0][0] != found[1][0]:
            return None
        return None if self.ends[0].sizes[0] != found[0][0].extent else math.lcm(found[0][1], found[1][1])

    @lazy_property
    def slabs(self) -> list[tuple[RearrangePlan, int]]:
        """Moves of codes, one in a byte, that the cache holds, and how often each; none where all moves at once.

        Codes of four bits that lie next to others on the two sides move several times as fast one in a byte.
        """
        source, destination = (end.side for end in self.ends)
        bits, first, step = {source.element_bits, destination.element_bits}, _first(self.ends[0]), self.step
        if not {4} <= bits <= {4, 8} or self.plan.is_bitcast or step is None or first is None:
            return []
        sizes, codes = self.ends[0].sizes, source.element_count
        if codes < 2 * _SLAB_BYTES:
            return []
        count = max(_SLAB_BYTES * sizes[0] // (codes * step), 1) * step
        parts = (sizes[0] // count, count), (1, sizes[0] % count)
        return [
            (RearrangePlan(_slab(source, first, rows), _slab(destination, first, rows)), number)
            for number, rows in parts
            if number and rows
        ]

    def ordered(self, data: Bytes, order: Any) -> Bytes:
        """Return the source with its rows of K in another order.

        Raises
        ------
        FastIndexError
            The formats have no such order, or it is no permutation of K.
        """
        source, destination = self.ends
        if source.row is not None or destination.name not in ORDERED:
            raise FastIndexError(f"order= is for plain codes that become one of {', '.join(ORDERED)}")
        places, count = np.asarray(order), source.sizes[-2]
        if places.shape != (count,) or not np.array_equal(np.sort(places), np.arange(count)):
            raise FastIndexError(f"order= is a permutation of the {count} rows of K")
        return np.ascontiguousarray(np.take(data.reshape(source.sizes), places, axis=-2)).reshape(-1)


def _first(end: End) -> Variable | None:
    found = _outermost(end)
    return None if found is None else found[0]


def _outermost(end: End) -> tuple[Variable, int] | None:
    """Return the variable of what is outermost in memory, and how many of its values one step of it has."""
    side = end.side
    d = side.layout.minor_to_major[-1]
    tiled = bool(side.layout.tiles) and len(side.layout.tiles[0]) >= side.rank
    digits = side.coordinates[d]
    if tiled or len(digits) != 1 or digits[0].high is not None or digits[0].weight != 1:
        return None
    return digits[0].variable, digits[0].low


def _slab(side: RegroupedShape, first: Variable, rows: int) -> RegroupedShape:
    """Return a side of some rows of what is outermost, its codes one in a byte."""
    shorter = Variable(first.key, rows, True)

    def cut(one: Digit) -> Digits:
        return (one,) if one.variable != first else digit(one.weight, shorter, one.low, one.high)

    coordinates = tuple(tuple(d for one in digits for d in cut(one)) for digits in side.coordinates)
    sizes = list(side.dimensions)
    outer = side.layout.minor_to_major[-1]
    sizes[outer] = -(-rows // side.coordinates[outer][0].low)
    shape = Shape("u8", sizes, replace(side.layout, element_size_in_bits=0))
    return RegroupedShape(shape, coordinates, tuple(shorter if v == first else v for v in side.variables))


def _run_in_slabs(whole: RepackPlan, data: Bytes, target: Bytes, threads: int | None) -> None:
    per_byte = [8 // end.side.element_bits for end in whole.ends]
    at = [0, 0]
    for plan, number in whole.slabs:
        counts = plan.source.slot_count, plan.destination.slot_count
        scratch = [aligned_bytes(count) for count in counts]
        packed, plain = [f"u4[{count}]{{0:E(4)}}" for count in counts], [f"u4[{count}]" for count in counts]
        expand, compress = plan_relayout(packed[0], plain[0]), plan_relayout(plain[1], packed[1])
        for _ in range(number):
            ends = [begin + count // per for begin, count, per in zip(at, counts, per_byte, strict=True)]
            given, made = data[at[0] : ends[0]], target[at[1] : ends[1]]
            codes = expand(given, scratch[0], threads) if per_byte[0] == 2 else given
            moved = plan(codes, scratch[1] if per_byte[1] == 2 else made, threads)
            if per_byte[1] == 2:
                compress(moved, made, threads)
            at = ends


def _is_twos_complement(end: End, other: End, is_signed: bool) -> bool:
    if end.row is not None:
        return end.stored == "signed"
    return is_signed and other.stored != "codes"


@lru_cache(maxsize=256)
def repack_plan(
    source: str, destination: str, shape: tuple[int, ...], bits: int | None, parameters: tuple[tuple[str, Any], ...]
) -> RepackPlan:
    """Plan a move between two formats; plans are kept.

    Raises
    ------
    FastIndexError
        As `repack`.

    Examples
    --------
    >>> str(repack_plan("plain", "awq", (2, 8), 4, ()).plan.destination)
    'u4[2,1,4,2]{2,3,1,0:E(4)}'
    """
    given = dict(parameters)
    rows: list[Chosen | None] = []
    for name in (source, destination):
        own = {k: v for k, v in given.items() if k in PARAMETERS.get(name, {})}
        rows.append(None if name == PLAIN else _row(name, len(shape), bits, own))
    unknown = sorted(k for k in given if not any(k in PARAMETERS.get(name, {}) for name in (source, destination)))
    if unknown:
        raise FastIndexError(f"neither {source} nor {destination} has a parameter {', '.join(unknown)}")
    known = [one for one in rows if one is not None]
    width = known[0].bits if known else (bits or 8)
    if any(one.bits != width for one in known):
        raise FastIndexError(f"{source} has {known[0].bits} bits, {destination} has {known[1].bits}; give bits=")
    letters = _letters(rows, len(shape))
    sizes, batch = _by_letter(letters[0] if rows[0] is not None else letters[1], shape)
    variables = {letter: Variable(letter, size, True) for letter, size in sizes.items()}
    by_bits = any(of_bits(one.row.text) for one in known) or (not known and width not in (1, 2, 4, 8, 16, 32, 64))
    bit = Variable("b", width, True)
    ends: list[End] = []
    for name, one, spelled in zip((source, destination), rows, letters, strict=True):
        ordered = [variables[letter] for letter in spelled]
        if one is None:
            everything = (*ordered, bit) if by_bits else tuple(ordered)
            side = plain_side(width, [v.extent for v in ordered], everything, by_bits)
        else:
            table = dict(zip(one.letters, ordered, strict=True)) | ({"b": bit} if of_bits(one.row.text) else {})
            side = format_side(one, {k: v.extent for k, v in table.items()}, table)
            if by_bits and "b" not in table:
                side = in_bits(side, width, bit)
        final = tuple(shape) if one is None and spelled == letters[1 - len(ends)] else tuple(v.extent for v in ordered)
        ends.append(End(name, final, width, _batched(side, batch), None if one is None else one.row))
    everything = tuple(dict.fromkeys(v for end in ends for v in end.side.variables))
    sides = [RegroupedShape(end.side.shape, end.side.coordinates, everything) for end in ends]
    finished = tuple(replace(end, side=side) for end, side in zip(ends, sides, strict=True))
    return RepackPlan((finished[0], finished[1]), RearrangePlan(sides[0], sides[1], f"{source} to {destination}"))


def _row(name: str, rank: int, bits: int | None, given: dict[str, Any]) -> Chosen:
    if name != "onednn":
        return chosen(name, bits, given)
    tag = given.get("tag")
    if not isinstance(tag, str):
        raise ArgumentTypeError("onednn takes the name of a layout, as in tag='nChw16c'")
    layout = named_layout(tag)
    letters = "ABCDEFGHIJKL"[: layout.rank]
    if layout.rank > rank:
        raise FastIndexError(f"{tag} has {layout.rank} dimensions, the shape {rank}")
    return Chosen(Row(name, f"e[{','.join(letters)}]{layout}"), bits or 32, {}, letters)


def _letters(rows: Sequence[Chosen | None], rank: int) -> tuple[str, str]:
    """Return the dimensions of both ends by the same letters."""
    first, last = rows
    if first is None and last is None:
        return ("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:rank],) * 2
    if first is None or last is None:
        known = first or last
        assert known is not None
        return known.letters, known.letters
    if len(first.letters) != len(last.letters):
        raise FastIndexError(f"{first.row.name} is of {first.letters}, {last.row.name} of {last.letters}")
    own = [letter for letter in first.letters if letter not in last.letters]
    theirs = [letter for letter in last.letters if letter not in first.letters]
    renamed = dict(zip(theirs, own, strict=True))
    return first.letters, "".join(renamed.get(letter, letter) for letter in last.letters)


def _by_letter(letters: str, shape: tuple[int, ...]) -> tuple[dict[str, int], int]:
    """Return the size of each dimension, and how many arrays of them there are."""
    if len(letters) == 1:
        return {letters: math.prod(shape)}, 1
    missing = len(letters) - len(shape)
    if missing > 1 or (missing == 1 and letters[-1] != "K"):
        raise FastIndexError(f"the shape has the dimensions {', '.join(letters)}, got {shape}")
    if missing == 1:
        return dict(zip(letters, (1, *shape), strict=True)), 1
    return dict(zip(letters, shape[-missing or len(shape) - len(letters) :], strict=True)), math.prod(
        shape[: len(shape) - len(letters)]
    )


def _batched(side: RegroupedShape, count: int) -> RegroupedShape:
    """Return a side of several arrays, one after the other."""
    if count == 1:
        return side
    variable = Variable("batch", count, True)
    layout = side.layout
    order = (*(d + 1 for d in layout.minor_to_major), 0)
    shape = Shape(side.element_type, (count, *side.dimensions), replace(layout, minor_to_major=order))
    coordinates = (digit(1, variable, 1, None), *side.coordinates)
    return RegroupedShape(shape, coordinates, (variable, *side.variables))


# Arguments


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size.__index__()) for size in shape)
    except (TypeError, AttributeError):
        raise ArgumentTypeError(f"shape is a sequence of sizes such as (4096, 11008), got {shape!r}") from None
    if not sizes or any(size < 0 for size in sizes):
        raise FastIndexError(f"a shape has one size or more, none below 0, got {sizes}")
    return sizes


def _as_array(buffer: Any) -> NDArray[Any]:
    if isinstance(buffer, bytes | bytearray | memoryview):
        return np.frombuffer(buffer, np.uint8)
    return host_array(buffer)


def _checked_bytes(array: NDArray[Any], end: End, what: str) -> Bytes:
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
        if array.dtype.itemsize != width:
            raise ArgumentTypeError(
                f"plain elements of {end.bits} bits take {width} bytes each; {what} has dtype {array.dtype}"
            )
        if array.ndim > 1 and math.prod(array.shape) != math.prod(end.sizes):
            raise FastIndexError(f"{what} has the dimensions {end.sizes}, got {array.shape}")
        if array.ndim == len(end.sizes) > 1 and array.shape != end.sizes:
            raise FastIndexError(f"{what} has the dimensions {end.sizes}, got {array.shape}")
    if array.nbytes != end.side.nbytes:
        raise FastIndexError(f"{end.name} of {end.sizes} takes {end.side.nbytes} bytes, {what} has {array.nbytes}")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _checked_out(out: Any, end: End, data: Bytes) -> Bytes:
    if not isinstance(out, np.ndarray):
        raise ArgumentTypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if not out.flags.c_contiguous:
        raise FastIndexError("out must be contiguous")
    check_target(described(out))
    check_apart(described(out), (described(data),))
    return _checked_bytes(out, end, "out")


def _in_units(data: Bytes, row: Row, back: bool) -> Bytes:
    """Order the bits or codes within each unit: a copy on the way back, in place on the way there."""
    count, kind = len(row.order), f"u{row.order_bits}"
    step = count * row.order_bits // 8 * _UNITS_AT_ONCE
    result = np.empty_like(data) if back else data
    for begin in range(0, len(data), step):
        part = data[begin : begin + step]
        number = 8 * len(part) // row.order_bits
        packed, plain = f"{kind}[{number}]{{0:E({row.order_bits})}}", f"{kind}[{number}]"
        codes = relayout(part, packed, plain).view(np.uint8).reshape(-1, count)
        places = list(row.order) if back else list(np.argsort(row.order))
        moved = np.ascontiguousarray(codes[:, places]).reshape(-1)
        result[begin : begin + step] = relayout(moved, plain, packed)
    return result
