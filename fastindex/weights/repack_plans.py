"""Plans between two named formats: how codes move, which bits flip, and the reordering within units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.sides import RegroupedShape
from fastindex.arrays.buffers import aligned_bytes
from fastindex.core.digits import Variable
from fastindex.core.shape import Shape
from fastindex.core.tiles import COMBINE
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.moving.numbers import NIBBLE_BITS
from fastindex.moving.rearrange_plans import RearrangePlan
from fastindex.moving.relayout_calls import plan_relayout, relayout
from fastindex.patterns.format_rows import Row
from fastindex.patterns.format_table import BY_ROWS, ORDERED, PARAMETERS
from fastindex.patterns.known_names import PLAIN, widths_of
from fastindex.patterns.named_formats import Chosen, chosen, last_block, multiple_of
from fastindex.show.format_names import named_layout
from fastindex.weights.found_formats import FoundChosen, FoundFormat
from fastindex.weights.repack_sides import (
    BATCH,
    ONEDNN,
    as_stream,
    batched,
    in_parts,
    is_of_bits,
    letters_of,
    parts_backwards,
    side_of,
    sizes_by_letter,
    streams_of,
)

Bytes = NDArray[np.uint8]

#: The widths, in bits, of plain elements wider than a byte.
_WIDE_BITS = (16, 32, 64)
# Units reordered at a time: few enough that their temporaries stay in the cache.
_UNITS_AT_ONCE = 1 << 16
#: A name that `formats` lists, "plain", or a format that was discovered.
Format = str | FoundFormat


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
    one : Chosen or None
        The format with its parameters; None for the plain array.
    """

    name: str
    sizes: tuple[int, ...]
    bits: int
    side: RegroupedShape
    one: Chosen | None

    @property
    def row(self) -> Row | None:
        return None if self.one is None else self.one.row

    @property
    def stored(self) -> str:
        """The interpretation of codes, as in `Row`; "elements" for the plain array and formats of any width."""
        if self.row is None or self.row.bits is None:
            return "elements"
        return self.row.stored

    @property
    def inverted_bits(self) -> int:
        """The bits of a code that a discovered format stores inverted, besides the sign."""
        return self.one.found.inverted_bits if isinstance(self.one, FoundChosen) else 0


@dataclass(frozen=True)
class Cut:
    """A dimension that is outermost in both formats, so that its slices are contiguous on both sides.

    Attributes
    ----------
    shape : tuple of int
        Of the array; batch dimensions are merged into one where they are cut.
    dimension : int
        The number of the dimension in `shape`.
    step : int
        The extent of a slice is a multiple of this, except for the last one.
    """

    shape: tuple[int, ...]
    dimension: int
    step: int

    @property
    def size(self) -> int:
        return self.shape[self.dimension]

    def part(self, count: int) -> tuple[int, ...]:
        """Return the sizes of a slice with `count` indices of the dimension."""
        return (*self.shape[: self.dimension], count, *self.shape[self.dimension + 1 :])


@dataclass(frozen=True)
class RepackPlan:
    """A move between formats: a rearrangement of codes or bits, and the reordering within units at either end.

    Attributes
    ----------
    ends : (End, End)
    plan : RearrangePlan
    packs : bool
        Whether plain 4-bit codes are first packed two per byte, in order: moving packed codes is many times faster
        than scattering bytes to distant nibbles.
    cut : Cut or None
        How to move slice by slice; None if no dimension is outermost in both formats.
    parameters : tuple of (str, object)
        As given, with those derived from the shape of the whole array: its slices use the same.
    letters : (str, str)
        The dimensions of both ends in the letters of the source, batch dimensions left out.

    Examples
    --------
    >>> plan = repack_plan("plain", "awq", (2, 8), 4, ())
    >>> plan.plan.source.dimensions, plan.packs
    ((2, 8), True)
    """

    ends: tuple[End, End]
    plan: RearrangePlan
    packs: bool
    cut: Cut | None
    parameters: tuple[tuple[str, Any], ...]
    letters: tuple[str, str]

    def flips(self, signed: tuple[int, int]) -> bool:
        """Whether one end is two's complement and the other is not, so the sign bit flips; `signed` as for `run`."""
        source, destination = self.ends
        flipped = _is_twos_complement(source, destination, signed[0])
        return flipped ^ _is_twos_complement(destination, source, signed[1])

    def flipped_bits(self, signed: tuple[int, int]) -> int:
        """The mask of the bits of a code that flip; `signed` as for `run`."""
        source, destination = self.ends
        sign = 1 << source.bits - 1 if self.flips(signed) else 0
        return sign ^ source.inverted_bits ^ destination.inverted_bits

    def new_target(self) -> NDArray[Any]:
        """Return a new array for the result."""
        end = self.ends[1]
        made = aligned_bytes(end.side.nbytes)
        if end.row is not None:
            return made
        return made.view(f"u{max(end.bits // 8, 1)}").reshape(end.sizes)

    def run(self, data: Bytes, target: Bytes, signed: tuple[int, int], threads: int | None, first: int = 0) -> None:
        """Convert the bytes of the source to those of the destination; plain ends may hold two's complement.

        Parameters
        ----------
        data, target : uint8 array
        signed : (int, int)
            For source and destination: the bits of a plain array's dtype if it is signed; else 0.
        threads : int, optional
        first : int
            The first row of this slice in the whole array, for error messages.

        Raises
        ------
        FastIndexError
            A plain code has more bits than the format stores.
        """
        source, destination = self.ends
        offset = 1 << source.bits - 1
        flipped = self.flipped_bits(signed)
        if source.row is None and source.bits % 8:
            is_negative = _may_be_negative(destination, signed[0])
            _check_codes(data, source, destination.name, signed[0] > 0, is_negative, first)
            if is_negative:
                data = data & np.uint8((1 << source.bits) - 1)
        if flipped and source.row is None:
            data = _flipped(data, flipped, -(-source.bits // 8) * 8)
        if source.row is not None and source.row.order:
            data = _in_units(data, source.row, back=True)
        if flipped and None not in (source.row, destination.row):
            if self.plan.is_bitcast:
                _flipped(data, flipped, source.bits, target)
                return
            # Flip in the source: padding of the destination is never flipped.
            data = _flipped(data, flipped, source.bits)
        if self.packs:
            data = plan_relayout(f"u4[{len(data)}]", f"u4[{len(data)}]{{0:E(4)}}")(data, threads=threads)
        row = destination.row
        pattern = None if row is None or not row.fill else bytes([row.fill])
        self.plan.apply(data, pattern, target, threads)
        if row is not None and row.order:
            _in_units(target, row, back=False)
        if flipped and source.row is not None and destination.row is None:
            target[...] = _flipped(target, flipped, -(-destination.bits // 8) * 8)
        if destination.row is None and destination.bits < 8 and _may_be_negative(source, signed[1]):
            # Sign-extend to the whole byte.
            target[...] = ((target ^ np.uint8(offset)) - np.uint8(offset)).astype(np.uint8)

    def ordered(self, data: Bytes, order: Any) -> Bytes:
        """Return the source with its rows along K permuted.

        Raises
        ------
        FastIndexError
            The formats have no such order, or it is no permutation of K.
        """
        source, destination = self.ends
        if source.row is not None or destination.name not in ORDERED:
            raise FastIndexError(f"order= is for plain codes that become one of {', '.join(ORDERED)}")
        places, count = np.asarray(order), source.sizes[-2]
        if (
            places.dtype.kind not in "iu"
            or places.shape != (count,)
            or not np.array_equal(np.sort(places), np.arange(count))
        ):
            raise FastIndexError(f"order= is a permutation of the {count} rows of K")
        return np.ascontiguousarray(np.take(data.reshape(source.sizes), places, axis=-2)).reshape(-1)


def _cut(
    ends: Sequence[End], rows: Sequence[Chosen | None], spelled: Sequence[str], shape: tuple[int, ...], batch: int
) -> Cut | None:
    """Return how to move slice by slice; `spelled` are the dimensions of both ends, in the same letters."""
    found = [outermost(end.side) for end in ends]
    if found[0] is None or found[1] is None or found[0][0] != found[1][0]:
        return None
    key, step = str(found[0][0].key), math.lcm(found[0][1], found[1][1])
    letters = spelled[0] if rows[0] is not None else spelled[1]
    if key == BATCH:
        return Cut((batch, *shape[len(shape) - len(letters) :]), 0, step)
    if key not in letters:
        # The bits of several codes, across words.
        return None
    for one, own in zip(rows, spelled, strict=True):
        step = math.lcm(step, 1 if one is None else multiple_of(one, one.letters[own.index(key)]))
    if len(letters) == 1:
        # The format merges all dimensions into one; slices are whole bytes.
        inner = math.prod(shape[1:])
        step = math.lcm(step, *(8 // math.gcd(8, end.bits) for end in ends if end.row is not None))
        return Cut(shape, 0, math.lcm(step, inner) // inner) if inner else None
    at = len(shape) - len(letters) + letters.index(key)
    return Cut(shape, at, step) if at >= 0 else None


def outermost(side: RegroupedShape) -> tuple[Variable, int] | None:
    """Return the variable of the outermost digit in memory, and how many of its values one step of the digit spans."""
    layout = side.layout
    if not side.rank:
        return None
    digits, step = side.coordinates[layout.minor_to_major[-1]], 1
    axes = side.rank
    for i, tile in enumerate(layout.tiles):
        if len(tile) > axes or (len(tile) == axes and (i or COMBINE in tile)):
            return None
        if len(tile) == axes:
            # The tile splits the outermost dimension too.
            step = tile[0]
        axes += len(tile) - 2 * tile.count(COMBINE)
    if len(digits) != 1 or digits[0].high is not None or digits[0].weight != 1:
        return None
    return digits[0].variable, digits[0].low * step


def _is_twos_complement(end: End, other: End, signed_bits: int) -> bool:
    """Whether an end holds two's complement, where the other end, if it is of integers, holds unsigned codes."""
    if end.row is not None:
        return end.stored == "signed"
    return other.stored != "elements" and _may_be_negative(other, signed_bits)


def _flipped(data: Bytes, mask: int, width: int, out: Bytes | None = None) -> Bytes:
    """Return packed codes of `width` bits, a divisor or a multiple of 8, with the bits of a mask flipped."""
    every = sum(mask << at for at in range(0, max(width, 8), width))
    kind = f"u{max(width, 8) // 8}"
    made: Bytes = np.bitwise_xor(data.view(kind), np.array(every, kind), out=None if out is None else out.view(kind))
    return made.view(np.uint8)


def _may_be_negative(end: End, signed_bits: int) -> bool:
    """Whether a plain array holds signed values, not codes, for a format; `signed_bits` is 0 for unsigned dtypes."""
    if end.stored == "integers":
        # int8 may contain 4-bit codes, but cannot hold 8-bit codes above 127.
        return signed_bits == end.bits
    return signed_bits > 0 and end.stored not in ("codes", "bits")


def _check_codes(data: Bytes, end: End, name: str, is_signed: bool, may_be_negative: bool, first: int) -> None:
    """Require plain codes, one per byte, to fit into the bits of a format.

    Raises
    ------
    FastIndexError
    """
    least = -(1 << end.bits - 1) if may_be_negative else 0
    # Once the least value is subtracted, smaller ones wrap around above all valid codes.
    above_least = data if not least else data + np.uint8(-least)
    if not above_least.size or above_least.max() < 1 << end.bits:
        return
    at = int(np.argmax(above_least >= 1 << end.bits))
    value = int(data[at : at + 1].view(np.int8 if is_signed else np.uint8)[0])
    index = np.unravel_index(at, end.sizes)
    place = ", ".join(str(int(i) + (first if d == 0 else 0)) for d, i in enumerate(index))
    most = least + (1 << end.bits) - 1
    wider = next((bits for bits in widths_of(name) if bits > end.bits and int(above_least[at]) >> bits == 0), None)
    raise FastIndexError(
        f"codes of {end.bits} bits are from {least} to {most} for {name}, the one at ({place}) is {value}; "
        f"clip it, shift all by an offset, or keep the low bits with codes & {(1 << end.bits) - 1}"
        + (f"; {name} has {wider} bits, too: bits={wider}" if wider else "")
    )


@lru_cache(maxsize=256)
def repack_plan(
    source: Format,
    destination: Format,
    shape: tuple[int, ...],
    bits: int | None,
    parameters: tuple[tuple[str, Any], ...],
) -> RepackPlan:
    """Plan a move between two formats; plans are cached.

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
    names = str(source), str(destination)
    if bits is None:
        bits = next((one.bits for one in (source, destination) if isinstance(one, FoundFormat)), None)
    for name in names:
        parameter = BY_ROWS.get(name)
        if parameter is not None and given.get(parameter) is None:
            given[parameter] = shape[-2:-1] != (1,)
    rows: list[Chosen | None] = []
    for one in (source, destination):
        own = {k: v for k, v in given.items() if k in PARAMETERS.get(str(one), {})}
        rows.append(None if one == PLAIN else _row(one, shape, bits, own))
    unknown = sorted(k for k in given if not any(k in PARAMETERS.get(name, {}) for name in names))
    if unknown:
        raise FastIndexError(f"neither {source} nor {destination} has a parameter {', '.join(unknown)}")
    known = [row for row in rows if row is not None]
    width = known[0].bits if known else (bits or 8)
    if any(row.bits != width for row in known):
        raise FastIndexError(f"{source} has {known[0].bits} bits, {destination} has {known[1].bits}; give bits=")
    letters = letters_of(rows, len(shape))
    sizes, batch = sizes_by_letter(letters[0] if rows[0] is not None else letters[1], shape)
    rows = [row and _of_whole_blocks(row, sizes[own[0]]) for row, own in zip(rows, letters, strict=True)]
    variables = {letter: Variable(letter, size, True) for letter, size in sizes.items()}
    if not known and width > 8 and width not in _WIDE_BITS:
        raise FastIndexError(f"plain elements of more than 8 bits have {', '.join(map(str, _WIDE_BITS))}, got {width}")
    by_bits = any(is_of_bits(row) for row in known) or (not known and width not in (1, 2, 4, 8, 16, 32, 64))
    ends: list[End] = []
    for name, row, spelled in zip(names, rows, letters, strict=True):
        ordered = [variables[letter] for letter in spelled]
        side = side_of(row, ordered, width, by_bits)
        for letter in streams_of(rows, letters):
            side = as_stream(side, variables[letter], width)
        for letter, parts in parts_backwards(rows, letters).items():
            side = in_parts(side, variables[letter], parts)
        final = tuple(shape) if row is None and spelled == letters[1 - len(ends)] else tuple(v.extent for v in ordered)
        ends.append(End(name, final, width, batched(side, batch), row))
    everything = tuple(dict.fromkeys(v for end in ends for v in end.side.variables))
    sides = [RegroupedShape(end.side.shape, end.side.coordinates, everything) for end in ends]
    finished = tuple(replace(end, side=side) for end, side in zip(ends, sides, strict=True))
    _check_meanings(finished)
    packs = source == PLAIN and width == NIBBLE_BITS and not by_bits and destination != PLAIN
    if packs:
        layout = replace(sides[0].layout, element_size_in_bits=NIBBLE_BITS)
        sides[0] = RegroupedShape(Shape("u4", sides[0].dimensions, layout), sides[0].coordinates, everything)
    plan = RearrangePlan(sides[0], sides[1], f"{source} to {destination}")
    cut = _cut(finished, rows, letters, tuple(shape), batch)
    made = RepackPlan((finished[0], finished[1]), plan, packs, cut, tuple(sorted(given.items())), letters)
    _check_found(made)
    return made


def _check_found(plan: RepackPlan) -> None:
    """Reject what a move to or from a discovered format would not write as its packer does.

    Raises
    ------
    UnsupportedError
    """
    source, destination = plan.ends
    if isinstance(destination.one, FoundChosen) and destination.one.found.has_ones:
        raise UnsupportedError(
            f"{destination.name} has ones in its padding, which repack does not write; it only unpacks it"
        )
    is_packed = None not in (source.row, destination.row)
    if is_packed and source.side.element_bits < source.bits and plan.flipped_bits((0, 0)):
        raise UnsupportedError(
            f"the bits of a code are not adjacent in {source.name}, and some of them flip in {destination.name}; move "
            "to 'plain', then from it"
        )


def _check_meanings(ends: Sequence[End]) -> None:
    """Reject a move between codes and elements whose signedness only the caller knows, not the format.

    Raises
    ------
    FastIndexError
    """
    if any(end.row is None for end in ends):
        return
    for end, other in zip(ends, reversed(ends), strict=True):
        # Integers below a byte are two's complement; bytes may be unsigned.
        unknown = ("signed", "integers", "offset") if end.bits < 8 or end.stored == "bits" else ("signed",)
        if end.stored in ("elements", "bits") and other.stored in unknown:
            raise FastIndexError(
                f"{end.name} keeps elements of either sign as they are, so codes of {other.name} have no one value "
                "there; move them to 'plain' first, with out= of int8 for values or of uint8 for codes"
            )


def _of_whole_blocks(one: Chosen, rows: int) -> Chosen:
    """Return the format of whole blocks, or of a last block only; an `UnsupportedError` if the array has both."""
    found, last = last_block(one, rows)
    if 0 < last < rows:
        raise UnsupportedError(
            f"{rows} rows of {one.row.name} are {rows - last} in whole blocks and {last} in a last one, stored "
            "in another way: fastindex.weights.repack moves them from and to 'plain' only"
        )
    return found


def _row(name: Format, shape: Sequence[int], bits: int | None, given: dict[str, Any]) -> Chosen:
    if isinstance(name, FoundFormat):
        return name.at(shape, bits)
    if name != ONEDNN:
        return chosen(name, bits, given)
    tag = given.get("tag")
    if not isinstance(tag, str):
        raise ArgumentTypeError("onednn takes the name of a layout, as in tag='nChw16c'")
    layout = named_layout(tag)
    letters = "ABCDEFGHIJKL"[: layout.rank]
    if layout.rank > len(shape):
        raise FastIndexError(f"{tag} has {layout.rank} dimensions, the shape {len(shape)}")
    return Chosen(Row(name, f"e[{','.join(letters)}]{layout}"), bits or 32, {}, letters)


def _in_units(data: Bytes, row: Row, back: bool) -> Bytes:
    """Reorder the bits or codes within each unit: in place, or with `back` the inverse, to a copy."""
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
