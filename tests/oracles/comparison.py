"""Compare the package with the slow reference on one shape or one pair, and say where they differ.

Each function gives a list of sentences, empty where everything agrees. The tests assert that it is empty; the
tests of the tests plant a bug and assert that it is not.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
from fastindex.xla import xla_array_size
from tests.oracles import reference
from tests.oracles.reference import STAR, MultiIndex, ReferenceShape

Compare = TypeVar("Compare", bound=Callable[..., list[str]])


def with_errors(compare: Compare) -> Compare:
    """Make an error of the package a difference like others."""

    @functools.wraps(compare)
    def comparison(*arguments: Any, **options: Any) -> list[str]:
        try:
            return compare(*arguments, **options)
        except fi.FastIndexError as error:
            return [f"{type(error).__name__}: {error}"]

    return cast(Compare, comparison)


def same(name: str, text: str, found: Any, expected: Any) -> list[str]:
    return [] if found == expected else [f"{name} of {text}: {found!r}, expected {expected!r}"]


def same_arrays(name: str, text: str, found: NDArray[Any], expected: NDArray[Any]) -> list[str]:
    """Compare two arrays and name the first place where they differ."""
    found = np.asarray(found)
    if found.shape != expected.shape:
        return [f"{name} of {text}: shape {found.shape}, expected {expected.shape}"]
    if found.dtype != np.int64:
        return [f"{name} of {text}: dtype {found.dtype}, expected int64"]
    wrong = np.argwhere(found != expected)
    if len(wrong) == 0:
        return []
    at = tuple(map(int, wrong[0]))
    return [f"{name} of {text} at {at}: {found[at]}, expected {expected[at]}; {len(wrong)} differ"]


def coordinate_arrays(cells: list[MultiIndex], rank: int) -> tuple[NDArray[np.int64], ...]:
    columns = np.array(cells, np.int64).reshape(len(cells), rank).T
    return tuple(np.ascontiguousarray(column) for column in columns)


@with_errors
def differences_in_sizes(expected: ReferenceShape, package: Any = fi) -> list[str]:
    text = str(expected)
    shape = package.Shape.parse(text)
    simple = expected.padded_dimensions is None and not (expected.tiles and STAR in expected.tiles[0])
    xla = same("xla_array_size", text, xla_array_size(shape), reference.xla_array_size(expected)) if simple else []
    return [
        *xla,
        *same("text", text, str(shape), text),
        *same("element_count", text, shape.element_count, reference.element_count(expected)),
        *same("slot_count", text, shape.slot_count, reference.slot_count(expected)),
        *same("nbytes", text, shape.nbytes, reference.nbytes(expected)),
        *same("logical_nbytes", text, shape.logical_nbytes, reference.logical_nbytes(expected)),
    ]


@with_errors
def differences_in_indices(expected: ReferenceShape, package: Any = fi, threads: int = 1) -> list[str]:
    """Every element to its slot, every slot to its element or to padding."""
    text = str(expected)
    cells = reference.slots(expected)
    rank = len(expected.dimensions)
    occupied = [slot for slot, cell in enumerate(cells) if cell is not None]
    indices = coordinate_arrays([cell for cell in cells if cell is not None], rank)
    marked = coordinate_arrays([(-1,) * rank if cell is None else cell for cell in cells], rank)

    found: list[str] = []
    if rank:
        slots = package.linear_index(text, indices, threads=threads)
        found += same_arrays("linear_index", text, slots, np.array(occupied, np.int64))
    else:
        found += same("linear_index", text, int(package.linear_index(text, ())), occupied[0])
    every_slot = np.arange(len(cells))
    back = package.multi_index(text, every_slot, padding="mark", threads=threads)
    found += same("len(multi_index)", text, len(back), rank)
    for dimension in range(rank):
        name = f"multi_index[{dimension}]"
        found += same_arrays(name, text, back[dimension], marked[dimension])
    back = package.multi_index(text, np.array(occupied, np.int64), threads=threads)
    for dimension in range(rank):
        name = f"multi_index[{dimension}] without padding"
        found += same_arrays(name, text, back[dimension], indices[dimension])
    return found


@with_errors
def differences_in_tiles(expected: ReferenceShape, package: Any = fi) -> list[str]:
    """Which tile and where in the tile, after each tile of the chain."""
    text = str(expected)
    rank = len(expected.dimensions)
    every = list(reference.every_index(expected.dimensions))
    if not every or rank == 0:
        return []
    indices = coordinate_arrays(every, rank)
    found: list[str] = []
    for level in range(len(expected.tiles)):
        answers = [reference.tile_index(expected, index, level) for index in every]
        parts = package.tile_index(text, indices, level=level)
        for part, name in enumerate(("tile", "within")):
            columns = list(zip(*(answer[part] for answer in answers), strict=True))
            found += same(f"rank of {name} at level {level}", text, len(parts[part]), len(columns))
            for axis, (got, column) in enumerate(zip(parts[part], columns, strict=False)):
                got = np.broadcast_to(got, len(every))
                found += same_arrays(f"{name}[{axis}] at level {level}", text, got, np.array(column, np.int64))
    return found


@with_errors
def differences_in_conversion(source: ReferenceShape, destination: ReferenceShape, package: Any = fi) -> list[str]:
    """The slot of every element in one layout to its slot in the other."""
    name = f"convert_index to {destination}"
    slot_of = reference.linear_indices(destination)
    pairs = [(slot, slot_of[cell]) for cell, slot in reference.linear_indices(source).items()]
    slots = np.array([slot for slot, _ in pairs], np.int64)
    answers = np.array([answer for _, answer in pairs], np.int64)
    return same_arrays(name, str(source), package.convert_index(str(source), str(destination), slots), answers)


# Whole arrays


def random_elements(expected: ReferenceShape, seed: int) -> dict[MultiIndex, int]:
    """Random bit patterns, one for each element."""
    source = random.Random(seed)
    bits = reference.VALUE_BITS[expected.element_type]
    return {index: source.getrandbits(bits) for index in reference.every_index(expected.dimensions)}


def array_of(element_type: str, dimensions: tuple[int, ...], patterns: list[int]) -> NDArray[Any]:
    """A NumPy array of the element type from bit patterns."""
    dtype = fi.Shape(element_type, ()).element_type.numpy_dtype
    data = reference.bytes_of(patterns, 8 * dtype.itemsize)
    return np.frombuffer(bytearray(data), dtype).reshape(dimensions)


def logical_array(expected: ReferenceShape, elements: dict[MultiIndex, int]) -> NDArray[Any]:
    return array_of(expected.element_type, expected.dimensions, list(elements.values()))


def raw(array: NDArray[Any]) -> bytes:
    """The bytes of an array, whatever its element type."""
    return np.ascontiguousarray(array).tobytes()


def same_bytes(name: str, text: str, found: bytes, expected: bytes) -> list[str]:
    if found == expected:
        return []
    if len(found) != len(expected):
        return [f"{name} of {text}: {len(found)} bytes, expected {len(expected)}"]
    at = next(k for k, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    return [f"{name} of {text} at byte {at}: {found[at]:#04x}, expected {expected[at]:#04x}"]


@with_errors
def differences_in_packing(expected: ReferenceShape, seed: int, package: Any = fi, threads: int = 1) -> list[str]:
    """Pack random elements and unpack random buffers, padding and unused bits included."""
    text = str(expected)
    elements = random_elements(expected, seed)
    array = logical_array(expected, elements)
    buffer = reference.pack(expected, elements)
    found = same_bytes("pack", text, raw(package.pack(array, text, threads=threads)), buffer)

    noise = random.Random(seed + 1).randbytes(len(buffer))
    noise = clear_unused_bits(expected, noise)
    answer = logical_array(expected, ordered(expected, reference.unpack(expected, noise)))
    unpacked = package.unpack(noise, text, threads=threads)
    found += same("shape of unpack", text, unpacked.shape, array.shape)
    found += same("dtype of unpack", text, unpacked.dtype, array.dtype)
    found += same_bytes("unpack", text, raw(unpacked), raw(answer))
    return found


def ordered(expected: ReferenceShape, elements: dict[MultiIndex, int]) -> dict[MultiIndex, int]:
    return {index: elements[index] for index in reference.every_index(expected.dimensions)}


def clear_unused_bits(expected: ReferenceShape, buffer: bytes) -> bytes:
    """Random values in every slot, padding too, and zero in the bits that no value uses."""
    bits = reference.element_bits(expected)
    mask = (1 << min(reference.VALUE_BITS[expected.element_type], bits)) - 1
    count = reference.slot_count(expected)
    return reference.bytes_of([p & mask for p in reference.patterns_of(buffer, bits, count)], bits)


@with_errors
def differences_in_relayout(
    source: ReferenceShape, destination: ReferenceShape, seed: int, package: Any = fi, threads: int = 1
) -> list[str]:
    """Move a random buffer from one layout to the other."""
    size = reference.nbytes(source)
    buffer = clear_unused_bits(source, random.Random(seed).randbytes(size))
    answer = reference.relayout(buffer, source, destination)
    moved = package.relayout(buffer, str(source), str(destination), threads=threads)
    return same_bytes(f"relayout from {source}", str(destination), raw(moved), answer)
