"""The rows of a report: the buffers of one shape, and the origin of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastindex.core.shape import Shape
from fastindex.hlo.jax_advice import CALLERS_ROLES, INSIDE, cost_text, jax_lines
from fastindex.hlo.shape_table import array_of
from fastindex.show.padding import Change, PaddingStep, cheapest_change, describe_step, main_cause

#: Memory spaces that can contain the caller's arrays: the default one, and the host's.
_CALLERS_MEMORY = (0, 5)


@dataclass(frozen=True, slots=True)
class Place:
    """The origin of a buffer.

    Attributes
    ----------
    instruction, computation : str
        The instruction that defines it, and the computation that contains it.
    role : str
        "argument", "output", "constant" or "temporary"; the allocation type in an out-of-memory message; "" if all
        instructions are counted.
    op_name : str
        Operation name from the metadata; or "".
    source_file, source_line : str, int
        Source line of the program; "" and 0 if the metadata has none.
    line : int
        Line number in the HLO text.
    at_peak : bool
        Whether the buffer is live at the peak of its memory space; False if no peak is known.
    sharding : str
        For an argument: its sharding as written; or "".
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
        Number of buffers of this shape.
    nbytes, logical_nbytes : int
        Bytes of one buffer, and of its elements.
    module : str
        Label of the module, as in `ModuleUse`.
    places : tuple of Place
        Origins of the buffers, in text order.
    readers : tuple of (str, Shape)
        Copies of one of them to other layouts: instruction name and shape.
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
        """Bytes of a buffer per byte of its elements."""
        if self.nbytes == self.shape.nbytes or not self.logical_nbytes:
            return self.shape.padding_ratio
        # A message may print the shape without the buffer's tiles.
        return self.nbytes / self.logical_nbytes

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding in all the buffers of this shape."""
        return self.count * (self.nbytes - self.logical_nbytes)

    def waste_key(self) -> tuple[int, int]:
        """Return the sort key: wasted bytes, then total bytes."""
        return self.wasted_nbytes, self.count * self.nbytes

    @property
    def peak_count(self) -> int:
        """Number of these buffers that are live at the peak of their memory space."""
        return sum(place.at_peak for place in self.places)

    @property
    def memory_space(self) -> int:
        """The memory space of the layout; 0 without a layout."""
        array = array_of(self.shape)
        return array.layout.memory_space if array is not None else 0

    @property
    def cause(self) -> PaddingStep | None:
        """The step of the layout that adds the most padding."""
        array = array_of(self.shape)
        return main_cause(array) if array is not None and self.nbytes > self.logical_nbytes else None

    @property
    def cause_text(self) -> str:
        """The cause in words, or ""."""
        cause, array = self.cause, array_of(self.shape)
        return describe_step(array, cause) if cause is not None and array is not None else ""

    @property
    def change(self) -> Change | None:
        """Cheapest layout change that avoids most of the padding; None in memory spaces that the compiler manages."""
        array = array_of(self.shape)
        if array is None or self.memory_space not in _CALLERS_MEMORY:
            return None
        return cheapest_change(array)

    @property
    def is_inside(self) -> bool:
        """Whether all are values inside the program, whose layouts the compiler chooses."""
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
        """Cost of the change if a consumer needs the old dimension order, or ""."""
        change, array = self.change, array_of(self.shape)
        if change is None or array is None:
            return ""
        if self.is_inside:
            return INSIDE
        return cost_text(array, change, self.nbytes, self.readers)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON; `uses.UNITS` says what each number covers."""
        change = self.change
        return {
            "text": str(self.shape),
            "count": self.count,
            "nbytes": self.nbytes,
            "logical_nbytes": self.logical_nbytes,
            # JSON has no infinity: a buffer of padding only has no ratio.
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
