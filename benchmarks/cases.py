"""The cases that benchmarks and tests share. Fixed: entries are appended, never changed; old results compare.

A relayout case is one array in two layouts. It comes in three sizes: ``round``, powers of two and the like;
``prime``, about as many bytes with nothing that divides; ``toy``, small and ragged, for a test against the
slow reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SIZES = ("round", "prime", "toy")

#: Least fraction of the copy ceiling, by kind of case.
TARGETS = {
    "long runs": 0.85,
    "transpose": 0.8,
    "byte transpose": 0.65,
    "other": 0.55,
}


@dataclass(frozen=True)
class RelayoutCase:
    """One array of `element_type` in two layouts, each written as the braces of shape text."""

    name: str
    kind: str
    element_type: str
    source_layout: str
    destination_layout: str
    round: tuple[int, ...]
    prime: tuple[int, ...]
    toy: tuple[int, ...]

    def dimensions(self, size: str) -> tuple[int, ...]:
        return {"round": self.round, "prime": self.prime, "toy": self.toy}[size]

    def source(self, size: str = "round") -> str:
        """Shape text of the source."""
        return text(self.element_type, self.dimensions(size), self.source_layout)

    def destination(self, size: str = "round") -> str:
        """Shape text of the destination."""
        return text(self.element_type, self.dimensions(size), self.destination_layout)

    def scaled(self, element_count: int) -> tuple[str, str]:
        """Source and destination with about `element_count` elements, the proportions kept."""
        dimensions = [1] * len(self.round)
        left = float(element_count)
        smallest_first = sorted(range(len(self.round)), key=self.round.__getitem__)
        for done, dimension in enumerate(smallest_first):
            rest = [self.round[other] for other in smallest_first[done:]]
            factor = (left / math.prod(rest)) ** (1 / len(rest))
            dimensions[dimension] = max(1, round(self.round[dimension] * factor))
            left /= dimensions[dimension]
        return (
            text(self.element_type, tuple(dimensions), self.source_layout),
            text(self.element_type, tuple(dimensions), self.destination_layout),
        )

    @property
    def target(self) -> float:
        """Least fraction of the copy ceiling."""
        return TARGETS[self.kind]


def text(element_type: str, dimensions: tuple[int, ...], layout: str) -> str:
    return f"{element_type}[{','.join(map(str, dimensions))}]{layout}"


SQUARE = {"round": (4096, 4096), "prime": (4093, 4099), "toy": (13, 37)}
LARGE_SQUARE = {"round": (8192, 8192), "prime": (8191, 8209), "toy": (19, 131)}
IMAGES = {"round": (32, 64, 112, 112), "prime": (31, 67, 109, 113), "toy": (2, 19, 3, 5)}

RELAYOUT_CASES = (
    RelayoutCase("f32 4096x4096 transpose", "transpose", "f32", "{1,0}", "{0,1}", **SQUARE),
    RelayoutCase("f32 8192x8192 transpose", "transpose", "f32", "{1,0}", "{0,1}", **LARGE_SQUARE),
    RelayoutCase("bf16 8192x8192 transpose", "transpose", "bf16", "{1,0}", "{0,1}", **LARGE_SQUARE),
    RelayoutCase("u8 8192x8192 transpose", "byte transpose", "u8", "{1,0}", "{0,1}", **LARGE_SQUARE),
    RelayoutCase("f64 4096x4096 transpose", "transpose", "f64", "{1,0}", "{0,1}", **SQUARE),
    RelayoutCase(
        "c128 2048x2048 transpose", "transpose", "c128", "{1,0}", "{0,1}", (2048, 2048), (2039, 2053), (13, 37)
    ),
    RelayoutCase("f32 NCHW to NHWC", "transpose", "f32", "{3,2,1,0}", "{1,3,2,0}", **IMAGES),
    RelayoutCase("f32 NHWC to NCHW", "transpose", "f32", "{1,3,2,0}", "{3,2,1,0}", **IMAGES),
    RelayoutCase("f32 NCHW to nChw16c", "long runs", "f32", "{3,2,1,0}", "{3,2,1,0:T(16,1,1)}", **IMAGES),
    RelayoutCase("f32 nChw16c to NCHW", "long runs", "f32", "{3,2,1,0:T(16,1,1)}", "{3,2,1,0}", **IMAGES),
    RelayoutCase(
        "f32 64^4 reversal", "other", "f32", "{3,2,1,0}", "{0,1,2,3}", (64, 64, 64, 64), (61, 67, 61, 67), (3, 7, 5, 6)
    ),
    RelayoutCase(
        "f32 16^6 permuted (5,2,0,4,1,3)",
        "other",
        "f32",
        "{5,4,3,2,1,0}",
        "{3,1,4,0,2,5}",
        (16, 16, 16, 16, 16, 16),
        (13, 17, 17, 13, 19, 17),
        (2, 3, 4, 3, 5, 3),
    ),
    RelayoutCase(
        "f32 2048x2048x8 outer swap",
        "other",
        "f32",
        "{2,1,0}",
        "{2,0,1}",
        (2048, 2048, 8),
        (1741, 1753, 11),
        (7, 11, 8),
    ),
    RelayoutCase("f32 to T(8,128)", "long runs", "f32", "{1,0}", "{1,0:T(8,128)}", **LARGE_SQUARE),
    RelayoutCase("f32 from T(8,128)", "long runs", "f32", "{1,0:T(8,128)}", "{1,0}", **LARGE_SQUARE),
    RelayoutCase("bf16 to T(8,128)(2,1)", "long runs", "bf16", "{1,0}", "{1,0:T(8,128)(2,1)}", **LARGE_SQUARE),
    RelayoutCase("bf16 from T(8,128)(2,1)", "long runs", "bf16", "{1,0:T(8,128)(2,1)}", "{1,0}", **LARGE_SQUARE),
    RelayoutCase("s8 to T(8,128)(4,1)", "long runs", "s8", "{1,0}", "{1,0:T(8,128)(4,1)}", **LARGE_SQUARE),
    RelayoutCase("s8 from T(8,128)(4,1)", "long runs", "s8", "{1,0:T(8,128)(4,1)}", "{1,0}", **LARGE_SQUARE),
    RelayoutCase(
        "bf16 T(8,128)(2,1) to T(16,128)(2,1)",
        "long runs",
        "bf16",
        "{1,0:T(8,128)(2,1)}",
        "{1,0:T(16,128)(2,1)}",
        (8192, 8192),
        (8191, 8209),
        (29, 131),
    ),
    RelayoutCase(
        "s4 packed to unpacked T(8,128)",
        "long runs",
        "s4",
        "{1,0:E(4)}",
        "{1,0:T(8,128)}",
        (16384, 8192),
        (16381, 8209),
        (19, 131),
    ),
    RelayoutCase(
        "f32 images, batch minor, to T(8,128)",
        "other",
        "f32",
        "{0,3,2,1}",
        "{3,2,1,0:T(8,128)}",
        (100, 3, 224, 224),
        (101, 3, 223, 227),
        (5, 3, 9, 11),
    ),
)


@dataclass(frozen=True)
class IndexCase:
    """Random indices of one shape, converted in bulk."""

    name: str
    shape: str


#: Indices per call of the index benchmarks.
INDEX_COUNT = 1 << 24

#: Least fraction of the copy ceiling by bytes touched, for each direction.
INDEX_TARGETS = {"linear_index": 0.7, "multi_index": 0.6}

#: Least ratio to NumPy's ravel_multi_index and unravel_index, for 1 and 2 threads.
NUMPY_TARGETS = {"ravel_multi_index": {1: 2.5, 2: 5.0}, "unravel_index": {1: 5.0, 2: 10.0}}

#: Least ratio to the same arithmetic as NumPy expressions, where NumPy has no function, by number of threads.
EXPRESSION_TARGETS: dict[str, dict[int, float]] = {"linear_index": {2: 8.0}, "multi_index": {}}

INDEX_CASES = (
    IndexCase("rank 3", "f32[250,300,400]"),
    IndexCase("rank 3, powers of two", "f32[256,256,512]"),
    IndexCase("rank 6", "f32[16,17,18,19,20,21]"),
    IndexCase("T(8,128)", "f32[4096,4096]{1,0:T(8,128)}"),
    IndexCase("T(8,128)(2,1)", "bf16[4096,4096]{1,0:T(8,128)(2,1)}"),
    IndexCase("T(8,128)(2,1), ragged", "bf16[4093,4099]{1,0:T(8,128)(2,1)}"),
    IndexCase("T(6,125)(3,1)", "f32[4093,4099]{1,0:T(6,125)(3,1)}"),
    IndexCase("three levels", "u8[4096,4096]{1,0:T(32,128)(8,128)(4,1)}"),
    IndexCase("T(*,*,2,*,3)", "f32[20,21,22,23,24]{4,3,2,1,0:T(*,*,2,*,3)}"),
    IndexCase("beyond 32 bits", "u8[100003,100019]{1,0:T(8,128)(4,1)}"),
)
