"""Where elements live under a tiled layout, by the definition, slowly and with the standard library only.

Nothing here is shared with the package: own parser, own arithmetic, own table of element types. There are two
ways to a slot, and `test_reference.py` compares them:

* `physical_array` builds the whole buffer as a list of cells by padding, merging, splitting and transposing,
  one cell at a time. A cell holds the multi-index of the element that lives there, or None for padding.
* `linear_index` follows one element through the same steps, with numbers of any size.

The definition: (1) list the dimensions from most major to most minor; (2) pad each to its padded dimension;
(3) for each tile, which speaks about the last ``len(tile)`` axes (missing leading axes have size 1): merge
each ``*`` axis with the next more minor one, pad each axis up to a multiple of its tile size, split it into
(count, tile size), move all tile-size axes, in order, to the end; (4) flatten, last axis most minor;
(5) round the slot count up to ``L``.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

MultiIndex = tuple[int, ...]
Cell = MultiIndex | None

#: A tile entry that merges its axis with the next more minor one.
STAR = "*"

#: Element type -> bits of its value.
VALUE_BITS = {
    "pred": 1,
    "s1": 1,
    "s2": 2,
    "s4": 4,
    "s8": 8,
    "s16": 16,
    "s32": 32,
    "s64": 64,
    "u1": 1,
    "u2": 2,
    "u4": 4,
    "u8": 8,
    "u16": 16,
    "u32": 32,
    "u64": 64,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "c128": 128,
    "f8e5m2": 8,
    "f8e4m3": 8,
    "f8e4m3fn": 8,
    "f8e4m3b11fnuz": 8,
    "f8e3m4": 8,
    "f8e5m2fnuz": 8,
    "f8e4m3fnuz": 8,
    "f8e8m0fnu": 8,
    "f4e2m1fn": 4,
}

#: Padding value -> element type -> bit pattern, for the types that are not integers. Zero is all bits zero.
#: "lowest" and "highest" are the infinities where the type has them, else the extreme finite values.
FLOAT_PATTERNS = {
    "one": {
        "pred": 0x1,
        "f16": 0x3C00,
        "bf16": 0x3F80,
        "f32": 0x3F800000,
        "f64": 0x3FF0000000000000,
        "c64": 0x3F800000,
        "c128": 0x3FF0000000000000,
        "f8e5m2": 0x3C,
        "f8e4m3": 0x38,
        "f8e4m3fn": 0x38,
        "f8e4m3b11fnuz": 0x58,
        "f8e3m4": 0x30,
        "f8e5m2fnuz": 0x40,
        "f8e4m3fnuz": 0x40,
        "f8e8m0fnu": 0x7F,
        "f4e2m1fn": 0x2,
    },
    "lowest": {
        "pred": 0x0,
        "f16": 0xFC00,
        "bf16": 0xFF80,
        "f32": 0xFF800000,
        "f64": 0xFFF0000000000000,
        "f8e5m2": 0xFC,
        "f8e4m3": 0xF8,
        "f8e4m3fn": 0xFE,
        "f8e4m3b11fnuz": 0xFF,
        "f8e3m4": 0xF0,
        "f8e5m2fnuz": 0xFF,
        "f8e4m3fnuz": 0xFF,
        "f8e8m0fnu": 0x00,
        "f4e2m1fn": 0xF,
    },
    "highest": {
        "pred": 0x1,
        "f16": 0x7C00,
        "bf16": 0x7F80,
        "f32": 0x7F800000,
        "f64": 0x7FF0000000000000,
        "f8e5m2": 0x7C,
        "f8e4m3": 0x78,
        "f8e4m3fn": 0x7E,
        "f8e4m3b11fnuz": 0x7F,
        "f8e3m4": 0x70,
        "f8e5m2fnuz": 0x7F,
        "f8e4m3fnuz": 0x7F,
        "f8e8m0fnu": 0xFE,
        "f4e2m1fn": 0x7,
    },
}


@dataclass(frozen=True)
class ReferenceShape:
    """What a shape text says, field by field."""

    element_type: str
    dimensions: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int | str, ...], ...] = ()
    padded_dimensions: tuple[int, ...] | None = None
    padding_value: str = "zero"
    element_size_in_bits: int = 0
    tail_alignment: int = 1
    #: physical dimension (0 = most major) -> where it is cut; changes `xla_array_size` only
    splits: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: which dimensions are written ``<=N``
    bounded: tuple[int, ...] = ()

    def __str__(self) -> str:
        attributes = ""
        if self.padded_dimensions is not None:
            attributes += f"PAD({_join(self.padded_dimensions)})"
        if self.padding_value != "zero":
            attributes += f"PV({self.padding_value})"
        if self.tiles:
            attributes += "T" + "".join(f"({_join(tile)})" for tile in self.tiles)
        if self.tail_alignment != 1:
            attributes += f"L({self.tail_alignment})"
        if self.element_size_in_bits:
            attributes += f"E({self.element_size_in_bits})"
        if self.splits:
            attributes += "SC" + "".join(f"({axis}:{_join(cuts)})" for axis, cuts in self.splits)
        layout = _join(self.minor_to_major) + (":" + attributes if attributes else "")
        sizes = [f"<={size}" if d in self.bounded else str(size) for d, size in enumerate(self.dimensions)]
        return f"{self.element_type}[{_join(sizes)}]" + (f"{{{layout}}}" if layout else "")


def _join(numbers: Iterable[int | str]) -> str:
    return ",".join(map(str, numbers))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


def parse(text: str) -> ReferenceShape:
    """Read an array shape in canonical text (bounds ``<=N`` count as N); knows nothing of errors."""
    match = re.fullmatch(r"([a-z0-9]+)\[([^\]]*)\](?:\{([^:}]*)(?::([^}]*))?\})?", text)
    if match is None:
        raise ValueError(f"not an array shape: {text!r}")
    element_type, dimensions_text, order, attributes = match.groups()
    dimensions = _numbers(dimensions_text.replace("<=", ""))
    minor_to_major = tuple(reversed(range(len(dimensions)))) if order is None else _numbers(order)
    found: dict[str, list[str]] = {}
    for name, groups in re.findall(r"([A-Z#*]+)((?:\([^()]*\))+)", attributes or ""):
        found[name] = re.findall(r"\(([^()]*)\)", groups)
    tiles = tuple(
        tuple(STAR if entry.strip() == STAR else int(entry) for entry in tile.split(",")) for tile in found.get("T", [])
    )
    splits = tuple((int(axis), _numbers(cuts)) for axis, cuts in (entry.split(":") for entry in found.get("SC", [])))
    return ReferenceShape(
        element_type=element_type,
        dimensions=dimensions,
        minor_to_major=minor_to_major,
        tiles=tiles,
        padded_dimensions=_numbers(found["PAD"][0]) if "PAD" in found else None,
        padding_value=found.get("PV", ["zero"])[0],
        element_size_in_bits=int(found.get("E", ["0"])[0]),
        tail_alignment=int(found.get("L", ["1"])[0]),
        splits=splits,
        bounded=tuple(d for d, size in enumerate(dimensions_text.split(",")) if "<=" in size),
    )


# The physical array, cell by cell


@dataclass(frozen=True)
class Cells:
    """An array of any rank as its sizes and a flat list, last axis most minor."""

    sizes: tuple[int, ...]
    cells: list[Cell]

    def __post_init__(self) -> None:
        assert len(self.cells) == math.prod(self.sizes)


def every_index(sizes: Sequence[int]) -> Iterator[MultiIndex]:
    """Every multi-index of an array of these sizes, the last coordinate fastest."""
    return itertools.product(*(range(size) for size in sizes))


def pad_axis(array: Cells, axis: int, size: int) -> Cells:
    """Make one axis longer at its high end; new cells are padding."""
    minor = math.prod(array.sizes[axis + 1 :])
    row = array.sizes[axis] * minor
    added: list[Cell] = [None] * (size * minor - row)
    count = math.prod(array.sizes[:axis])
    rows = [array.cells[k * row : (k + 1) * row] + added for k in range(count)]
    return Cells((*array.sizes[:axis], size, *array.sizes[axis + 1 :]), list(itertools.chain.from_iterable(rows)))


def merge_axis(array: Cells, axis: int) -> Cells:
    """Merge one axis with the next more minor one; the order of the cells does not change."""
    merged = array.sizes[axis] * array.sizes[axis + 1]
    return Cells((*array.sizes[:axis], merged, *array.sizes[axis + 2 :]), array.cells)


def split_axis(array: Cells, axis: int, tile_size: int) -> Cells:
    """Split one axis into (count, tile size); the order of the cells does not change."""
    count, rest = divmod(array.sizes[axis], tile_size)
    assert rest == 0
    return Cells((*array.sizes[:axis], count, tile_size, *array.sizes[axis + 1 :]), array.cells)


def transpose(array: Cells, order: Sequence[int]) -> Cells:
    """Axis i of the result is axis ``order[i]`` of `array`."""
    positions = [0]
    for axis in order:
        step = math.prod(array.sizes[axis + 1 :])
        positions = [begin + k * step for begin in positions for k in range(array.sizes[axis])]
    return Cells(tuple(array.sizes[axis] for axis in order), [array.cells[k] for k in positions])


def apply_tile(array: Cells, tile: Sequence[int | str]) -> Cells:
    """Merge, pad, split and move, for one tile."""
    while len(array.sizes) < len(tile):
        array = Cells((1, *array.sizes), array.cells)
    first = len(array.sizes) - len(tile)
    sizes_left = list(tile)
    while STAR in sizes_left:
        at = sizes_left.index(STAR)
        array = merge_axis(array, first + at)
        del sizes_left[at]
    for at, tile_size in enumerate(sizes_left):
        tiles = -(-array.sizes[first + at] // int(tile_size))
        array = pad_axis(array, first + at, tiles * int(tile_size))
    for at in reversed(range(len(sizes_left))):
        array = split_axis(array, first + at, int(sizes_left[at]))
    count_axes = [first + 2 * at for at in range(len(sizes_left))]
    offset_axes = [first + 2 * at + 1 for at in range(len(sizes_left))]
    return transpose(array, [*range(first), *count_axes, *offset_axes])


def physical_array(shape: ReferenceShape) -> Cells:
    """The buffer as an array of cells, after all tiles and before the tail is rounded up."""
    logical = Cells(shape.dimensions, list(every_index(shape.dimensions)))
    if shape.padded_dimensions is not None:
        for axis, size in enumerate(shape.padded_dimensions):
            logical = pad_axis(logical, axis, size)
    array = transpose(logical, tuple(reversed(shape.minor_to_major)))
    for tile in shape.tiles:
        array = apply_tile(array, tile)
    return array


def slots(shape: ReferenceShape) -> list[Cell]:
    """For every slot of the buffer, in order: the multi-index of its element, or None for padding."""
    cells = list(physical_array(shape).cells)
    while len(cells) % shape.tail_alignment:
        cells.append(None)
    return cells


def linear_indices(shape: ReferenceShape) -> dict[MultiIndex, int]:
    """The slot of every element."""
    return {cell: slot for slot, cell in enumerate(slots(shape)) if cell is not None}


# One element at a time, with numbers of any size


def axes_of(shape: ReferenceShape, multi_index: Sequence[int]) -> list[tuple[int, int]]:
    """(coordinate, size) of every axis before the first tile, most major first."""
    sizes = shape.dimensions if shape.padded_dimensions is None else shape.padded_dimensions
    return [(multi_index[d], sizes[d]) for d in reversed(shape.minor_to_major)]


def follow_tile(
    axes: list[tuple[int, int]], tile: Sequence[int | str]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The (coordinate, size) pairs after one tile: which tile, and where in the tile."""
    axes = [(0, 1)] * (len(tile) - len(axes)) + axes
    outside, reached = axes[: len(axes) - len(tile)], axes[len(axes) - len(tile) :]
    which, where = list(outside), []
    coordinate, size = 0, 1
    for (axis_coordinate, axis_size), tile_size in zip(reached, tile, strict=True):
        coordinate, size = coordinate * axis_size + axis_coordinate, size * axis_size
        if tile_size == STAR:
            continue
        assert isinstance(tile_size, int)
        which.append((coordinate // tile_size, (size + tile_size - 1) // tile_size))
        where.append((coordinate % tile_size, tile_size))
        coordinate, size = 0, 1
    return which, where


def linear_index(shape: ReferenceShape, multi_index: Sequence[int]) -> int:
    """The slot of one element."""
    axes = axes_of(shape, multi_index)
    for tile in shape.tiles:
        which, where = follow_tile(axes, tile)
        axes = which + where
    slot = 0
    for coordinate, size in axes:
        assert 0 <= coordinate < size
        slot = slot * size + coordinate
    return slot


def tile_index(
    shape: ReferenceShape, multi_index: Sequence[int], level: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which tile an element is in and where in that tile, after tile number `level` has been applied.

    The first part has one coordinate for every axis but the tile-size axes of that tile, the second for
    those.
    """
    axes = axes_of(shape, multi_index)
    for tile in shape.tiles[:level]:
        which, where = follow_tile(axes, tile)
        axes = which + where
    which, where = follow_tile(axes, shape.tiles[level])
    return tuple(c for c, _ in which), tuple(c for c, _ in where)


# Sizes


def element_count(shape: ReferenceShape) -> int:
    return math.prod(shape.dimensions)


def slot_count(shape: ReferenceShape) -> int:
    axes = axes_of(shape, [0] * len(shape.dimensions))
    for tile in shape.tiles:
        which, where = follow_tile(axes, tile)
        axes = which + where
    slot_total = math.prod(size for _, size in axes)
    return -(-slot_total // shape.tail_alignment) * shape.tail_alignment


def element_bits(shape: ReferenceShape) -> int:
    """Bits that one slot takes in the buffer: ``E`` where it is given, else whole bytes."""
    return shape.element_size_in_bits or 8 * (-(-VALUE_BITS[shape.element_type] // 8))


def nbytes(shape: ReferenceShape) -> int:
    return -(-slot_count(shape) * element_bits(shape) // 8)


def logical_nbytes(shape: ReferenceShape) -> int:
    return -(-element_count(shape) * element_bits(shape) // 8)


def xla_array_size(shape: ReferenceShape) -> int:
    """XLA's shortcut ``ShapeUtil::ArraySize``: one tile level, ``L`` and splits only with tiles, no ``*``."""
    if not shape.tiles:
        return logical_nbytes(shape)
    sizes = [shape.dimensions[d] for d in reversed(shape.minor_to_major)]
    for axis, cuts in shape.splits:
        edges = [0, *cuts, sizes[axis]]
        sizes[axis] = max(high - low for low, high in itertools.pairwise(edges))
    tile = shape.tiles[0]
    sizes = [1] * (len(tile) - len(sizes)) + sizes
    first = len(sizes) - len(tile)
    for at, tile_size in enumerate(tile):
        assert isinstance(tile_size, int)
        sizes[first + at] = -(-sizes[first + at] // tile_size) * tile_size
    total = math.prod(sizes)
    total = -(-total // shape.tail_alignment) * shape.tail_alignment
    return -(-total * element_bits(shape) // 8)


# Whole buffers. Elements are bit patterns: non-negative Python integers.


def padding_pattern(element_type: str, padding_value: str) -> int:
    """The bit pattern that a padding value stands for."""
    bits = VALUE_BITS[element_type]
    if padding_value == "zero":
        return 0
    if element_type in FLOAT_PATTERNS["one"]:
        return FLOAT_PATTERNS[padding_value][element_type]
    signed = element_type.startswith("s")
    return {
        "one": 1,
        "lowest": 1 << (bits - 1) if signed else 0,
        "highest": (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1,
    }[padding_value]


def bytes_of(patterns: Sequence[int], bits: int) -> bytes:
    """Lay elements of `bits` bits end to end, the first in the low bits of the first byte."""
    # Eight elements fill whole bytes; a number of all of them takes time squared.
    return b"".join(_bytes_of_number(patterns[k : k + 8], bits) for k in range(0, len(patterns), 8))


def _bytes_of_number(patterns: Sequence[int], bits: int) -> bytes:
    number = 0
    for k, pattern in enumerate(patterns):
        assert 0 <= pattern < 1 << bits
        number |= pattern << (k * bits)
    return number.to_bytes(-(-len(patterns) * bits // 8), "little")


def patterns_of(buffer: bytes, bits: int, count: int) -> list[int]:
    """The inverse of `bytes_of`."""
    mask = (1 << bits) - 1
    found: list[int] = []
    for first in range(0, count, 8):
        number = int.from_bytes(buffer[first // 8 * bits : (first // 8 + 1) * bits], "little")
        found += [number >> (k * bits) & mask for k in range(min(8, count - first))]
    return found


def pack(shape: ReferenceShape, elements: Mapping[MultiIndex, int], fill: int | None = None) -> bytes:
    """The bytes of the buffer that holds `elements`; padding holds `fill` or the shape's padding value."""
    padding = padding_pattern(shape.element_type, shape.padding_value) if fill is None else fill
    return bytes_of([padding if cell is None else elements[cell] for cell in slots(shape)], element_bits(shape))


def unpack(shape: ReferenceShape, buffer: bytes) -> dict[MultiIndex, int]:
    """The elements that a buffer holds; bits above the value are not looked at."""
    cells = slots(shape)
    mask = (1 << VALUE_BITS[shape.element_type]) - 1
    patterns = patterns_of(buffer, element_bits(shape), len(cells))
    return {cell: pattern & mask for cell, pattern in zip(cells, patterns, strict=True) if cell is not None}


def relayout(buffer: bytes, source: ReferenceShape, destination: ReferenceShape, fill: int | None = None) -> bytes:
    """Move the elements of one layout of an array into another layout of the same array."""
    assert source.dimensions == destination.dimensions
    assert source.element_type == destination.element_type
    return pack(destination, unpack(source, buffer), fill)


def convert_index(source: ReferenceShape, destination: ReferenceShape, slot: int) -> int | None:
    """The slot of the same element in another layout, or None where `slot` is padding."""
    cell = slots(source)[slot]
    return None if cell is None else linear_index(destination, cell)


def float32_pattern(value: float) -> int:
    """The bit pattern of a float32, for examples."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
