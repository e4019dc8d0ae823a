"""Protos: known bytes, old fields, damaged bytes, the protobuf library as a second reader.

Bytes are compared with jaxlib's in test_against_jaxlib.py.

Tests of: core.layout, core.proto, core.wire.
"""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

import fastindex as fi
from fastindex import Layout, Shape
from fastindex.xla import ProgramShape
from tests.cases.shape_texts import REAL_TEXTS, TextMaker
from tests.cases.strategies import random_shape, seeds
from tests.oracles.shape_messages import message_class

#: Bytes as jaxlib 0.10.2 writes them.
KNOWN = {
    "bf16[1024,1000]{1,0:T(8,128)(2,1)}": ("10101a048008e8072a140a02010032050a0308800132040a0202018001013202 0000"),
    "f32[]": "100b2a03800101",
    "token[]": "1011",
    "()": "100d",
    "f32[<=3]{0}": "100b1a01032a060a0100800101320101",
    "f32[?]{0}": "100b1a0a808080808080808080012a060a0100800101320101",
    "f32[2]{0:SC(0:)}": "100b1a01022a090a01008001018a0100320100",
    "f32[3]{0:S(-1)}": "100b1a01032a110a010040ffffffffffffffffff01800101320100",
}


@pytest.mark.parametrize("text", KNOWN)
def test_known_bytes(text: str) -> None:
    data = bytes.fromhex(KNOWN[text])
    assert Shape.parse(text).to_proto() == data
    assert str(Shape.from_proto(data)) == text


def test_the_protobuf_library_reads_what_is_written_and_writes_what_is_read() -> None:
    message = message_class("ShapeProto")
    texts = [*REAL_TEXTS, "f32[3]{0:D(C+~)}", "f32[3]{0:PAD(4)PV(highest)}", "f32[2,3]{1,0:T(*,2)}"]
    for seed in seeds(300):
        texts += [TextMaker(seed).valid(), str(random_shape(seed))]
    for shape in map(Shape.parse, texts):
        parsed = message.FromString(shape.to_proto())
        assert str(Shape.from_proto(parsed)) == str(shape)
        assert Shape.from_proto(parsed.SerializeToString()) == shape
        assert list(parsed.dimensions) == list(shape.dimensions)
        assert parsed.element_type == shape.element_type.number
        if shape.is_array:
            layout = parsed.layout
            assert tuple(layout.minor_to_major) == shape.layout.minor_to_major
            assert tuple(tuple(tile.dimensions) for tile in layout.tiles) == shape.layout.tiles
            assert tuple(layout.padded_dimensions) == (shape.layout.padded_dimensions or ())
            assert Layout.from_proto(layout) == shape.layout
            assert shape.layout.to_proto() == layout.SerializeToString()


def layout_proto(**fields: object) -> bytes:
    message = message_class("ShapeProto")(element_type=11, dimensions=[3, 5], is_dynamic_dimension=[])
    message.layout.minor_to_major[:] = [1, 0]
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(message.layout, name).extend(value)
        else:
            setattr(message.layout, name, value)
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "f32[3,5]{1,0}"),
        ({"padded_dimensions": [4, 8]}, "f32[3,5]{1,0:PAD(4,8)}"),
        ({"padded_dimensions": [4, 8], "padding_value": 3}, "f32[3,5]{1,0:PAD(4,8)PV(lowest)}"),
        ({"padding_value": 0}, "f32[3,5]{1,0}"),
        ({"padding_value": 1}, "f32[3,5]{1,0:PV(zero)}"),
        ({"padding_value": 2}, "f32[3,5]{1,0:PV(one)}"),
        ({"padding_value": 4}, "f32[3,5]{1,0:PV(highest)}"),
        ({"padding_value": 5}, "f32[3,5]{1,0}"),
        ({"format": 1}, "f32[3,5]{1,0}"),
        ({"max_sparse_elements": 7}, "f32[3,5]{1,0}"),
        ({"dim_level_types": [0, 0], "dim_unique": [True, True]}, "f32[3,5]{1,0}"),
        ({"dim_level_types": [0, 1]}, "f32[3,5]{1,0:D(D,C)}"),
        (
            {"dim_level_types": [2, 3], "dim_unique": [False, True], "dim_ordered": [False, False]},
            "f32[3,5]{1,0:D(S+~,H~)}",
        ),
        ({"tail_padding_alignment_in_elements": 0}, "f32[3,5]{1,0}"),
        ({"index_primitive_type": 8}, "f32[3,5]{1,0:#(u32)}"),
        ({"index_primitive_type": 8, "pointer_primitive_type": 7}, "f32[3,5]{1,0:#(u32)*(u16)}"),
    ],
)
def test_old_and_odd_fields_are_read(fields: dict[str, object], text: str) -> None:
    assert str(Shape.from_proto(layout_proto(**fields))) == text


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"format": 2}, "legacy sparse format"),
        ({"padded_dimensions": [4]}, "one size per dimension"),
        ({"padded_dimensions": [2, 5]}, "at least its dimension"),
        ({"memory_space": 300}, "memory_space must be -128 to 127"),
        ({"element_size_in_bits": -4}, "element_size_in_bits must be at least 0"),
        ({"tail_padding_alignment_in_elements": -1}, "must be at least 1"),
        ({"index_primitive_type": 11}, "index_primitive_type must be an integer type"),
        ({"pointer_primitive_type": 99}, "pointer_primitive_type must be an integer type"),
        ({"dim_level_types": [4]}, "unknown dimension level 4"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields: dict[str, object], rule: str) -> None:
    with pytest.raises(fi.FastIndexError, match=rule):
        Shape.from_proto(layout_proto(**fields))


def test_stars_are_read_in_both_spellings() -> None:
    for star in (-1, -(2**63)):
        message = message_class("ShapeProto").FromString(Shape.parse("f32[3,5]{1,0}").to_proto())
        message.layout.tiles.add().dimensions.extend([star, 4])
        assert str(Shape.from_proto(message)) == "f32[3,5]{1,0:T(*,4)}"


def test_unknown_fields_and_groups_are_skipped() -> None:
    data = Shape.parse("f32[3]{0}").to_proto()
    # Field 100: varint, fixed 64, bytes, a group with a field in it, fixed 32.
    extras = ["a00605", "a1060102030405060708", "a206026162", "a3060801a406", "a50601020304"]
    for extra in extras:
        assert Shape.from_proto(bytes.fromhex(extra) + data + bytes.fromhex(extra)) == Shape.parse("f32[3]")


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("", "number 0"),
        ("10", "end inside a number"),
        ("1080", "end inside a number"),
        ("10ffffffffffffffffffff01", "longer than ten bytes"),
        ("100b1a05", "needs 5 bytes, 0 are left"),
        ("100b1aff0f", "needs 2047 bytes"),
        ("100b1affffffffffffffffff01", "needs -1 bytes"),
        ("100b0001", "field number 0"),
        ("100b17", "wire type 7"),
        ("100b1c", "wire type 4"),
        ("100ba306", "group 100 does not end"),
        ("120161", "field 2 has the wrong wire type"),
        ("100d2005", "field 4 has the wrong wire type"),
        ("100b1a01032005", None),
        ("1022", "must have one element, got 0"),
        ("10222202100b2202100b", "must have one element, got 2"),
        ("10222202 1011", "must hold an array"),
        ("100b1a0a80808080808080808001", "unbounded dimension that is not dynamic"),
        ("100b1a0103320201 01", "one flag per dimension"),
        ("10112a00", "of a token has a layout"),
        ("100b1a0180", "end inside a number"),
    ],
)
def test_bytes_that_are_no_shape(data: str, rule: str | None) -> None:
    if rule is None:
        assert Shape.from_proto(bytes.fromhex(data)).rank == 1
        return
    with pytest.raises(fi.FastIndexError, match=rule):
        Shape.from_proto(bytes.fromhex(data))


def test_damaged_bytes_are_a_shape_or_an_error_as_the_protobuf_library_says() -> None:
    message = message_class("ShapeProto")
    for seed in seeds(400):
        rng = random.Random(seed)
        data = bytearray(Shape.parse(TextMaker(seed).valid()).to_proto())
        for _ in range(rng.randint(1, 3)):
            kind, at = rng.randrange(3), rng.randrange(len(data))
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at:]
            else:
                data.insert(at, rng.randrange(256))
            if not data:
                break
        try:
            shape = Shape.from_proto(bytes(data))
        except fi.FastIndexError:
            continue
        # What is no proto at all is not accepted.
        try:
            message.FromString(bytes(data))
        except DecodeError as error:
            raise AssertionError((bytes(data).hex(), str(shape))) from error


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind(kind: type) -> None:
    assert Shape.from_proto(kind(Shape.token().to_proto())) == Shape.token()


@pytest.mark.parametrize("proto", ["1011", None, 3])
def test_what_is_no_proto(proto: object) -> None:
    with pytest.raises(TypeError, match="the bytes of a proto"):
        Shape.from_proto(proto)


def test_program_shapes() -> None:
    program = ProgramShape([Shape.parse("f32[2,3]{0,1}"), Shape.token()], Shape.parse("pred[]"), ["x", ""])
    assert str(program) == "(x: f32[2,3], (unknown): token[]) -> pred[]"
    parsed = message_class("ProgramShapeProto").FromString(program.to_proto())
    assert list(parsed.parameter_names) == ["x", ""]
    assert ProgramShape.from_proto(parsed) == program
    assert hash(ProgramShape.from_proto(parsed)) == hash(program)
    assert ProgramShape([Shape.token()], Shape.token()).parameter_names == ("",)
    assert ProgramShape.parse("(x:f32[2,3]{0,1}, token[])->pred[]") == program
    assert ProgramShape.parse("(x: f32[2,3]{0,1}, (unknown): token[]) -> pred[]") == program
    nested = ProgramShape.parse("((f32[2], ()), b.1: (s8[])) -> ()")
    assert (ProgramShape.parse(str(nested)), nested.parameter_names) == (nested, ("", "b.1"))


def test_program_shapes_that_cannot_be() -> None:
    with pytest.raises(fi.LayoutError, match="one name per parameter"):
        ProgramShape([Shape.token()], Shape.token(), ["a", "b"])
    with pytest.raises(TypeError, match="must hold shapes"):
        ProgramShape(["f32[]"], Shape.token())  # type: ignore[list-item]
    with pytest.raises(fi.LayoutError, match="no result"):
        ProgramShape.from_proto(b"")
    texts = ("(f32[2] f32[3]) -> f32[]", "(f32[2]", "(:f32[2]) -> f32[]", "(f32[2]) f32[]", "() -> f32[] x", "f32[]")
    for text, column in zip(texts, (8, 7, 1, 9, 12, 0), strict=True):
        with pytest.raises(fi.ParseError) as caught:
            ProgramShape.parse(text)
        assert caught.value.position == column, text
