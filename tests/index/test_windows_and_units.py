"""Windows and units of the index functions against the reference and NumPy's own indexing.

Tests of: arrays.index_arguments, index.indices.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.reference import ReferenceShape

UNIT_BITS = {"byte": 8, "bit": 1}


def places_of(shape: ReferenceShape, unit: str) -> np.ndarray:
    """Where each element begins, in an array of the shape's dimensions."""
    bits = reference.element_bits(shape)
    found = np.zeros(shape.dimensions, np.int64)
    for at in itertools.product(*map(range, shape.dimensions)):
        slot = reference.linear_index(shape, at)
        found[at] = slot if unit == "slot" else slot * bits // UNIT_BITS[unit]
    return found


def picked(array: np.ndarray, window: Any) -> np.ndarray:
    """What NumPy picks: slices and integers by its own rules, ranges as separate axes."""
    lists = [np.arange(n)[list(e) if isinstance(e, range) else e] for e, n in zip(window, array.shape, strict=True)]
    whole = array[np.ix_(*(np.atleast_1d(one) for one in lists))]
    return whole.reshape([len(one) for one in lists if one.ndim])


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(1000)[::50])])
def test_random_windows(first: int) -> None:
    for seed in range(first, first + 50):
        shape = strategies.random_shape(seed, movable=False)
        source = strategies.RandomSource(seed)
        window = strategies.draw_window(source, shape.dimensions)
        unit = source.pick(("slot", "byte", "bit"))
        asked = window if any(isinstance(entry, slice) for entry in window) else (*window, ...)
        wanted = picked(places_of(shape, unit), window)
        found = fi.linear_index(str(shape), asked, unit=unit, threads=1 + seed % 2)
        assert np.shape(found) == wanted.shape, (seed, str(shape), window)
        assert np.array_equal(found, wanted), (seed, str(shape), window, unit)
        if shape.tiles:
            check_tiles(shape, asked, window, source.integer(0, len(shape.tiles) - 1))


def check_tiles(shape: ReferenceShape, asked: Any, window: Any, level: int) -> None:
    indices = list(itertools.product(*map(range, shape.dimensions)))
    for part, found in enumerate(fi.tile_index(str(shape), asked, level)):
        for axis, values in enumerate(found):
            whole = [reference.tile_index(shape, at, level)[part][axis] for at in indices]
            assert np.array_equal(values, picked(np.array(whole, np.int64).reshape(shape.dimensions), window))


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(1000)[::50])])
def test_random_units(first: int) -> None:
    """Addresses of all elements, and the element of every byte or bit, padding marked."""
    for seed in range(first, first + 50):
        shape = strategies.random_shape(seed, movable=False)
        if not shape.dimensions:
            continue
        unit = strategies.RandomSource(seed).pick(("byte", "bit"))
        bits, cells = reference.element_bits(shape), reference.slots(shape)
        elements = [(slot, cell) for slot, cell in enumerate(cells) if cell is not None]
        coordinates = np.array([cell for _, cell in elements], np.int64).reshape(len(elements), len(shape.dimensions)).T
        wanted = [slot * bits // UNIT_BITS[unit] for slot, _ in elements]
        assert fi.linear_index(str(shape), coordinates, unit=unit).tolist() == wanted
        if unit == "byte" and bits % 8:
            with pytest.raises(fi.UnsupportedError, match="several elements"):
                fi.multi_index(str(shape), [0], unit=unit)
            continue
        count = reference.nbytes(shape) * 8 // UNIT_BITS[unit]
        if count > 20000:
            continue
        found = fi.multi_index(str(shape), range(count), padding="mark", unit=unit)
        cells.append(None)  # bits to spare in the last byte
        owners = [cells[min(place * UNIT_BITS[unit] // bits, len(cells) - 1)] for place in range(count)]
        marked = np.array([owner or (-1,) * len(shape.dimensions) for owner in owners], np.int64)
        assert np.array_equal(found, marked.reshape(count, len(shape.dimensions)).T)
        other = str(
            strategies.draw_layout(strategies.RandomSource(seed + 1), shape.element_type, shape.dimensions, False)
        )
        destination = reference.parse(other)
        begins = [
            reference.linear_index(destination, owner) * reference.element_bits(destination) // UNIT_BITS[unit]
            for owner in owners
            if owner is not None
        ]
        valid = [place for place, owner in enumerate(owners) if owner is not None]
        assert fi.convert_index(str(shape), other, valid, unit=unit).tolist() == begins


def test_units_by_hand() -> None:
    assert fi.linear_index("f32[3,5]{1,0:T(2,2)}", (2, 3), unit="byte") == 17 * 4
    assert fi.linear_index("f32[3,5]{1,0:T(2,2)}", (2, 3), unit="bit") == 17 * 32
    # The first element of a byte is in its low bits: element 5 is the high half of byte 2.
    assert fi.linear_index("s4[8]{0:E(4)}", (5,), unit="byte") == 2
    assert fi.linear_index("s4[8]{0:E(4)}", (5,), unit="bit") == 20
    assert fi.multi_index("s4[8]{0:E(4)}", [20, 23, 24], unit="bit")[0].tolist() == [5, 5, 6]
    assert fi.multi_index("f32[8]", [19, 20], unit="byte")[0].tolist() == [4, 5]
    assert fi.linear_index("u8[4]{0:E(12)}", ([1, 2],), unit="byte").tolist() == [1, 3]


def test_window_forms() -> None:
    shape, whole = "f32[3,4,5]", np.arange(60).reshape(3, 4, 5)
    assert np.array_equal(fi.linear_index(shape, np.s_[...]), whole)
    assert np.array_equal(fi.linear_index(shape, np.s_[1, ...]), whole[1])
    assert np.array_equal(fi.linear_index(shape, np.s_[..., -1, ::-2]), whole[..., -1, ::-2])
    assert np.array_equal(fi.linear_index(shape, [slice(None), np.int8(2), slice(0, 2)]), whole[:, 2, :2])
    assert np.array_equal(fi.linear_index(shape, np.s_[5:, :, :]), whole[5:])
    scalar = fi.linear_index(shape, (2, 3, 4, ...))
    assert scalar == 59
    assert isinstance(scalar, np.int64)
    assert fi.linear_index("f32[]", ...) == 0
    assert fi.linear_index("f32[7]", slice(5, 2, -1)).tolist() == [5, 4, 3]
    assert fi.linear_index("f32[0,5]", np.s_[:, 1:]).shape == (0, 4)
    # Without a slice, ranges broadcast as before.
    assert fi.linear_index("f32[3,5]", (range(3), range(3))).tolist() == [0, 6, 12]


@pytest.mark.parametrize(
    ("text", "unit", "count"),
    [
        ("f32[3,5]{1,0:T(2,2)}", "slot", 24),
        ("f32[3,5]{1,0:T(2,2)}", "byte", 96),
        ("s4[5]{0:E(4)}", "slot", 5),
        ("s4[5]{0:E(4)}", "bit", 20),
        ("u8[4]{0:E(12)}", "bit", 48),
    ],
)
@pytest.mark.parametrize("entry", [np.s_[:], np.s_[2:5], np.s_[-3:], np.s_[::-4], np.s_[4:999], np.s_[7:2]])
def test_slices_of_the_buffer(text: str, unit: str, count: int, entry: slice) -> None:
    places = np.arange(count)[entry]
    found = fi.multi_index(text, entry, "mark", unit=unit)
    assert np.array_equal(found, fi.multi_index(text, places, "mark", unit=unit))
    plain = fi.Shape.parse(text.partition("{")[0])
    slots = np.arange(plain.slot_count)[entry]
    assert np.array_equal(fi.convert_index(plain, text, entry), fi.convert_index(plain, text, slots))


@pytest.mark.parametrize("function", [fi.multi_index, lambda text, entry: fi.convert_index(text, "f32[3,5]", entry)])
def test_bad_slices_of_the_buffer(function: Any) -> None:
    with pytest.raises(fi.FastIndexError, match=r"linear_index is slice\(0, 4, 0\): its step must not be 0"):
        function("f32[3,5]", np.s_[0:4:0])
    with pytest.raises(fi.ArgumentTypeError, match="linear_index must be a slice of integers"):
        function("f32[3,5]", np.s_[0:1.5])
    with pytest.raises(fi.OutOfBoundsError, match="is padding"):
        function("f32[3,5]{1,0:T(2,2)}", np.s_[8:12])


@pytest.mark.parametrize("threads", [1, 2])
def test_large_windows_with_output(threads: int) -> None:
    text = "bf16[512,700]{1,0:T(8,128)(2,1)}"
    rows, columns = np.ix_(np.arange(510, 0, -3), np.arange(5, 699))
    wanted = fi.linear_index(text, (rows, columns), unit="byte")
    out = np.full((170, 694), -7)
    assert fi.linear_index(text, np.s_[510:0:-3, 5:699], unit="byte", out=out, threads=threads) is out
    assert np.array_equal(out, wanted)
    spread = np.full((170, 2 * 694), -7)
    fi.linear_index(text, np.s_[510:0:-3, 5:699], unit="byte", out=spread[:, ::2], threads=threads)
    assert np.array_equal(spread[:, ::2], wanted)
    assert (spread[:, 1::2] == -7).all()


def test_bad_windows_and_units() -> None:
    with pytest.raises(fi.FastIndexError, match=r"window of .* needs 2 entries"):
        fi.linear_index("f32[3,5]", np.s_[1:])
    with pytest.raises(fi.FastIndexError, match="step must not be 0"):
        fi.linear_index("f32[3,5]", np.s_[::0, 1])
    with pytest.raises(fi.FastIndexError, match="mode is for arrays"):
        fi.linear_index("f32[3,5]", np.s_[:, 1], mode="clip")
    for mode in (None, 5, ["wrap"], "warp"):
        with pytest.raises(fi.FastIndexError, match=rf"mode must be .* got {re.escape(repr(mode))}"):
            fi.linear_index("f32[3,5]", (0, 1), mode=mode)  # type: ignore[arg-type]
    with pytest.raises(fi.ArgumentTypeError, match="do not mix"):
        fi.linear_index("f32[3,5]", ([1, 2], slice(None)))
    with pytest.raises(fi.FastIndexError, match="stream is for CUDA"):
        fi.linear_index("f32[3,5]", np.s_[:, 1], stream=object())
    with pytest.raises(fi.FastIndexError, match="must have the shape"):
        fi.linear_index("f32[3,5]", np.s_[:, 1], out=np.empty(5, np.int64))
    with pytest.raises(fi.FastIndexError, match="unit must be"):
        fi.linear_index("f32[3,5]", (1, 2), unit="nibble")
    with pytest.raises(fi.LayoutError, match=r"bits of .* do not fit int64"):
        fi.linear_index("f32[1152921504606846976]", (1,), unit="bit")
    # 2**63 bits, then the most that fit.
    with pytest.raises(fi.LayoutError, match=r"bits of .* do not fit int64"):
        fi.multi_index("u8[1152921504606846976]", (1,), unit="bit")
    assert fi.linear_index("u8[1152921504606846975]", (1152921504606846974,), unit="bit") == 2**63 - 16
    with pytest.raises(fi.OutOfBoundsError, match=r"window\[0\] holds 3"):
        fi.linear_index("f32[3,5]", (range(4), slice(None)))
    with pytest.raises(fi.OutOfBoundsError, match=r"window\[0\] holds 3"):
        fi.linear_index("f32[3,5]", np.s_[3, :])
    with pytest.raises(fi.OutOfBoundsError, match="byte 60 is out of bounds for the 60 bytes"):
        fi.multi_index("f32[3,5]", 60, unit="byte")
    with pytest.raises(fi.OutOfBoundsError, match=r"bit 96 at position 1 is padding"):
        fi.multi_index("f32[3]{0:T(2)}", [0, 96], unit="bit")
