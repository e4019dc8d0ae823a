"""No kernel is compiled twice for two layouts of a kind: layouts reach kernels as arrays of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.moving.compiled_passes import pass_kernel
from fastindex.moving.warmup import every_kernel
from fastindex.runtime import machine_code
from fastindex.runtime.kernels import kernel
from fastindex.runtime.machine_code import compiled_kernels, loaded_kernels
from fastindex.runtime.numbers import Kernel
from tests.cases import strategies


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Record the name of every kernel that is compiled; one that is loaded from the cache is not."""
    found: list[str] = []
    before = len(compiled_kernels())
    yield found
    found += [one.function for one in compiled_kernels()[before:]]


def check_kernels() -> None:
    """No kernel is loaded but what `warmup` compiles."""
    known = list(every_kernel().values())
    assert len(known) == len(set(known))
    assert set(loaded_kernels()) <= set(known)


def move(source: str, destination: str) -> None:
    plan = fi.plan_relayout(source, destination)
    buffer = np.zeros(plan.source.nbytes, np.uint8)
    plan(buffer, threads=1)
    plan(buffer, threads=2)


def pack_and_unpack(text: str) -> None:
    shape = fi.Shape.parse(text)
    array = np.zeros(shape.dimensions, shape.element_type.numpy_dtype)
    fi.unpack(fi.pack(array, text), text)
    fi.unpack(fi.pack(np.asfortranarray(array), text), text)


def convert(first: str, second: str) -> None:
    shape = fi.Shape.parse(first)
    indices = tuple(np.zeros(100, np.int64) for _ in shape.dimensions)
    slots = fi.linear_index(first, indices)
    fi.multi_index(first, slots)
    fi.convert_index(first, second, slots)
    if shape.layout.tiles:
        fi.tile_index(first, indices)


#: What may compile kernels, and then many more of its kind that may not.
KINDS: dict[str, tuple[Callable[..., Any], list[tuple[str, ...]]]] = {
    "transposes": (
        move,
        [
            ("f32[300,200]", "f32[300,200]{0,1}"),
            ("f32[201,333]", "f32[201,333]{0,1}"),
            ("f32[300,200]{0,1}", "f32[300,200]"),
            ("s32[40,50,60]", "s32[40,50,60]{0,1,2}"),
            ("u32[7,64,31,33]", "u32[7,64,31,33]{1,3,2,0}"),
            ("f32[33,64,50]{0,2,1}", "f32[33,64,50]{2,1,0}"),
        ],
    ),
    "tiles of two levels": (
        move,
        [
            ("bf16[64,256]", "bf16[64,256]{1,0:T(8,128)(2,1)}"),
            ("bf16[128,128]", "bf16[128,128]{1,0:T(8,128)(2,1)}"),
            ("f16[3,64,384]", "f16[3,64,384]{2,1,0:T(8,128)(2,1)}"),
            ("s16[64,512]", "s16[64,512]{1,0:T(16,128)(2,1)}"),
            ("u16[64,256]", "u16[64,256]{1,0:T(4,256)(2,1)}"),
        ],
    ),
    "ragged tiles": (
        move,
        [
            ("bf16[63,257]", "bf16[63,257]{1,0:T(8,128)(2,1)}"),
            ("bf16[9,131]", "bf16[9,131]{1,0:T(8,128)(2,1)}"),
            ("bf16[5,31,257]", "bf16[5,31,257]{2,1,0:T(8,128)(2,1)}"),
        ],
    ),
    "packed elements": (
        move,
        [
            ("u4[64,256]{1,0:E(4)}", "u4[64,256]{1,0:T(8,128)}"),
            ("s4[32,128]{1,0:E(4)}", "s4[32,128]{1,0:T(8,128)}"),
            ("u4[3,16,256]{2,1,0:E(4)}", "u4[3,16,256]{2,1,0:T(8,128)}"),
        ],
    ),
    "tiles that do not divide each other": (
        move,
        [
            ("f32[30,50]", "f32[30,50]{1,0:T(3,5)(2)}"),
            ("f32[70]", "f32[70]{0:T(7)(5)}"),
            ("f32[4,5,6]{0,1,2:T(3)(2)}", "f32[4,5,6]"),
        ],
    ),
    "packing": (
        pack_and_unpack,
        [
            ("f64[30,50]{1,0:T(8,16)}",),
            ("f64[16,64]{1,0:T(4,16)}",),
            ("f64[3,30,50]{2,1,0:T(8,16)}",),
            ("s64[30,77]{1,0:T(8,16)}",),
        ],
    ),
    "indices": (
        convert,
        [
            ("f32[30,50]{1,0:T(8,16)(2,1)}", "f32[30,50]{0,1}"),
            ("f32[31,57]{0,1:T(4,8)(3)}", "f32[31,57]{0,1:T(5)(2)}"),
            ("f32[8,9]{1,0:T(*,4)}", "f32[8,9]{1,0:T(3,3)(2)}"),
            ("bf16[100,100]{1,0:T(8,128)(2,1)}", "bf16[100,100]{1,0:T(16,128)(2,1)}"),
        ],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_two_layouts_of_a_kind_share_their_kernels(kind: str) -> None:
    run, layouts = KINDS[kind]
    for texts in layouts[:1] if kind not in ("transposes", "ragged tiles", "packing") else layouts[:2]:
        run(*texts)
    before = loaded_kernels()
    with compilations() as compiled:
        for texts in layouts:
            run(*texts)
    assert compiled == []
    assert loaded_kernels() == before
    check_kernels()


def test_random_layouts_share_their_kernels() -> None:
    """Everything that 60 random relayouts need is on the list that `warmup` compiles, once each."""
    for seed in strategies.seeds(60):
        move(*(str(shape) for shape in strategies.medium_pair(seed, 20_000)))
    check_kernels()


def test_a_kernel_is_looked_up_once() -> None:
    first = pass_kernel("strided", 1, 0)
    with compilations() as compiled:
        assert pass_kernel("strided", 1, 0) == first
    assert compiled == []


@kernel
def added(value):  # type: ignore[no-untyped-def]
    return value + 1


def test_compilations_are_seen() -> None:
    with compilations() as compiled:
        machine_code._compile(Kernel(__name__, "added"))
    assert compiled == ["added"]
