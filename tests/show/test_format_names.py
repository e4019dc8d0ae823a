"""Names of layouts against the offsets that the names define."""

from __future__ import annotations

import itertools
import math
import re

import pytest

import fastindex as fi
from tests.oracles import reference

ACTIVATIONS = {2: "nc", 3: "ncw", 4: "nchw", 5: "ncdhw"}
WEIGHTS = {2: "oi", 3: "oiw", 4: "oihw", 5: "oidhw"}


def offset_by_name(name: str, logical: str, sizes: tuple[int, ...], index: tuple[int, ...]) -> int:
    """What a blocked name means: the dimensions in its order, each counted in blocks; then the blocks as written.

    A dimension with several blocks is split by the first of them first.
    """
    outer = re.match("[A-Za-z]+", name)
    assert outer is not None
    blocks = [(int(size), letter) for size, letter in re.findall(r"(\d+)([a-z])", name)]
    rest = dict(zip(logical, index, strict=True))
    extents = dict(zip(logical, sizes, strict=True))
    digits = []
    for i, (size, letter) in enumerate(blocks):
        finer = math.prod(s for s, other in blocks[i + 1 :] if other == letter)
        digits.append((rest[letter] // finer % size, size))
    offset = 0
    for letter in outer.group().lower():
        whole = math.prod(size for size, other in blocks if other == letter)
        offset = offset * -(-extents[letter] // whole) + rest[letter] // whole
    for value, size in digits:
        offset = offset * size + value
    return offset


NAMES = [
    ("NCHW", "nchw"), ("NHWC", "nchw"), ("nhwc", "nchw"), ("CHWN", "nchw"), ("nchw", "nchw"),
    ("nChw16c", "nchw"), ("NCHW16c", "nchw"), ("nChw8c", "nchw"), ("NCHW4c", "nchw"), ("NChw2n4c", "nchw"),
    ("NCDHW", "ncdhw"), ("NDHWC", "ncdhw"), ("nCdhw16c", "ncdhw"), ("NCW", "ncw"), ("NWC", "ncw"), ("nCw16c", "ncw"),
    ("OIHW", "oihw"), ("HWIO", "oihw"), ("OHWI", "oihw"), ("OIhw16i16o", "oihw"), ("OIhw16o16i", "oihw"),
    ("OIhw4i16o4i", "oihw"), ("OIhw8i16o2i", "oihw"), ("Oihw16o", "oihw"), ("IOhw16o16i", "oihw"), ("OIHW4i4o", "oihw"),
    ("gOIhw4i4o", "goihw"), ("goihw", "goihw"), ("OIw4i4o2i", "oiw"), ("tnc", "tnc"), ("ntc", "tnc"),
    ("aBcd16b", "abcd"), ("ABcd4a8b8a2b", "abcd"), ("BA16a16b", "ab"), ("acdb", "abcd"), ("ba", "ab"), ("a", "a"),
    ("ABc2b2a2b3a", "abc"), ("BAc4b2a", "abc"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "logical"), NAMES)
def test_a_named_layout_has_the_offsets_of_its_name(name: str, logical: str) -> None:
    layout = fi.layouts.named_layout(name)
    for sizes in (tuple(3 + 2 * d for d in range(len(logical))), (2, 17, 3, 2, 1)[: len(logical)]):
        text = str(fi.Shape("f32", sizes, layout))
        slow = reference.parse(text)
        total = reference.slot_count(slow)
        for index in itertools.islice(itertools.product(*map(range, sizes)), 0, None, 7):
            found = reference.linear_index(slow, index)
            assert found == offset_by_name(name, logical, sizes, index), (text, index)
            assert found < total


@pytest.mark.parametrize(("name", "logical"), NAMES)
def test_names_are_printed_back(name: str, logical: str) -> None:
    layout = fi.layouts.named_layout(name)
    shape = fi.Shape("f32", (32,) * layout.rank, layout)
    printed = fi.layouts.layout_name(shape, logical=logical)
    assert printed is not None
    if re.search(r"\d", name):
        # TVM's spelling is read, oneDNN's is printed.
        assert printed.lower() == name.lower()
    else:
        assert printed == name.upper()
    assert fi.layouts.named_layout(printed) == layout


GUESSES = [
    ("NHWC", "NHWC"), ("nChw16c", "nChw16c"), ("NCHW16c", "nChw16c"), ("OIhw16i16o", "OIhw16i16o"), ("ab", None),
    ("Oihw16o", "Oihw16o"), ("gOIhw16i16o", "gOIhw16i16o"), ("NDHWC", "NDHWC"), ("nCdhw16c", "nCdhw16c"),
    ("aBcd16b", "nChw16c"), ("BA16a16b", "BA16a16b"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "guess"), GUESSES)
def test_names_without_letters_for_the_dimensions(name: str, guess: str | None) -> None:
    layout = fi.layouts.named_layout(name)
    assert fi.layouts.layout_name(fi.Shape("f32", (32,) * layout.rank, layout)) == guess


def test_the_order_of_the_dimensions_can_be_given() -> None:
    assert fi.layouts.named_layout("NHWC", logical="NHWC") == fi.Layout((3, 2, 1, 0))
    assert fi.layouts.named_layout("NHWC", logical="nhwc") == fi.Layout((3, 2, 1, 0))
    assert str(fi.layouts.named_layout("nChw16c", logical="nhwc")) == "{2,1,3,0:T(16,1,1)}"
    assert fi.layouts.layout_name(fi.Shape("f32", (2, 3, 4, 5)), logical="NHWC") == "NHWC"


NO_NAMES = [
    ("", "not a format name"), ("NCHW16", "not a format name"), ("16c", "not a format name"),
    ("N CHW", "not a format name"),
    ("NHXC", "letters"), ("nCow16c", "letters"), ("bcd", "letters"), ("NCHH", "twice"),
    ("nchw16c", "must be spelled 'nChw16c'"), ("nChW16c", "must be spelled 'nChw16c'"), ("nChw16x", "not among"),
    ("nChw1c", "at least 2"), ("nChw0c", "at least 2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message"), NO_NAMES)
def test_what_is_no_name(name: str, message: str) -> None:
    with pytest.raises(fi.FastIndexError, match=message):
        fi.layouts.named_layout(name)


def test_wrong_logical_orders() -> None:
    with pytest.raises(fi.FastIndexError, match="must have the letters"):
        fi.layouts.named_layout("NHWC", logical="NHW")
    with pytest.raises(fi.FastIndexError, match="one letter for each"):
        fi.layouts.layout_name(fi.Shape("f32", (2, 3)), logical="NHWC")
    with pytest.raises(fi.FastIndexError, match="depends on the array"):
        fi.layouts.named_layout("TPU")
    for call in (
        lambda: fi.layouts.named_layout(5),  # type: ignore[arg-type]
        lambda: fi.layouts.named_layout("NHWC", logical=5),  # type: ignore[arg-type]
        lambda: fi.layouts.layout_name("f32[2,3,4,5]", logical=5),  # type: ignore[arg-type]
    ):
        with pytest.raises(fi.ArgumentTypeError, match="must be text such as 'NHWC', got 5"):
            call()


@pytest.mark.parametrize(
    "text", ["u8[7,2,7,100,7]{2,1,3,4,0:T(1,128)(1)(8,1,16)}", "f32[1000,7]{0,1:T(2,8,16,3)(99991,2,1000)}"]
)
def test_tiles_that_pad_any_size_have_no_name(text: str) -> None:
    """Of the size that every tile divides, the slots do not fit int64."""
    assert fi.layouts.layout_name(text) is None
    assert fi.explain(text).startswith(text)


def test_a_name_for_another_array() -> None:
    assert fi.layouts.named_layout("NHWC", "f32[8,64,5,5]") == fi.layouts.named_layout("NHWC")
    with pytest.raises(fi.LayoutError, match=r"NHWC has 4 dimensions, f32\[8,64,5\]\{2,1,0\} has 3"):
        fi.layouts.named_layout("NHWC", "f32[8,64,5]")
    with pytest.raises(fi.ArgumentTypeError, match=r"a shape must be a Shape or its text, got \(8, 64, 5, 5\)"):
        fi.layouts.named_layout("NHWC", (8, 64, 5, 5))  # type: ignore[arg-type]


NAMELESS = [
    "f32[32,32,32,32]{3,2,1,0:T(3,2)(2,1)}", "f32[32,32]{1,0:T(*,8)}", "f32[32,32]{1,0:L(64)}", "f32[3,5]",
    "f32[32,32]{1,0:PAD(40,40)}", "f32[]", "f32[4]", "f32[8]{0:T(3)(2)}", "f32[32,32]{1,0:T(2,2)(2,1,1,1)(2)}",
]  # fmt: skip


@pytest.mark.parametrize("text", NAMELESS)
def test_layouts_without_a_name(text: str) -> None:
    assert fi.layouts.layout_name(fi.Shape.parse(text)) is None


# Matrices of other processors


def tenstorrent_offset(sizes: tuple[int, ...], index: tuple[int, ...]) -> int:
    """Tiles of 32 by 32, row by row; in each four faces of 16 by 16, row by row; in each the elements, row by row."""
    *batch, rows, columns = sizes
    *outer, y, x = index
    offset = 0
    for value, size in zip(outer, batch, strict=True):
        offset = offset * size + value
    offset = (offset * -(-rows // 32) + y // 32) * -(-columns // 32) + x // 32
    face = y % 32 // 16 * 2 + x % 32 // 16
    return offset * 1024 + face * 256 + y % 16 * 16 + x % 16


def ascend_offset(sizes: tuple[int, ...], index: tuple[int, ...], n0: int) -> int:
    """An array of the shape ``(batch, n1, m1 * m0, n0)`` with m0 = 16, as the source has it, in row order."""
    *batch, m, n = sizes
    *outer, y, x = index
    offset = 0
    for value, size in zip(outer, batch, strict=True):
        offset = offset * size + value
    offset = offset * -(-n // n0) + x // n0
    return (offset * (-(-m // 16) * 16) + y) * n0 + x % n0


@pytest.mark.parametrize("sizes", [(40, 70), (33, 31), (3, 16, 65), (2, 2, 17, 64), (1, 1)])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TILE", "bf16"),
        ("TILE", "f32"),
        ("NZ", "f16"),
        ("FRACTAL_NZ", "s8"),
        ("NZ", "f32"),
        ("NZ", "u4"),
        ("NZ", "f8e4m3fn"),
    ],
)
def test_matrices_have_the_offsets_of_their_processor(sizes: tuple[int, ...], name: str, kind: str) -> None:
    layout = fi.layouts.named_layout(name, fi.Shape(kind, sizes))
    shape = fi.Shape(kind, sizes, layout)
    found = reference.linear_indices(reference.parse(str(shape)))
    for index in itertools.product(*(range(0, size, 5) for size in sizes)):
        expected = (
            tenstorrent_offset(sizes, index)
            if name == "TILE"
            else ascend_offset(sizes, index, {"u4": 64, "f16": 16, "f32": 8}.get(kind, 32))
        )
        assert found[index] == expected
    assert fi.layouts.layout_name(shape) == {"FRACTAL_NZ": "NZ"}.get(name, name)


def test_the_sizes_that_ascend_documents() -> None:
    shape = fi.Shape("f16", (8, 100, 30), fi.layouts.named_layout("NZ", "f16[8,100,30]"))
    assert shape.slot_count == math.prod((8, 2, 112, 16))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("TILE", None, "give its shape"),
        ("NZ", None, "give its shape"),
        ("TILE", "f32[5]", "lays out matrices"),
        ("NZ", "c64[5,5]", "4, 8, 16 and 32 bits"),
        ("f32[5,5]", "NZ", "the name comes first"),
    ],
)
def test_matrices_that_do_not_fit(name: str, shape: str | None, message: str) -> None:
    with pytest.raises(fi.FastIndexError, match=message):
        fi.layouts.named_layout(name, shape)
