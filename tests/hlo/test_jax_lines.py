"""Lines of JAX that are printed or documented, compiled by libtpu for three programs on three TPUs.

Tests of: hlo.rows.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import fastindex as fi
from fastindex.hlo.rows import jax_lines
from fastindex.show.padding import cheapest_change
from fastindex.show.tpu_layouts import tpu_layout_in_order
from tests.documents.pages import PAGES
from tests.oracles.tpu_compiler import HAS_LIBTPU, PROGRAMS, Array, compiled

pytestmark = [
    pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed"),
    pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"]),
]

TEXTS = (
    "f32[1000,3]{1,0:T(8,128)}",
    "f32[64,4,128]{2,1,0:T(8,128)}",
    "f32[1000,5,7]{2,1,0:T(8,128)}",
    "f32[64,100,3]{2,1,0:T(8,128)}",
    "bf16[2,129,384]{1,2,0:T(8,128)(2,1)}",
    "f32[7,9]{1,0:T(8,128)}",
    "f32[300]{0:T(1024)}",
    "s8[1000,20]{1,0:T(8,128)(4,1)}",
    "s4[1000,3]{1,0:T(8,128)(8,1)E(4)}",
    "s4[3,1000]{0,1:T(8,128)(8,1)E(4)}",
    "f8e5m2[2,1000,3,4]{3,2,1,0:T(8,128)(4,1)}",
    # A program on two bits is more than the compiler takes, whatever their layout.
    "u2[1000,16]{1,0:T(16,128)(16,1)E(2)}",
)
DTYPES = {
    "f32": "float32", "bf16": "bfloat16", "s8": "int8", "s4": "int4", "u2": "uint2", "f8e5m2": "float8_e5m2",
}  # fmt: skip
#: Of a line in a page: an array for each number of dimensions that its layout has.
DOCUMENTED = {2: (1000, 3), 4: (2, 3, 5, 130), 5: (2, 3, 5, 130, 40)}


def random_texts(seed: int) -> list[str]:
    """Arrays in orders that pad, with the tiles of the compiler or those of a large array."""
    source = random.Random(seed)
    found = []
    for _ in range(8):
        kind = source.choice([name for name in DTYPES if name != "u2"])
        sizes = [source.choice((1, 2, 3, 5, 7, 8, 12, 33, 100, 130)) for _ in range(source.choice((2, 2, 3, 4)))]
        order = source.sample(range(len(sizes)), len(sizes))
        layout = tpu_layout_in_order(fi.ElementType.of(kind), source.choice((sizes, [256] * len(sizes))), order)
        found.append(str(fi.Shape(kind, sizes, layout)))
    return found


def printed(texts: Any) -> list[tuple[fi.Shape, str, str]]:
    """Return the array that is meant, the role of the buffer, and the line."""
    found = []
    for text in texts:
        shape = fi.Shape.parse(text)
        change = cheapest_change(shape)
        for role in ("argument", "output"):
            lines = () if change is None else jax_lines(shape, change, [role])
            found += [(shape, change.shape, role, line) for line in lines if change is not None]
    return found


def answers(topology: str, asked: list[tuple[Array, str]]) -> list[list[tuple[str, dict[str, Any], dict[str, Any]]]]:
    """Compile each line with each program that compiles without: the program, the answer without the line, and with."""
    arrays = list(dict.fromkeys(array for array, _ in asked))
    plain = [(array, program, "") for array in arrays for program in PROGRAMS]
    without = dict(zip(((array, program) for array, program, _ in plain), compiled(topology, plain), strict=True))
    taken = {array: [program for program in PROGRAMS if "error" not in without[array, program]] for array in arrays}
    found = iter(compiled(topology, [(array, program, line) for array, line in asked for program in taken[array]]))
    return [[(program, without[array, program], next(found)) for program in taken[array]] for array, _ in asked]


def check_printed(topology: str, texts: Any) -> int:
    lines = printed(texts)
    arrays = [((DTYPES[str(shape.element_type)], shape.dimensions), line) for shape, _, _, line in lines]
    count = 0
    for (shape, after, role, line), programs in zip(lines, answers(topology, arrays), strict=True):
        for program, without, with_line in programs:
            # A line about a result is for results of as many dimensions.
            if role == "output" and fi.Shape.parse(without["result"]).rank != shape.rank:
                continue
            count += 1
            assert "error" not in with_line, (topology, str(shape), program, line, with_line)
            if line.startswith("jax.jit") and role == "argument":
                assert with_line["parameters"] == [str(after)], (topology, str(shape), program, line)
            elif line.startswith("jax.jit"):
                result = fi.Shape.parse(with_line["result"])
                same = (result.element_type, result.dimensions) == (after.element_type, after.dimensions)
                assert result == after if same else result.layout.minor_to_major == after.layout.minor_to_major
    return count


@pytest.mark.in_turn(seconds=30)
def test_printed_lines(topology: str) -> None:
    """The compiler takes each line in each program that it takes without, and gives the layout that is promised."""
    assert len(printed(TEXTS)) >= 20
    assert check_printed(topology, TEXTS) >= 50


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2))
def test_printed_lines_of_random_arrays(topology: str, seed: int) -> None:
    check_printed(topology, random_texts(seed))


def documented() -> list[str]:
    """Return what pages say in JAX about layouts, as statements: layouts of arguments and results, and constraints."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for layout in re.findall(r"Format\(Layout\(\(.*?\), sharding\)", text):
            found += [f"jax.jit(f, {where}={layout})" for where in ("in_shardings", "out_shardings")]
        found += re.findall(r"x = with_layout_constraint\(.*\)", text)
        found += re.findall(r"x = x\.reshape\(-1\)", text)
    return list(dict.fromkeys(found))


@pytest.mark.in_turn(seconds=10)
def test_documented_lines(topology: str) -> None:
    lines = documented()
    assert len(lines) >= 4
    asked = []
    for line in lines:
        order = re.search(r"Layout\(\(([\d, ]*)\)", line)
        rank = 2 if order is None else len(order[1].split(","))
        asked.append((("float32", DOCUMENTED[rank]), line))
    for line, programs in zip(lines, answers(topology, asked), strict=True):
        assert len(programs) == len(PROGRAMS)
        for program, _, with_line in programs:
            assert "error" not in with_line, (line, program, with_line)
