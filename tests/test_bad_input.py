"""Bad input ends in a clear error of the named class, and nothing is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
import fastindex.paged as fp

SHAPE = "f32[6,10]{0,1:T(4,3)}"
SLOTS = fi.Shape.parse(SHAPE).slot_count
ARRAY = np.zeros((6, 10), np.float32)
BUFFER = np.zeros(SLOTS, np.float32)


# Shapes


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("f32", 3),
        ("f33[2]", 0),
        ("f32[2", 5),
        ("f32[a]", 4),
        ("f32[2]{0:T(2}", 12),
        ("f32[2]{0}x", 9),
        ("f32[-1]", 4),
    ],
)
def test_text_that_is_no_shape(text: str, position: int) -> None:
    with pytest.raises(fi.ParseError) as caught:
        fi.Shape.parse(text)
    assert caught.value.position == position
    for function, arguments in (
        (fi.linear_index, ([0],)),
        (fi.multi_index, ([0],)),
        (fi.tile_index, ([0],)),
        (fi.plan_relayout, ("f32[2]",)),
    ):
        with pytest.raises(fi.ParseError):
            function(text, *arguments)
    with pytest.raises(fi.ParseError):
        fi.pack(np.zeros(2, np.float32), text)


@pytest.mark.parametrize(
    "text",
    [
        "f32[2,3]{0}",
        "f32[2,3]{0,0}",
        "f32[2,3]{0,2}",
        "f32[2]{0:T(0)}",
        "f32[2]{0:T()}",
        "f32[2]{0:T(2,*)}",
        "f32[2]{0:L(0)}",
        "f32[2]{0:E(-4)}",
        "f32[2]{0:S(128)}",
        "f32[2]{0:PAD(1)}",
        "f32[2]{0:PAD(2,2)}",
        "f32[4611686018427387904,4]",
        "u8[9223372036854775807,2]",
        "f32[9223372036854775808]",
        "u8[4611686018427387904]{0:T(4611686018427387905)L(4611686018427387904)}",
        "u8[2,4611686018427387905]{1,0:T(2,4611686018427387904)}",
    ],
)
def test_shapes_that_cannot_exist(text: str) -> None:
    with pytest.raises(fi.FastIndexError):
        fi.Shape.parse(text).slot_count  # noqa: B018
    with pytest.raises(fi.FastIndexError):
        fi.linear_index(text, np.zeros((2, 1), np.int64))


def test_coordinates_that_are_not_one_argument() -> None:
    with pytest.raises(fi.FastIndexError, match=r"got 2; write the coordinates as one argument, \(i0, i1\)"):
        fi.linear_index("f32[3,5]", 2, 3)  # type: ignore[arg-type]
    with pytest.raises(fi.FastIndexError, match=r"got 2; write the coordinates as one argument, \(i0,\)"):
        fi.tile_index("f32[3]{0:T(2)}", 2)


@pytest.mark.parametrize("text", ["(f32[2], f32[3])", "token[]", "opaque[]"])
def test_shapes_without_elements(text: str) -> None:
    for call in (
        lambda: fi.linear_index(text, ([0],)),
        lambda: fi.multi_index(text, [0]),
        lambda: fi.tile_index(text, ([0],)),
        lambda: fi.convert_index(text, text, [0]),
        lambda: fi.pack(ARRAY, text),
        lambda: fi.unpack(BUFFER, text),
        lambda: fi.relayout(BUFFER, text, text),
    ):
        with pytest.raises((fi.FastIndexError, TypeError)):
            call()


@pytest.mark.parametrize("text", ["f32[?,10]", "f32[6,10]{1,0:D(D,C)}"])
def test_shapes_without_a_size(text: str) -> None:
    for call in (
        lambda: fi.multi_index(text, [0]),
        lambda: fi.convert_index(text, text, [0]),
        lambda: fi.pack(ARRAY, text),
        lambda: fi.unpack(BUFFER, text),
        lambda: fi.relayout(BUFFER, text, text),
    ):
        with pytest.raises(fi.UnsupportedError):
            call()


@pytest.mark.parametrize("shape", [None, 5, ("f32", (2,)), np.zeros(3), b"f32[2]"])
def test_things_that_are_no_shape(shape: Any) -> None:
    for call in (
        lambda: fi.linear_index(shape, ([0],)),
        lambda: fi.multi_index(shape, [0]),
        lambda: fi.pack(ARRAY, shape),
        lambda: fi.plan_relayout(shape, "f32[2]"),
    ):
        with pytest.raises((TypeError, fi.FastIndexError)):
            call()


CACHE = fp.Cache("u8[num_blocks=4,block_size=2,head_dim=8]")


@pytest.mark.parametrize("other", [5, object(), [1, [2]], np.array([["a", "b"]], np.dtypes.StringDType())])
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: fi.Shape("f32", x), "dimensions"),
        (lambda x: fi.Layout((1, 0), tiles=x), "tiles must be"),
        (lambda x: fi.pack(x, SHAPE), "array"),
        (lambda x: fi.pack(ARRAY, SHAPE, max_memory=x), "max_memory"),
        (lambda x: fi.linear_index(SHAPE, ([0], [0]), mode=x), "mode must be"),
        (lambda x: fi.Shape.from_torch(x), r"torch\.Tensor"),
        (lambda x: fi.layouts.named_layout("NZ", x), "Shape or its text"),
        (lambda x: fi.sharding.Sharding.parse("{replicated}").shard_shape(x), "Shape or its text"),
        (lambda x: fi.tile_index(SHAPE, (0, 0), level=x), "level"),
        (lambda x: fi.hlo.report([x]), "must hold paths"),
        (lambda x: fi.weights.discover(x, (2, 2), np.uint8), "packer must be"),
        (lambda x: fi.weights.discover(np.copy, (2, 2), x), "dtype must be|codes are integers"),
        (lambda x: fi.weights.open_checkpoint(x), "folder must be a path"),
        (lambda x: fi.weights.pack_checkpoint(x, "folder", []), "source must be a path"),
        (lambda x: fi.weights.convert_checkpoint("source", x, []), "folder must be a path"),
        (lambda x: fp.explain(x), "source must be a fastindex.paged.Cache"),
        (lambda x: fp.explain(CACHE, x), "target must be a fastindex.paged.Cache"),
        (lambda x: fp.draw(x), "cache must be a fastindex.paged.Cache"),
        (lambda x: fp.draw(CACHE, x), "block_table must be a fastindex.paged.BlockTable"),
        (lambda x: fp.runs(x, CACHE, [0], [0]), "source must be a fastindex.paged.Cache"),
        (lambda x: fp.gather(x, np.zeros(64, "u1"), [0]), "cache must be a fastindex.paged.Cache"),
        (lambda x: fp.byte_offset(x, slot=0, dim=0), "cache must be a fastindex.paged.Cache"),
        (lambda x: fp.element_at(x, 0), "cache must be a fastindex.paged.Cache"),
        (lambda x: fp.Cache.from_tensors([np.zeros((4, 2, 8), "u1")], x), "axes must be"),
        (lambda x: fp.Cache.from_tensors(np.zeros((4, 2, 8), "u1"), head_dim=(x,)), "head_dim must be an integer"),
        (lambda x: fp.Cache("u8[num_blocks=4,block_size=2,head_dim=8]", head_dim=(x,)), "head_dim must be an integer"),
        (
            lambda x: fp.Cache([fp.Part(x, "u8[block_size=2]")], num_blocks=1, block_stride=2),
            "names of parts are texts",
        ),
        (lambda x: fp.Cache.preset(x, "mla", num_blocks=1, block_size=1, head_dim=1), "the engines with presets are"),
        (lambda x: fp.BlockTable(x, block_size=2), "array|integer|block table"),
        (lambda x: fp.BlockTable([[1]], block_size=2).to_slots(pad=(x,)), "pad must be an integer"),
    ],
)
def test_objects_of_another_kind(call: Any, expected: str, other: Any) -> None:
    with pytest.raises(fi.FastIndexError, match=expected):
        call(other)


# Indices


@pytest.mark.parametrize("multi_index", [(), ([0],), ([0], [0], [0]), 5, np.zeros((3, 4), np.int64)])
def test_wrong_number_of_coordinates(multi_index: Any) -> None:
    for function in (fi.linear_index, fi.tile_index):
        with pytest.raises(fi.FastIndexError, match="2"):
            function(SHAPE, multi_index)


@pytest.mark.parametrize("bad", [[0.5], np.zeros(1, np.float64), ["a"], [None], [1j], np.zeros(1, "M8[s]")])
def test_indices_that_are_no_integers(bad: Any) -> None:
    for call in (
        lambda: fi.linear_index(SHAPE, (bad, [0])),
        lambda: fi.linear_index(SHAPE, ([0], bad)),
        lambda: fi.multi_index(SHAPE, bad),
        lambda: fi.tile_index(SHAPE, (bad, [0])),
        lambda: fi.convert_index(SHAPE, SHAPE, bad),
    ):
        with pytest.raises(TypeError):
            call()


def test_coordinates_that_lie_across() -> None:
    with pytest.raises(fi.FastIndexError, match=r"got 7: its shape is \(7, 2\), transpose it"):
        fi.linear_index(SHAPE, np.zeros((7, 2), np.int64))


def test_a_list_with_one_entry_per_element() -> None:
    with pytest.raises(fi.FastIndexError, match=r"got 3: each is one element, transpose them"):
        fi.linear_index(SHAPE, [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(fi.FastIndexError, match=r"got 3$"):
        fi.linear_index(SHAPE, [[0, 1, 2], [2, 3, 4], [4, 5, 6]])


def test_a_pattern_that_is_an_array() -> None:
    with pytest.raises(fi.ArgumentTypeError, match="got ndarray; the array comes first, then the pattern"):
        fi.rearrange("y x -> x y", ARRAY)  # type: ignore[arg-type]
    with pytest.raises(fi.ArgumentTypeError, match=r"a pattern must be text such as .* got NoneType$"):
        fi.rearrange(ARRAY, None)  # type: ignore[arg-type]


def test_files_and_arrays_where_others_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "dump.bin"
    BUFFER.tofile(path)
    with path.open("rb") as stream:
        for file in (str(path), path, stream):
            with pytest.raises(fi.ArgumentTypeError, match=r"numpy\.fromfile\(path, numpy\.uint8\) reads a file"):
                fi.unpack(file, SHAPE)
    with pytest.raises(fi.ArgumentTypeError, match=r"got ndarray; Shape\.from_numpy\(array\) is its shape$"):
        fi.explain(ARRAY)  # type: ignore[arg-type]


class Unread:
    """An array of another library, whose entries take long to get."""

    shape = (50_000_000, 2)

    def __iter__(self) -> Any:
        raise AssertionError("it was iterated")


@pytest.mark.parametrize(
    "call", [fi.linear_index, fi.tile_index, partial(fi.sharding.shard_index, sharding="{replicated}")]
)
def test_coordinates_that_lie_across_are_not_iterated(call: Any) -> None:
    with pytest.raises(fi.FastIndexError, match=r"got 50000000: its shape is \(50000000, 2\), transpose it"):
        call("f32[9,9]{1,0:T(8,128)}", multi_index=Unread())


@pytest.mark.parametrize(("name", "meant"), [("bfloat16", "bf16"), ("F32", "f32"), ("i8", "s8"), ("bool", "pred")])
def test_element_types_by_another_name(name: str, meant: str) -> None:
    with pytest.raises(fi.ParseError, match=f"expected {meant}, XLA's name of the element type, found '{name}'"):
        fi.Shape.parse(f"{name}[3]")
    with pytest.raises(fi.FastIndexError, match=f"XLA's name is {meant}"):
        fi.Shape(name, (3,))


def test_coordinates_that_do_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"broadcast|shape"):
        fi.linear_index(SHAPE, (np.zeros(3, np.int64), np.zeros(4, np.int64)))


@pytest.mark.parametrize("bad", [-1, 10, 2**31, 2**32, 2**32 + 3, -(2**31), 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("threads", [1, 2])
def test_out_of_bounds_names_the_coordinate_and_the_place(bad: int, threads: int) -> None:
    columns = np.zeros((50, 80), np.int64)
    columns[31, 17] = bad
    with pytest.raises(fi.OutOfBoundsError) as caught:
        fi.linear_index(SHAPE, (np.int64(0), columns), threads=threads)
    message = str(caught.value)
    assert str(bad) in message
    assert "dimension 1" in message
    assert "(31, 17)" in message
    assert "10" in message
    assert isinstance(caught.value, IndexError)
    assert isinstance(caught.value, ValueError)


def test_out_of_bounds_in_the_first_coordinate() -> None:
    with pytest.raises(fi.OutOfBoundsError, match="dimension 0"):
        fi.linear_index(SHAPE, ([0, 6], [0, 0]))
    with pytest.raises(fi.OutOfBoundsError, match="dimension 0"):
        fi.tile_index(SHAPE, ([0, 6], [0, 0]))


@pytest.mark.parametrize("bad", [-1, SLOTS, 2**32, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("padding", ["raise", "mark"])
def test_slots_outside_the_buffer(bad: int, padding: str) -> None:
    slots = np.zeros(1000, np.int64)
    slots[777] = bad
    with pytest.raises(fi.OutOfBoundsError) as caught:
        fi.multi_index(SHAPE, slots, padding=padding)
    assert str(bad) in str(caught.value)
    assert "777" in str(caught.value)


def test_every_index_of_an_empty_array_is_out_of_bounds() -> None:
    with pytest.raises(fi.OutOfBoundsError):
        fi.linear_index("f32[0,3]", ([0], [0]))
    with pytest.raises(fi.OutOfBoundsError):
        fi.multi_index("f32[0,3]", [0])
    for mode in ("wrap", "clip"):
        with pytest.raises(fi.OutOfBoundsError):
            fi.linear_index("f32[0,3]", ([0], [0]), mode=mode)


def test_padding_slots_are_refused() -> None:
    padding = int(np.flatnonzero(fi.multi_index(SHAPE, np.arange(SLOTS), padding="mark")[0] < 0)[0])
    for call in (
        lambda: fi.multi_index(SHAPE, [0, padding]),
        lambda: fi.convert_index(SHAPE, "f32[6,10]", [0, padding]),
    ):
        with pytest.raises(fi.OutOfBoundsError, match=rf"\b{padding}\b.*padding|padding.*\b{padding}\b"):
            call()


@pytest.mark.parametrize("mode", ["other", None, 3])
def test_unknown_modes(mode: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        fi.linear_index(SHAPE, ([0], [0]), mode=mode)


def test_unknown_padding_policies() -> None:
    with pytest.raises(ValueError, match="mark"):
        fi.multi_index(SHAPE, [0], padding="other")


@pytest.mark.parametrize("level", [-2, 1, 5])
def test_levels_that_do_not_exist(level: int) -> None:
    with pytest.raises((fi.FastIndexError, IndexError)):
        fi.tile_index(SHAPE, ([0], [0]), level=level)


def test_tile_index_without_tiles() -> None:
    with pytest.raises(fi.FastIndexError, match="tile"):
        fi.tile_index("f32[6,10]", ([0], [0]))


# out=


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(3, np.int64),
        np.zeros((2, 2), np.int64),
        np.zeros(4, np.int32),
        np.zeros(4, np.float64),
        [0, 0, 0, 0],
    ],
    ids=["too short", "wrong shape", "int32", "float64", "list"],
)
def test_wrong_out_of_linear_index(out: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        fi.linear_index(SHAPE, ([0, 1, 2, 3], [0, 0, 0, 0]), out=out)


def test_wrong_out_of_multi_index() -> None:
    for out in ((np.zeros(4, np.int64),), (np.zeros(4, np.int64), np.zeros(3, np.int64))):
        with pytest.raises((ValueError, TypeError)):
            fi.multi_index(SHAPE, [0, 1, 2, 3], out=out)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def test_read_only_out() -> None:
    with pytest.raises(ValueError, match=r"read-only|writ"):
        fi.linear_index(SHAPE, ([0], [0]), out=read_only(np.zeros(1, np.int64)))
    with pytest.raises(ValueError, match=r"read-only|writ"):
        fi.pack(ARRAY, SHAPE, out=read_only(BUFFER))
    with pytest.raises(ValueError, match=r"read-only|writ"):
        fi.unpack(BUFFER, SHAPE, out=read_only(ARRAY))
    with pytest.raises(ValueError, match=r"read-only|writ"):
        fi.relayout(BUFFER, SHAPE, "f32[6,10]", out=read_only(np.zeros(60, np.float32)))


# Buffers and arrays


@pytest.mark.parametrize("shape", [(10, 6), (60,), (6, 10, 1), (6, 9), ()])
def test_arrays_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(fi.FastIndexError, match=r"6.*10"):
        fi.pack(np.zeros(shape, np.float32), SHAPE)


@pytest.mark.parametrize("dtype", ["f8", "i4", "f2", "c8", "U1", "O"])
def test_arrays_of_the_wrong_dtype(dtype: str) -> None:
    with pytest.raises(fi.ArgumentTypeError, match="needs an array of dtype float32, got"):
        fi.pack(np.zeros((6, 10), dtype), SHAPE, casting="no")
    if dtype in ("f8", "i4", "c8"):
        with pytest.raises((TypeError, fi.FastIndexError), match=r"f32|float32"):
            fi.unpack(np.zeros(SLOTS, dtype), SHAPE)


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("f32[6,10]", "f32[10,6]"),
        ("f32[6,10]", "f32[60]"),
        ("f32[6,10]", "f32[6,10,1]"),
        ("f32[6,10]", "bf16[10,6]"),
    ],
)
def test_layouts_of_different_arrays(source: str, destination: str) -> None:
    with pytest.raises(fi.FastIndexError) as caught:
        fi.plan_relayout(source, destination)
    assert source in str(caught.value)
    assert destination in str(caught.value)
    with pytest.raises(fi.FastIndexError):
        fi.relayout(np.zeros(60, fi.Shape.parse(source).element_type.numpy_dtype), source, destination)
    if source.split("[")[1] != destination.split("[")[1]:
        with pytest.raises(fi.FastIndexError):
            fi.convert_index(source, destination, [0])


@pytest.mark.parametrize(
    "text", ["f32[6,10]{1,0:E(12)}", "f32[6,10]{1,0:E(16)}", "u8[6,10]{1,0:E(3)}", "s4[6,10]{1,0:E(2)}"]
)
def test_element_sizes_that_cannot_be_moved(text: str) -> None:
    """Indices and sizes work; moving data does not."""
    shape = fi.Shape.parse(text)
    assert int(fi.linear_index(text, (1, 1))) == 11
    assert shape.nbytes == -(-60 * shape.element_bits // 8)
    plain = text.split("{")[0]
    array = np.zeros((6, 10), np.uint8).astype(shape.element_type.numpy_dtype)
    for call in (
        lambda: fi.pack(array, text),
        lambda: fi.unpack(bytes(shape.nbytes), text),
        lambda: fi.relayout(bytes(shape.nbytes), text, plain),
        lambda: fi.relayout(array.ravel(), plain, text),
    ):
        with pytest.raises(fi.UnsupportedError, match=r"E\("):
            call()


@pytest.mark.parametrize("fill", ["a", 1j, [1, 2]])
def test_fills_that_do_not_fit(fill: Any) -> None:
    with pytest.raises(fi.FastIndexError, match="fill must be"):
        fi.pack(ARRAY, SHAPE, fill=fill)


@pytest.mark.parametrize("mode", ["wrap", "clip"])
def test_kernels_stay_inside_their_arrays(mode: str) -> None:
    """Whatever the indices, answers are slots of the buffer; nothing around `out` changes."""
    numbers = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (2, 5000))
    guarded = np.full(5200, -99)
    slots = fi.linear_index(SHAPE, numbers, mode=mode, out=guarded[100:5100])
    assert slots.min() >= 0
    assert slots.max() < SLOTS
    assert (guarded[:100] == -99).all()
    assert (guarded[5100:] == -99).all()


def test_a_failed_call_leaves_no_trace_in_the_next() -> None:
    good = fi.linear_index(SHAPE, ([1], [1]))
    for _ in range(3):
        with pytest.raises(fi.OutOfBoundsError):
            fi.linear_index(SHAPE, ([1], [99]))
        np.testing.assert_array_equal(fi.linear_index(SHAPE, ([1], [1])), good)
