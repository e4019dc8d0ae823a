"""Move data between two addresses: by passes on threads, or slot by slot where there are no passes.

Elements may be cast during the move. Where both sides hold plain values and share loops, passes cast them within the
cache, so memory is read once and written once. All others, packed elements and tiles that share no loops, are first
cast, in the order of the source, to a buffer of the target type, which then moves like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Cast, MisfitError, cast_of, first_misfit, of_type
from fastindex.algebra.shared_digits import Strides
from fastindex.algebra.sides import RegroupedShape
from fastindex.arrays.arrays import address_of
from fastindex.arrays.buffers import aligned_bytes
from fastindex.arrays.index_arguments import Counted
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.core.sizes import SlotFormat
from fastindex.first_use import load
from fastindex.index.executors import run
from fastindex.index.programs import conversion_program
from fastindex.lazy import lazy_property
from fastindex.moving.choice import select_plan
from fastindex.moving.counts import for_scattered_lines
from fastindex.moving.moves.casts.plan import cast_passes, contiguous_cast
from fastindex.moving.moves.nests.plan import passes, whole_buffer_passes
from fastindex.moving.numpy_moves import convert_by_numpy, move_by_numpy, scratch, strided_at
from fastindex.moving.passes import Pass, with_tables
from fastindex.moving.problem import (
    PLANS_KEPT,
    Problem,
    SlotMove,
    packed_byte,
    packing_loops,
    slot_move,
    unpacking_loops,
)
from fastindex.runtime.first_answer import MOST_BYTES, bytes_by_numpy, load_kernels, may_be_numpy, numpys_time
from fastindex.runtime.machine import Machine, check_runs_here, this_machine
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES
from fastindex.runtime.threads import run_chunks, thread_count
from fastindex.runtime.tuning import TUNING, Tuning

if TYPE_CHECKING:
    from fastindex.moving.compiled_passes import CompiledPasses
    from fastindex.moving.timed_choices import Choice


@dataclass(frozen=True, eq=False)
class Movement:
    """A planned move of data from one layout to another.

    Attributes
    ----------
    source, destination : Shape or Strides
    slots : SlotMove
    tuning : Tuning
    machine : Machine, optional
        The machine to plan for; None for this one, which is queried once kernels are needed.
    choice : str, optional
        The name of a candidate to use instead of the cheapest. A candidate that does not apply is ignored.
    cast : Cast, optional
        The cast of the elements.
    """

    source: Shape | Strides
    destination: Shape | Strides
    slots: SlotMove
    tuning: Tuning
    machine: Machine | None = None
    choice: str | None = None
    cast: Cast | None = None

    @lazy_property
    def exists(self) -> bool:
        """Whether the move is possible: strides may share no loops with a shape, and have no slots to look up."""
        if isinstance(self.source, Shape) and isinstance(self.destination, Shape):
            return True
        if self.cast is not None or self.slots.loops is not None:
            return self.slots.loops is not None
        return not may_be_numpy(self.nbytes, MOST_BYTES) and self.passes is not None

    @lazy_property
    def problem(self) -> Problem:
        """The problem that candidates solve."""
        return Problem(self.source, self.destination, self.slots, self._machine, self.tuning)

    @property
    def _machine(self) -> Machine:
        if self.machine is None:
            load_kernels()
        return self.machine or this_machine()

    @lazy_property
    def _chosen(self) -> tuple[tuple[Pass, ...] | None, bool]:
        if self.cast is not None:
            loops = self.slots.loops_of_values
            return None if loops is None else cast_passes(loops, self.cast, self._machine, self.tuning), False
        plan = select_plan(self.problem, self.choice or (self.known.name if self.known else None))
        return None if plan.drafts is None else with_tables(plan.drafts), plan.converts

    @lazy_property
    def depends_on_lines(self) -> bool:
        """Whether a destination off line boundaries has a separate plan, because it uses non-temporal stores."""
        least = max(self.tuning.streamed_bytes, self.tuning.shifted_bytes)
        return self.cast is None and not self.tuning.line_offset and self.problem.written_bytes >= least

    @lazy_property
    def within_lines(self) -> Movement:
        """The movement to a destination off line boundaries."""
        return replace(self, tuning=replace(self.tuning, line_offset=LANE_BYTES))

    @lazy_property
    def known(self) -> Choice | None:
        """The stored timings for this machine, or None; a cast has a single candidate, and no timings."""
        if self.cast is not None:
            return None
        load("fastindex.moving.timed_choices")
        from fastindex.moving.timed_choices import remembered

        if isinstance(self.source, Shape) and isinstance(self.destination, Shape) and self.choice is None:
            tuning = replace(self.tuning, line_offset=0)
            return remembered(self.source, self.destination, self.problem.machine, tuning)
        return None

    @property
    def passes(self) -> tuple[Pass, ...] | None:
        """The passes; None where every slot has to be looked up, or elements are cast before they move."""
        return self._chosen[0]

    @property
    def converts(self) -> bool:
        """Whether the passes expand or compress packed slots themselves."""
        return self._chosen[1]

    @property
    def unpacks(self) -> bool:
        """Whether the slots of the source are unpacked to values before the move."""
        return self.slots.unit == "value" and not self.converts and not self.slots.source.is_plain

    @property
    def packs(self) -> bool:
        """Whether values are packed into the slots of the destination after the move."""
        return self.slots.unit == "value" and not self.converts and not self.slots.destination.is_plain

    def describe(self) -> str:
        """Return one line per pass, and one for each conversion before or after them."""
        if self.cast is not None and self.passes is None:
            return f"first every element from {self.cast.source} to {self.cast.target}\n{self._after.describe()}"
        source, destination = self.slots.source, self.slots.destination
        lines = [f"first every slot of {source.bits} bits to {source.value_bytes} bytes"] if self.unpacks else []
        if self.passes is None:
            lines.append(
                "slot by slot, through the index programs: the tiles of the two layouts do not divide each other"
            )
        else:
            lines.append("\n".join(one.describe() for one in self.passes) or "nothing to move")
        if self.packs:
            lines.append(f"last every value of {destination.value_bytes} bytes to {destination.bits} bits")
        return "\n".join(lines)

    def padding(self, pattern: bytes) -> bytes:
        """Return the bytes that the passes write to padding, given one unpacked value."""
        if self.converts and self.slots.destination.is_packed:
            return packed_byte(pattern, self.slots.destination.bits)
        return self.slots.padding(pattern)

    def run(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Move from one address to the other, and write `pattern`, an unpacked value, to all padding.

        Raises
        ------
        MisfitError
            The cast is checked, and an element does not fit the target type.
        """
        if bytes_by_numpy(self.nbytes):
            with numpys_time():
                self.run_by_numpy(source, destination, pattern)
        else:
            self.run_kernels(source, destination, pattern, threads)

    def run_by_numpy(self, source: int, destination: int, pattern: bytes) -> None:
        """Do the same by NumPy alone, for any size."""
        if self.cast is None:
            move_by_numpy((self.source, self.destination), self.slots, source, destination, pattern)
            return
        if self.cast.is_checked:
            self._require_fitting(self.cast, source)
        values = self._values_by_numpy(self.cast, source)
        self._after.run_by_numpy(values.ctypes.data, destination, pattern)

    def run_kernels(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Do the same by kernels, for any size."""
        if self.cast is not None:
            self._run_cast(self.cast, source, destination, pattern, threads)
            return
        if destination % LINE_BYTES and self.depends_on_lines:
            self.within_lines.run_kernels(source, destination, pattern, threads)
            return
        slots, padding = self.slots, self.padding(pattern)
        if self.unpacks and isinstance(self.source, Shape):
            values = unpacked_slots(slots.source, self.source.slot_count, source, threads)
            source = address_of(values)
        if not (self.packs and isinstance(self.destination, Shape)):
            self._move(source, destination, padding, threads)
            return
        moved = aligned_bytes(self.destination.slot_count * slots.width)
        self._move(source, address_of(moved), padding, threads)
        pack_slots(slots.destination, self.destination.slot_count, address_of(moved), destination, threads)

    def _move(self, source: int, destination: int, padding: bytes, threads: int | None) -> None:
        """Run the passes; without passes, look up the source slot of each slot of the destination."""
        if self.passes is not None:
            self.compiled.run(source, destination, padding, threads)
            return
        from fastindex.runtime.machine_code import function

        assert isinstance(self.source, Shape)
        assert isinstance(self.destination, Shape)
        width, count, least = self.slots.width, self.destination.slot_count, self.tuning.least_conversion_share
        program, kernel = conversion_program(self.destination, self.source), function("gather_slots")
        repeated = np.frombuffer(padding, np.uint8)

        def task(begin: int, end: int) -> None:
            found = np.empty(end - begin, np.int64)
            run(program, (Counted(begin, 1, found.shape),), (found,), found.shape, mark=True, threads=1)
            place = destination + begin * width
            kernel(width, place, source, address_of(found), len(found), address_of(repeated))

        run_chunks(task, count, 1 if count <= least else thread_count(threads), least)

    # Casts

    @lazy_property
    def _between(self) -> Shape:
        """The layout of the cast elements before the move: the source's, or the destination's for a strided source."""
        side = self.source if isinstance(self.source, Shape) else self.destination
        assert isinstance(side, Shape)
        assert isinstance(self.cast, Cast)
        return of_type(side, self.cast.target)

    @lazy_property
    def _after(self) -> Movement:
        """The move of the cast elements to the destination."""
        return movement(self._between, self.destination, self.tuning, self.machine)

    def _run_cast(self, cast: Cast, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Cast within the passes; without passes, cast the whole buffer, padding included, then move it."""
        if self.passes is not None:
            with self._checked(cast, source):
                self.compiled.run(source, destination, pattern, threads)
            return
        converted = aligned_bytes(self._between.nbytes)
        if isinstance(self.source, Shape):
            from fastindex.moving.compiled_passes import CompiledPasses

            form, count, begin = self.slots.source, self.source.slot_count, source
            if not form.is_plain:
                values = unpacked_slots(form, count, source, threads)
                begin = address_of(values)
            with self._checked(cast, source):
                steps = CompiledPasses(contiguous_cast(count, cast), self.tuning)
                steps.run(begin, address_of(converted), b"\0", threads)
        else:
            before = movement(self.source, self._between, self.tuning, self.machine, cast)
            before.run_kernels(source, address_of(converted), bytes(cast.target.nbytes), threads)
        self._after.run_kernels(address_of(converted), destination, pattern, threads)

    def _values_by_numpy(self, cast: Cast, source: int) -> NDArray[np.uint8]:
        """Return the elements at `source` cast to the target type, in the layout `_between`."""
        plain = of_type(self._between, cast.source)
        values = scratch(0)
        if not isinstance(self.source, Shape) or not self.slots.source.is_plain:
            values, sides = scratch(plain.nbytes), (self.source, plain)
            move_by_numpy(sides, slot_move(*sides), source, values.ctypes.data, bytes(cast.source.nbytes))
            source = values.ctypes.data
        return convert_by_numpy(cast, plain.slot_count, source)

    @contextmanager
    def _checked(self, cast: Cast, source: int) -> Iterator[None]:
        """Raise MisfitError after the block if its kernels found an element at `source` that does not fit."""
        before = cast.counted_misfits if cast.is_checked else 0
        yield
        # The counter includes concurrent calls of the cast, and padding: check the elements.
        if cast.is_checked and cast.counted_misfits != before:
            self._require_fitting(cast, source)

    def _require_fitting(self, cast: Cast, source: int) -> None:
        """Raise MisfitError for the first element at `source` that does not fit the target type."""
        side, dtype = self.source, cast.source.numpy_dtype
        if isinstance(side, Shape):
            plain = Shape(side.element_type, side.dimensions)
            held = scratch(plain.nbytes)
            stored = side.shape if isinstance(side, RegroupedShape) else side
            movement(stored, plain, self.tuning).run(source, held.ctypes.data, bytes(dtype.itemsize), None)
            values = held.view(dtype).reshape(plain.dimensions)
        else:
            values = strided_at(source, side.dimensions, [dtype.itemsize * stride for stride in side.strides], dtype)
        found = first_misfit(values, cast.source, cast.target)
        if found is not None:
            raise MisfitError(*found, cast.target)

    @lazy_property
    def nbytes(self) -> int:
        """Bytes of the larger side."""
        sizes = [side.nbytes for side in (self.source, self.destination) if isinstance(side, Shape)]
        return max(sizes)

    @lazy_property
    def compiled(self) -> CompiledPasses:
        """The passes, compiled; empty where every slot has to be looked up."""
        check_runs_here(self.machine)
        from fastindex.moving.compiled_passes import CompiledPasses

        return CompiledPasses(self.passes or (), self.tuning)

    @property
    def is_of_passes(self) -> bool:
        """Whether passes do the whole move, without temporary arrays: no unpacking or packing, no check of misfits."""
        is_checked = self.cast is not None and self.cast.is_checked
        return self.passes is not None and not (self.unpacks or self.packs or is_checked)


@lru_cache(maxsize=PLANS_KEPT)
def movement(
    source: Shape | Strides,
    destination: Shape | Strides,
    tuning: Tuning = TUNING,
    machine: Machine | None = None,
    cast: Cast | None = None,
) -> Movement:
    """Plan a move of data from one side to the other; plans are cached.

    Parameters
    ----------
    source, destination : Shape or Strides
        Two layouts of one array, at least one a shape.
    tuning : Tuning, optional
    machine : Machine, optional
        This one by default.
    cast : Cast, optional
        The cast of the elements of the source.

    Returns
    -------
    Movement
        See `Movement.exists` where a side is strides.
    """
    slots = slot_move(source, destination, cast)
    if cast is None and slots.loops is not None:
        tuning = for_scattered_lines(tuning, slots.loops, slots.width)
    return Movement(source, destination, slots, tuning, machine, cast=cast)


def cast_between(source: ElementType, destination: ElementType, is_checked: bool) -> Cast | None:
    """Return the cast from one element type to another, None where they are equal.

    Parameters
    ----------
    source, destination : ElementType
    is_checked : bool
        Whether an integer out of range of a target type of fewer than 8 bits is an error.
    """
    return None if source is destination or source == destination else cast_of(source, destination, is_checked)


def movement_between(
    source: Shape,
    destination: Shape,
    tuning: Tuning = TUNING,
    is_checked: bool = False,
    machine: Machine | None = None,
) -> Movement:
    """Return the movement between two shapes, with a cast where their element types differ."""
    cast = cast_between(source.element_type, destination.element_type, is_checked)
    return movement(source, destination, tuning, machine, cast)


def unpacked_slots(slots: SlotFormat, count: int, source: int, threads: int | None) -> NDArray[np.uint8]:
    """Unpack `count` slots; return the values."""
    values = aligned_bytes(count * slots.value_bytes)
    if count:
        _conversion(slots, count, False).run(source, address_of(values), b"\0", threads)
    return values


def pack_slots(slots: SlotFormat, count: int, source: int, target: int, threads: int | None) -> None:
    """Pack `count` values into slots."""
    if count:
        _conversion(slots, count, True).run(source, target, b"\0", threads)


@lru_cache(maxsize=64)
def _conversion(slots: SlotFormat, count: int, packing: bool) -> CompiledPasses:
    from fastindex.moving.compiled_passes import CompiledPasses

    if slots.is_packed:
        kernel = "compress" if packing else "expand"
        return CompiledPasses(whole_buffer_passes(count, 8 // slots.bits, kernel, this_machine()))
    loops = (packing_loops if packing else unpacking_loops)(slots, count)
    return CompiledPasses(passes(loops, 1, this_machine()))
