"""What is measured on a GPU and counted without one, the most important first: relayouts, casts, views, indices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import fastindex as fi
from benchmarks.cases import INDEX_CASES, RELAYOUT_CASES, IndexCase, RelayoutCase, text

#: Least fraction of the copy's speed, by kind of case; odd sizes have their own.
TARGETS = {"copy": 0.9, "transpose": 0.9, "2-byte transpose": 0.9, "1-byte transpose": 0.8, "other": 0.6}
ODD_TARGET, INDEX_TARGET = 0.6, 0.9


@dataclass(frozen=True)
class Move:
    """One relayout or cast, of an array whose first dimension grows with the memory that is asked for."""

    name: str
    target: float
    source: str
    destination: str
    #: Move it as a strided view, by `copyto`, and not as a buffer, by a plan.
    as_view: bool = False

    def reduced(self, count: int) -> tuple[str, str]:
        """The same with at most about `count` elements, each dimension what it was within 128."""
        dimensions = list(fi.Shape.parse(self.source).dimensions)
        while math.prod(dimensions) > count:
            largest = max(range(len(dimensions)), key=dimensions.__getitem__)
            if dimensions[largest] < 256:
                break
            blocks, rest = divmod(dimensions[largest], 128)
            dimensions[largest] = blocks // 2 * 128 + rest
        dimensions[0] = max(1, min(dimensions[0], count // math.prod(dimensions[1:])))
        return self._with(tuple(dimensions))

    def enlarged(self, nbytes: int) -> tuple[str, str]:
        """The same with the first dimension a multiple of what it is, so that nothing else changes."""
        source = fi.Shape.parse(self.source)
        first, *rest = source.dimensions
        return self._with((first * max(1, math.ceil(nbytes / source.nbytes)), *rest))

    def _with(self, dimensions: tuple[int, ...]) -> tuple[str, str]:
        source, destination = map(fi.Shape.parse, (self.source, self.destination))
        return tuple(str(fi.Shape(one.element_type, dimensions, one.layout)) for one in (source, destination))


def relayout(case: RelayoutCase, size: str) -> Move:
    """A case that processors are measured with too."""
    if size == "prime":
        return Move(f"{case.name}, odd", ODD_TARGET, case.source(size), case.destination(size))
    kind = "copy" if case.kind == "long runs" else "transpose" if "transpose" in case.kind else "other"
    width = fi.Shape.parse(case.source("toy")).element_type.nbytes
    if kind == "transpose" and width < 4:
        kind = f"{width}-byte transpose"
    return Move(case.name, TARGETS[kind], case.source(size), case.destination(size))


def casts() -> list[Move]:
    sizes = (8192, 8192)
    found = []
    for source, target, name, layout in (
        ("f32", "bf16", "", "{1,0}"),
        ("bf16", "f32", "", "{1,0}"),
        ("f32", "bf16", " and transposed", "{0,1}"),
        ("f32", "bf16", " and tiled", "{1,0:T(8,128)(2,1)}"),
        ("s8", "bf16", "", "{1,0}"),
        ("f32", "f8e4m3fn", "", "{1,0}"),
    ):
        kind = TARGETS["copy"] if not name else TARGETS["other"]
        found.append(
            Move(f"{source} cast to {target}{name}", kind, text(source, sizes, "{1,0}"), text(target, sizes, layout))
        )
    return found


MOVES = (
    *(relayout(case, "round") for case in RELAYOUT_CASES),
    *casts(),
    Move("copyto, f32 8192x8192 transposed view", 0.9, "f32[8192,8192]{1,0}", "f32[8192,8192]{0,1}", as_view=True),
    Move(
        "copyto, bf16 NCHW view of NHWC",
        0.85,
        "bf16[32,64,112,112]{1,3,2,0}",
        "bf16[32,64,112,112]{3,2,1,0}",
        as_view=True,
    ),
    *(relayout(case, "prime") for case in RELAYOUT_CASES),
)

#: Moves first that users name first; odd sizes come after the indices.
FIRST = len(MOVES) - len(RELAYOUT_CASES)


def in_order() -> list[Move | IndexCase]:
    return [*MOVES[:FIRST], *INDEX_CASES, *MOVES[FIRST:]]
