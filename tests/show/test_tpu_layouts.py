"""The default layouts of TPU compilers, against what libtpu compiled, and against libtpu itself where it is installed.

Tests of: show.tpu_layouts.
"""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path

import pytest

import fastindex as fi
from fastindex.show.explorer import description
from fastindex.show.padding import cheapest_change
from fastindex.show.tpu_layouts import tpu_layout
from tests.oracles.tpu_compiler import DTYPES, HAS_LIBTPU, NEW, OLD, RECORDED, default_layouts, random_arrays

#: By libtpu 0.0.42, for v4, v5e and v6e.
EARLIER = (Path(__file__).resolve().parents[1] / "data" / "tpu_layouts.txt").read_text(encoding="utf-8").split()
#: By libtpu 0.0.52: whether for v2 and v3, or from v4 on, and an array in its layout.
LATER = [line.split(" ") for line in lzma.decompress(RECORDED.read_bytes()).decode().splitlines()]


def check_default(shape: fi.Shape) -> None:
    """All that names the default layout says this one."""
    assert tpu_layout(shape.element_type, shape.dimensions) == shape.layout, shape
    assert fi.layouts.named_layout("TPU", shape) == fi.layouts.suggest_tiles(shape).layout == shape.layout
    if shape.layout.tiles:
        assert fi.layouts.layout_name(shape) == "TPU"
        assert "the tiles that XLA's TPU compiler uses for such an array" in fi.explain(shape)


def is_claimed(shape: fi.Shape) -> bool:
    """The compiler fails on programs that read vectors of two bits, though it has a layout for them."""
    return shape.element_type.bits != 2 or shape.rank != 1


def test_what_libtpu_gave_parameters_earlier() -> None:
    """523 layouts on v4, v5e and v6e."""
    assert len(EARLIER) > 500
    assert len({shape.split("[")[0] for shape in EARLIER}) >= 8
    for text in EARLIER:
        check_default(fi.Shape.parse(text))


def test_what_libtpu_gives_parameters_from_v4_on() -> None:
    """67 arrays of each type; the same layouts for all five generations."""
    shapes = [fi.Shape.parse(text) for generation, text in LATER if generation == "new"]
    assert len(shapes) == 67 * len(DTYPES) == 2010
    assert set(Counter(str(shape.element_type) for shape in shapes).values()) == {67}
    for shape in shapes:
        if is_claimed(shape):
            check_default(shape)
    assert sum(map(is_claimed, shapes)) > 1970


def test_what_libtpu_gives_parameters_on_v2_and_v3() -> None:
    shapes = [fi.Shape.parse(text) for generation, text in LATER if generation == "old"]
    assert len(shapes) == 20 * len(DTYPES)
    for shape in shapes:
        if is_claimed(shape):
            for tpu in ("v2", "v3"):
                assert tpu_layout(shape.element_type, shape.dimensions, tpu) == shape.layout, shape


@pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed")
@pytest.mark.in_turn(seconds=15)
@pytest.mark.parametrize("topology", [*NEW, *OLD])
def test_what_libtpu_gives_parameters_here(topology: str) -> None:
    """2,010 arrays more, by the libtpu that is installed."""
    generation = topology.partition(":")[0]
    found = default_layouts(topology, random_arrays(3, 67))
    shapes = [fi.Shape.parse(text) for text in found if text is not None]
    assert len(shapes) > 1900
    for shape in shapes:
        if is_claimed(shape) and not (shape.element_type.bits == 2 and generation == "v4"):
            assert tpu_layout(shape.element_type, shape.dimensions, generation) == shape.layout, (topology, shape)


UNUSUAL = [
    ("s2[64,64]", "{1,0:T(16,128)(16,1)E(2)}"), ("u2[4,1024]", "{1,0:T(16,128)(16,1)E(2)}"),
    ("s2[32,15]", "{0,1:T(16,128)(16,1)E(2)}"), ("u2[16,7]", "{0,1:T(16,128)(16,1)E(2)}"),
    ("u2[384,120]", "{0,1:T(16,128)(16,1)E(2)}"), ("s2[257,96,8]", "{1,2,0:T(16,128)(16,1)E(2)}"),
    ("s2[31,127,128]", "{2,1,0:T(16,128)(16,1)E(2)}"), ("s2[512,8,300]", "{0,1,2:T(16,128)(16,1)E(2)}"),
    ("s2[256,512]", "{1,0:T(128,128)(16,1)E(2)}"), ("f6e2m3fn[65,4096,63]", "{1,2,0:T(8,128)(4,1)}"),
    ("f32[0,938]", "{1,0}"), ("s4[0,96,781]", "{2,1,0:E(4)}"),
]  # fmt: skip


@pytest.mark.parametrize(("array", "layout"), UNUSUAL)
def test_defaults_of_two_bits_of_six_and_of_nothing(array: str, layout: str) -> None:
    """As libtpu 0.0.52 compiles for v5e, v5p, v6e and tpu7x: tiles of whole words, but orders compared by 8 rows."""
    found = fi.layouts.suggest_tiles(array)
    assert str(found.layout) == layout
    assert fi.layouts.named_layout("tpu", array) == found.layout
    if found.tiles:
        assert fi.layouts.layout_name(found.shape) == "TPU"
        since = " from v5e on" if "E(2)" in layout else ""
        assert f"the tiles that XLA's TPU compiler uses for such an array{since}." in fi.explain(found.shape)


@pytest.mark.parametrize("text", ["u2[300]{0:T(2048)(128)(16,1)E(2)}", "s1[64,128]{1,0:T(32,128)(32,1)E(1)}"])
def test_no_default_where_the_compiler_fails(text: str) -> None:
    with pytest.raises(fi.UnsupportedError, match="TPU"):
        fi.layouts.suggest_tiles(text)
    with pytest.raises(fi.UnsupportedError, match="TPU"):
        fi.layouts.named_layout("TPU", text)
    assert fi.layouts.layout_name(text) != "TPU"
    assert "compiler uses" not in fi.explain(text)
    assert "TPU" in description(text, "")["suggestion"]


@pytest.mark.parametrize("bits", [1, 2])
def test_advice_where_a_default_is_missing(bits: int) -> None:
    """Folded, the matrix would be a vector, whose tiles are not known."""
    shape = fi.Shape.parse(f"u{bits}[3,5]{{1,0:T(32,128)({32 // bits},1)E({bits})}}")
    change = cheapest_change(shape)
    assert change is None or change.shape.rank == 2
