"""The rows of a report: the buffers of one shape, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastindex.core.shape import Shape
from fastindex.hlo.jax_advice import CALLERS_ROLES, INSIDE, cost_text, jax_lines
from fastindex.hlo.shape_table import array_of
from fastindex.show.changes import Change, cheapest_change
from fastindex.show.padding import PaddingStep, describe_step, main_cause

#: Memory spaces in which arrays of the caller lie: the default one, and that of the host.
_CALLERS_MEMORY = (0, 5)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer comes from.

    Attributes
    ----------
    instruction, computation : str
        The instruction that defines it, and the computation that contains it.
    role : str
        "argument", "output", "constant" or "temporary"; of an out-of-memory message its allocation type; "" where
        all instructions are counted.
    op_name : str
        The operation of the program, from the metadata; or "".
    source_file, source_line : str, int
        The line of the program; "" and 0 if the metadata has none.
    line : int
        The line of the HLO text.
    at_peak : bool
        Whether the buffer is live at the peak of its memory space; False if no peak is known.
    sharding : str
        Of an argument: its sharding as written; or "".
    """

    instruction: str
    computation: str = ""
    role: str = ""
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    line: int = 0
    at_peak: bool = False
    sharding: str = ""

    @property
    def source_text(self) -> str:
        """The file and the line, or ""."""
        return f"{self.source_file}:{self.source_line}" if self.source_file else ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "instruction": self.instruction,
            "computation": self.computation,
            "role": self.role or None,
            "op_name": self.op_name or None,
            "source_file": self.source_file or None,
            "source_line": self.source_line or None,
            "line": self.line or None,
            "at_peak": self.at_peak,
            "sharding": self.sharding or None,
        }


@dataclass(frozen=True, slots=True)
class ShapeUse:
    """The buffers of one shape in one module.

    Attributes
    ----------
    shape : Shape
        Never a tuple; tuples are split into their leaves.
    count : int
        How many buffers have it.
    nbytes, logical_nbytes : int
        Of one buffer, and of its elements.
    module : str
        The label of the module, as in `ModuleUse`.
    places : tuple of Place
        Where they come from, in the order of the text.
    readers : tuple of (str, Shape)
        Copies of one of them into another layout: the instruction and its shape.
    """

    shape: Shape
    count: int
    nbytes: int
    logical_nbytes: int
    module: str = ""
    places: tuple[Place, ...] = ()
    readers: tuple[tuple[str, Shape], ...] = ()

    @property
    def padding_ratio(self) -> float:
        """Bytes of the buffer per byte of its elements."""
        if self.nbytes == self.shape.nbytes or not self.logical_nbytes:
            return self.shape.padding_ratio
        # A message may print a shape without the tiles that the buffer has.
        return self.nbytes / self.logical_nbytes

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding in all the buffers of this shape."""
        return self.count * (self.nbytes - self.logical_nbytes)

    def waste_key(self) -> tuple[int, int]:
        """Return the sort key: the wasted bytes, then all bytes."""
        return self.wasted_nbytes, self.count * self.nbytes

    @property
    def peak_count(self) -> int:
        """How many of them are live at the peak of their memory space."""
        return sum(place.at_peak for place in self.places)

    @property
    def memory_space(self) -> int:
        """The memory space of the layout; 0 without a layout."""
        array = array_of(self.shape)
        return array.layout.memory_space if array is not None else 0

    @property
    def cause(self) -> PaddingStep | None:
        """The step of the layout that adds most padding."""
        array = array_of(self.shape)
        return main_cause(array) if array is not None and self.nbytes > self.logical_nbytes else None

    @property
    def cause_text(self) -> str:
        """The cause in words, or ""."""
        cause, array = self.cause, array_of(self.shape)
        return describe_step(array, cause) if cause is not None and array is not None else ""

    @property
    def change(self) -> Change | None:
        """The cheapest change of the layout that avoids most of the padding; none for the compiler's own memories."""
        array = array_of(self.shape)
        if array is None or self.memory_space not in _CALLERS_MEMORY:
            return None
        return cheapest_change(array)

    @property
    def is_inside(self) -> bool:
        """Whether all of them are values inside the program, whose layouts the compiler chooses."""
        return bool(self.places) and all(place.role not in CALLERS_ROLES for place in self.places)

    @property
    def jax_lines(self) -> tuple[str, ...]:
        """The change as lines of JAX; empty if there is none, or it cannot be expressed in JAX."""
        change, array = self.change, array_of(self.shape)
        if change is None or array is None:
            return ()
        return jax_lines(array, change, [place.role for place in self.places])

    @property
    def change_cost(self) -> str:
        """What the change costs if a consumer needs the old order, or ""."""
        change, array = self.change, array_of(self.shape)
        if change is None or array is None:
            return ""
        if self.is_inside:
            return INSIDE
        return cost_text(array, change, self.nbytes, self.readers)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON; `UNITS` says what each number covers."""
        change = self.change
        return {
            "text": str(self.shape),
            "count": self.count,
            "nbytes": self.nbytes,
            "logical_nbytes": self.logical_nbytes,
            # JSON has no infinity: a buffer that is all padding has no ratio.
            "padding_ratio": self.padding_ratio if self.logical_nbytes or not self.nbytes else None,
            "wasted_nbytes": self.wasted_nbytes,
            "peak_count": self.peak_count,
            "memory_space": self.memory_space,
            "module": self.module or None,
            "cause": self.cause_text or None,
            "change": change
            and {
                "description": change.description,
                "text": str(change.shape),
                "saved_nbytes": change.saved_nbytes * self.count,
                "saved_at_peak_nbytes": change.saved_nbytes * self.peak_count,
                "jax": list(self.jax_lines),
                "cost": self.change_cost,
            },
            "instructions": [place.to_json() for place in self.places],
        }
