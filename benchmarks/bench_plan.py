"""asv: what a call costs besides moving bytes: parsing, lowering, planning, and the call itself."""

from __future__ import annotations

import itertools

import numpy as np

import fastindex as fi
from benchmarks.cases import RELAYOUT_CASES

CASES = {case.name: case for case in RELAYOUT_CASES}
TEXT = "bf16[1024,1000]{1,0:T(8,128)(2,1)}"


class Text:
    """Reading and writing of shapes."""

    def setup(self) -> None:
        self.shape = fi.Shape.parse(TEXT)

    def time_parse(self) -> None:
        fi.Shape.parse(TEXT)

    def time_print(self) -> None:
        str(self.shape)

    def time_construct(self) -> None:
        fi.Shape("bf16", (1024, 1000), fi.Layout((1, 0), tiles=((8, 128), (2, 1))))


class Plan:
    """A plan that no cache knows yet: every call asks for an array of another size."""

    params = (list(CASES),)
    param_names = ("case",)

    def setup(self, name: str) -> None:
        case = CASES[name]
        self.sizes = itertools.count(17)
        self.case = case
        fi.plan_relayout(case.source("toy"), case.destination("toy"))

    def time_new_plan(self, name: str) -> None:
        elements = next(self.sizes) ** 2 * 1000
        fi.plan_relayout(*self.case.scaled(elements))

    def time_known_plan(self, name: str) -> None:
        fi.plan_relayout(self.case.source("toy"), self.case.destination("toy"))


class Call:
    """The least a call costs: a cached plan, output given, almost nothing to do."""

    def setup(self) -> None:
        source, destination = "f32[8,8]", "f32[8,8]{0,1}"
        self.plan = fi.plan_relayout(source, destination)
        self.buffer, self.out = np.zeros(64, np.float32), np.zeros(64, np.float32)
        self.plan(self.buffer, out=self.out)
        self.shape = fi.Shape.parse(TEXT)
        self.rows, self.columns = np.arange(8), np.arange(8)
        self.slots = np.zeros(8, np.int64)
        fi.linear_index(self.shape, (self.rows, self.columns), out=self.slots)
        fi.multi_index(self.shape, self.slots)

    def time_plan(self) -> None:
        self.plan(self.buffer, out=self.out)

    def time_relayout(self) -> None:
        fi.relayout(self.buffer, "f32[8,8]", "f32[8,8]{0,1}")

    def time_linear_index(self) -> None:
        fi.linear_index(self.shape, (self.rows, self.columns), out=self.slots)

    def time_multi_index(self) -> None:
        fi.multi_index(self.shape, self.slots)

    def time_numpy_ravel_multi_index(self) -> None:
        np.ravel_multi_index((self.rows, self.columns), (1024, 1000))
