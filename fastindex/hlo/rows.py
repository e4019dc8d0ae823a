"""The rows of a report: the buffers of one shape, the origin of each, and a change of layout as lines of JAX.

JAX accepts layouts for arguments and results (`jax.experimental.layout.Format`). Inside a program XLA chooses: swapping
logical dimensions has no effect, and a constraint helps or harms depending on its position.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fastindex.core.shape import Shape
from fastindex.hlo.attributes import Origin
from fastindex.hlo.presentation import Record, json_of
from fastindex.hlo.shape_table import array_of
from fastindex.show.padding import Change, PaddingStep, cheapest_change, describe_step, main_cause
from fastindex.show.spelling import bytes_text
from fastindex.show.tpu_layouts import is_tpu_default

#: Roles of buffers whose layouts the caller can choose.
CALLERS_ROLES = frozenset(("argument", "output"))
#: The advice for a value inside a program.
INSIDE = (
    "a value inside the compiled program: the compiler chooses its layout, and compiling again shows what another one "
    "does (fastindex.hlo.try_layouts)"
)
#: Memory spaces that can contain the caller's arrays: the default one, and the host's.
_CALLERS_MEMORY = (0, 5)


@dataclass(frozen=True, slots=True)
class Place(Record):
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

    _optional = ("role", "op_name", "source_file", "source_line", "line", "sharding")

    @property
    def source_text(self) -> str:
        """The file and the line, or ""."""
        return f"{self.source_file}:{self.source_line}" if self.source_file else ""


@dataclass(slots=True)
class PlaceTable:
    """The places of a module as columns: a module may have millions, of which few are looked at.

    Attributes
    ----------
    names : list of (str, sequence of str)
        Name of each computation, and the names of its instructions.
    owners, positions, lines, origins : array of int
        For each place: positions in `names` and in the instructions, line, and key in `known_origins`.
    role : list of str
    at_peak : bytearray
    known_origins : dict of int to Origin
    shardings : dict of int to str
        By place.
    """

    names: list[tuple[str, Sequence[str]]] = field(default_factory=list)
    owners: array[int] = field(default_factory=lambda: array("i"))
    positions: array[int] = field(default_factory=lambda: array("i"))
    lines: array[int] = field(default_factory=lambda: array("i"))
    origins: array[int] = field(default_factory=lambda: array("i"))
    role: list[str] = field(default_factory=list)
    at_peak: bytearray = field(default_factory=bytearray)
    known_origins: dict[int, Origin] = field(default_factory=dict)
    shardings: dict[int, str] = field(default_factory=dict)

    def place(self, number: int) -> Place:
        """Return one of the places."""
        (computation, names), origin = self.names[self.owners[number]], self.known_origins[self.origins[number]]
        return Place(
            names[self.positions[number]], computation, self.role[number], origin.op_name, origin.source_file,
            origin.source_line, self.lines[number], bool(self.at_peak[number]), self.shardings.get(number, ""),
        )  # fmt: skip


class Places(Sequence[Place]):
    """The places of a row: a tuple in all but memory."""

    __slots__ = ("_numbers", "_table")

    def __init__(self, table: PlaceTable, numbers: array[int]) -> None:
        self._table = table
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        found = self._numbers[at]
        return tuple(map(self._table.place, found)) if isinstance(at, slice) else self._table.place(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Places, tuple)) and self[:] == other[:]

    def __hash__(self) -> int:
        return hash(self[:])

    def __repr__(self) -> str:
        return repr(self[:])

    def column(self, name: Literal["role", "at_peak"]) -> Iterable[Any]:
        """Return one attribute of each."""
        return map(getattr(self._table, name).__getitem__, self._numbers)


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
    places : sequence of Place
        Origins of the buffers, in text order.
    readers : tuple of (str, Shape)
        Copies of one of them to other layouts: instruction name and shape.
    """

    shape: Shape
    count: int
    nbytes: int
    logical_nbytes: int
    module: str = ""
    places: Sequence[Place] = ()
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
        return sum(self._column("at_peak"))

    def _column(self, name: Literal["role", "at_peak"]) -> Iterable[Any]:
        places = self.places
        return places.column(name) if isinstance(places, Places) else (getattr(place, name) for place in places)

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
        return bool(self.places) and CALLERS_ROLES.isdisjoint(self._column("role"))

    @property
    def jax_lines(self) -> tuple[str, ...]:
        """The change as lines of JAX; empty if there is none, or it cannot be expressed in JAX."""
        change, array = self.change, array_of(self.shape)
        if change is None or array is None:
            return ()
        return jax_lines(array, change, self._column("role"))

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
            "instructions": json_of(tuple(self.places)),
        }


def jax_lines(shape: Shape, change: Change, roles: Iterable[str]) -> tuple[str, ...]:
    """Return lines of JAX that apply a change to an argument or a result of `f`; empty for values inside a program.

    A ``Layout`` without tiles gets the compiler's own tiles. The compiler rejects other tiles in many programs, so
    there is no line for a layout with those.

    Parameters
    ----------
    shape : Shape
    change : Change
        A change of that shape.
    roles : iterable of str
        Roles of the buffers; the caller can choose the layouts of arguments and outputs.

    Examples
    --------
    >>> from fastindex.show.padding import cheapest_change
    >>> shape = Shape.parse("f32[1000,3]{1,0:T(8,128)}")
    >>> jax_lines(shape, cheapest_change(shape), ["argument"])
    ('jax.jit(f, in_shardings=Format(Layout((1, 0)), sharding))',)
    >>> jax_lines(shape, cheapest_change(shape), ["temporary"])
    ()
    """
    after = change.shape
    roles = set(roles)
    if not roles & CALLERS_ROLES:
        return ()
    if after.dimensions != shape.dimensions:
        return (f"x = x.reshape({after.dimensions})",)
    layout = after.layout
    if (layout.minor_to_major, layout.tiles) == (shape.layout.minor_to_major, shape.layout.tiles):
        return ()
    if layout.tiles and not is_tpu_default(after):
        return ()
    where = "in_shardings" if "argument" in roles else "out_shardings"
    return (f"jax.jit(f, {where}=Format(Layout({layout.major_to_minor}), sharding))",)


def cost_text(shape: Shape, change: Change, nbytes: int, copies: Iterable[tuple[str, Shape]]) -> str:
    """Describe the cost of a change if a consumer needs the old dimension order.

    The text shows a module's copies between layouts, but not what fusions and other consumers need.

    Parameters
    ----------
    shape : Shape
    change : Change
        A change of that shape.
    nbytes : int
        Size of one such buffer.
    copies : iterable of (str, Shape)
        Copies of the buffer to other layouts: instruction name and shape.
    """
    gone = [name for name, copy in copies if copy.equals(change.shape, ignore=("memory_space",))]
    if gone:
        return f"no longer needed: {', '.join(gone[:3])}, which now copies it into this layout"
    if (
        change.shape.dimensions == shape.dimensions
        and change.shape.layout.minor_to_major == shape.layout.minor_to_major
    ):
        return "the order stays the same, so consumers read it as before"
    return (
        f"a consumer that wants the old order copies it back, {bytes_text(nbytes)} each; whether one does is not known"
    )
