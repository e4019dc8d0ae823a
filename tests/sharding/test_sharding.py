"""Shardings as values: what is refused and where, what is kept, and what they say of themselves.

Tests of: sharding.tile_assignment, sharding.mesh, sharding.proto.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

import fastindex as fi
from fastindex import LayoutError, ParseError
from fastindex.sharding import Sharding
from fastindex.sharding.mesh import Axis, DimensionAxes, Mesh, MeshSharding
from fastindex.sharding.tile_assignment import DeviceOrder
from tests.cases.sharding_texts import BAD, REAL, random_text
from tests.child_process import in_its_own_process


@pytest.mark.parametrize(("text", "position"), BAD)
def test_bad_text_names_its_column(text: str, position: int) -> None:
    with pytest.raises(ParseError) as caught:
        Sharding.parse(text)
    assert caught.value.position == position, str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_text_reads_back() -> None:
    random = Random(6)
    for text in [*REAL, *(random_text(random) for _ in range(300))]:
        read = Sharding.parse(text)
        assert pickle.loads(pickle.dumps(read)) == read
        # What is unreduced beside a group of one device prints, as in XLA, as a text of something shorter.
        sharding = Sharding.parse(str(read))
        assert sharding == read or "last_tile_dims={unreduced}" in str(read) or "=1" in text
        again = Sharding.parse(str(sharding))
        assert str(again) == str(sharding)
        for other in (again, Sharding.from_proto(sharding.to_proto()), pickle.loads(pickle.dumps(sharding))):
            # Names for axes of size 1 are lost where XLA writes "manual" or "unreduced" alone.
            assert other == sharding or "=1" in text, text
            assert hash(other) == hash(sharding), text


def test_spaces_and_comments() -> None:
    text = "  { devices=[ 2 , 4 ] /* a */ <= [ 4,2 ] T ( 1 , 0 ) \n last_tile_dims={ manual } // end\n }"
    assert str(Sharding.parse(text)) == "{devices=[2,4]<=[4,2]T(1,0) last_tile_dims={manual}}"


def test_metadata_is_kept_but_not_compared() -> None:
    sharding = Sharding.parse(r"{replicated metadata={{op_name='a\n' source_line=3}, {}}}")
    assert sharding.metadata[0].attributes == (("op_name", "a\n"), ("source_line", 3))
    assert sharding == Sharding.parse("{replicated}")
    assert Sharding.from_proto(sharding.to_proto()).metadata == sharding.metadata


def test_frozen() -> None:
    sharding = Sharding.parse("{devices=[2,4]<=[8]}")
    with pytest.raises(AttributeError):
        sharding.kind = "manual"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        sharding.devices[0] = 1


def test_a_million_devices_cost_no_table() -> None:
    sharding = Sharding.parse("{devices=[1024,512,2]<=[512,2048]T(1,0) last_tile_dim_replicate}")
    assert sharding.order.ids is None
    assert len(sharding.order.digits) < 5
    assert sharding.device_count == 1 << 20


def test_lists_are_seen_as_counters() -> None:
    random = Random(7)
    for _ in range(200):
        sizes = [random.randint(1, 5) for _ in range(random.randint(1, 5))]
        order = list(range(len(sizes)))
        random.shuffle(order)
        counter = DeviceOrder.transposed_iota(sizes, order)
        expected = np.arange(counter.count).reshape(sizes).transpose(order).ravel()
        assert np.array_equal(counter.array(), expected)
        assert DeviceOrder.listed(expected.tolist()).counter() == counter.digits
    assert DeviceOrder.listed((0, 1, 3, 2)).counter() is None
    assert DeviceOrder.listed((1, 0)).counter() is None
    assert DeviceOrder.listed((0, 2, 1, 3, 4, 6, 7, 5)).counter() is None


@pytest.mark.parametrize(
    "text",
    [
        "{mesh['a'=1,'b'=16], [], replicated={'a'}, manual={'b'}}",
        "{mesh['a'=2,'b'=3,'c'=1], [], unreduced={'a', 'b'}}",
        "{mesh['a'=1,'b'=1], [], manual={'a'}}",
        "{mesh['a'=1,'b'=1], [], unreduced={'b'}, manual={'a'}}",
        "{mesh['a'=1,'b'=1,'c'=1], [], unreduced={'a', 'b'}, manual={'c'}}",
    ],
)
def test_axes_of_one_device_that_the_text_does_not_name_make_no_difference(text: str) -> None:
    sharding = Sharding.parse(text)
    again = Sharding.parse(str(sharding))
    assert again == sharding
    assert hash(again) == hash(sharding)
    assert sharding != Sharding.parse("{mesh['a'=1,'b'=16], [], unreduced={'b'}}")


@pytest.mark.parametrize("name", ["it's", "a\\b", "a\n7", "\x01", "\x7f8", 'a"b', "\u00e9", "", " ", "\\'", "7"])
def test_any_name_of_an_axis_reads_back(name: str) -> None:
    mesh = Mesh((name, "b"), (4, 2))
    sharding = Sharding("tiled", mesh=MeshSharding(mesh, (DimensionAxes((Axis(0),)), DimensionAxes((Axis(1),)))))
    for again in (Sharding.parse(str(sharding)), Sharding.from_proto(sharding.to_proto())):
        assert again == sharding
        assert str(again) == str(sharding)
        assert again.mesh is not None
        assert again.mesh.mesh.names == (name, "b")


def test_what_cannot_be_built() -> None:
    cases = [
        ("tilde", (), {}),
        ("tiled", (), {}),
        ("tiled", ((2, 2),), {"devices": (0, 1)}),
        ("tiled", ((2, 2), None, ("manual",) * 3), {}),
        ("tiled", ((2, 2), None, ("automatic",)), {}),
        ("replicated", ((), (3,)), {}),
        ("maximal", (), {}),
        ("replicated", (), {"elements": [Sharding("replicated")]}),
        ("tuple", (), {"elements": [Sharding("tuple")]}),
        ("tuple", (), {"shard_group": ("shard_as", 1)}),
    ]
    for kind, arguments, named in cases:
        with pytest.raises(LayoutError):
            Sharding(kind, *arguments, **named)
    with pytest.raises(TypeError):
        Sharding("tiled", (2.0, 2))
    with pytest.raises(fi.FastIndexError):
        Sharding.from_proto(b"\x08\x63")
    with pytest.raises(fi.FastIndexError):
        Sharding.from_proto(b"\x08")


def test_what_does_not_fit() -> None:
    two = Sharding.parse("{devices=[2,4]<=[8]}")
    for shape in ("f32[8]", "f32[8,8,8]"):
        with pytest.raises(LayoutError, match="2 dimensions"):
            two.shard_shape(shape)
    with pytest.raises(LayoutError, match="tuple"):
        Sharding.parse("{{replicated}}").shard_shape("f32[8]")
    with pytest.raises(fi.UnsupportedError):
        two.shard_shape("(f32[8,8])")
    with pytest.raises(fi.UnsupportedError):
        two.shard_shape("f32[?,8]")
    with pytest.raises(fi.UnsupportedError):
        two.shard_shape("f32[8,8]{1,0:PAD(10,10)}")
    with pytest.raises(fi.LayoutError):
        two.shard_shape("f32[8,8]{1,0:SC(0:5)}")
    assert str(two.shard_shape("f32[0,8]")) == "f32[0,2]{1,0}"


@pytest.mark.in_turn(seconds=1.2)
@in_its_own_process
def test_jax_objects() -> None:
    jax = pytest.importorskip("jax")
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    device = jax.devices()[0]
    named = NamedSharding(Mesh(np.array([device]).reshape(1, 1), ("a", "b")), PartitionSpec("a", None))
    assert Sharding.from_jax(named, 2).kind in ("tiled", "replicated")
    assert Sharding.from_jax(SingleDeviceSharding(device), 2).kind == "replicated"
    assert Sharding.from_jax(jax.numpy.zeros((2, 2))).kind == "replicated"
    with pytest.raises(fi.FastIndexError, match="rank"):
        Sharding.from_jax(named)
    with pytest.raises(TypeError):
        Sharding.from_jax("{replicated}")
    for text in ("{devices=[1,1]<=[1]}", "{mesh['a'=1], [{'a'}, {}]}", "{replicated}"):
        assert Sharding.from_jax(Sharding.parse(text).to_jax([device]), 2).shard_shape("f32[4,4]").dimensions == (4, 4)
    with pytest.raises(LayoutError, match="8 devices"):
        Sharding.parse("{devices=[2,4]<=[8]}").to_jax([device])


@pytest.mark.in_turn(seconds=1.2)
def test_jax_on_eight_devices() -> None:
    environment = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")
    command = [sys.executable, str(Path(__file__).with_name("shardings_of_jax.py"))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
