"""Moves data between two addresses: by passes on threads, or slot by slot where there are no passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fastindex.algebra.shared_digits import Strides
from fastindex.arrays.addresses import address_of
from fastindex.arrays.buffers import aligned_bytes
from fastindex.arrays.windows import Counted
from fastindex.core.shape import Shape
from fastindex.core.slot_format import SlotFormat
from fastindex.first_use import load
from fastindex.index.executors import run
from fastindex.index.programs import conversion_program
from fastindex.lazy import lazy_property
from fastindex.moving.choice import select_plan
from fastindex.moving.counts import for_scattered_lines, read_lines, spanned_bytes
from fastindex.moving.moves.nests.plan import passes, whole_buffer_passes
from fastindex.moving.numpy_moves import look_up_by_numpy, move_by_numpy, pack_by_numpy, unpack_by_numpy
from fastindex.moving.passes import Pass, with_tables
from fastindex.moving.problem import Problem, SlotMove, packed_byte, packing_loops, slot_move, unpacking_loops
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
    """How data moves from one layout to another.

    Attributes
    ----------
    source, destination : Shape or Strides
    slots : SlotMove
    tuning : Tuning
    machine : Machine, optional
        That it is planned for; None for this one, which is asked once kernels are to run.
    choice : str, optional
        The name of a candidate to take instead of the one that costs least. One that does not apply is ignored.
    """

    source: Shape | Strides
    destination: Shape | Strides
    slots: SlotMove
    tuning: Tuning
    machine: Machine | None = None
    choice: str | None = None

    @lazy_property
    def problem(self) -> Problem:
        """The problem that candidates solve."""
        if self.machine is None:
            load_kernels()
        return Problem(self.source, self.destination, self.slots, self.machine or this_machine(), self.tuning)

    @lazy_property
    def _chosen(self) -> tuple[tuple[Pass, ...] | None, bool]:
        plan = select_plan(self.problem, self.choice or (self.known.name if self.known else None))
        return None if plan.drafts is None else with_tables(plan.drafts), plan.converts

    @lazy_property
    def depends_on_lines(self) -> bool:
        """Whether a destination that begins within a line has a plan of its own: it is written past the cache."""
        least = max(self.tuning.streamed_bytes, self.tuning.shifted_bytes)
        return not self.tuning.line_offset and self.problem.written_bytes >= least

    @lazy_property
    def within_lines(self) -> Movement:
        """The movement to a destination that begins within a line."""
        return replace(self, tuning=replace(self.tuning, line_offset=LANE_BYTES))

    @lazy_property
    def known(self) -> Choice | None:
        """What has been timed on this machine before, if anything has."""
        load("fastindex.moving.timed_choices")
        from fastindex.moving.timed_choices import remembered

        if isinstance(self.source, Shape) and isinstance(self.destination, Shape) and self.choice is None:
            tuning = replace(self.tuning, line_offset=0)
            return remembered(self.source, self.destination, self.problem.machine, tuning)
        return None

    @property
    def passes(self) -> tuple[Pass, ...] | None:
        """The passes; None where every slot has to be looked up."""
        return self._chosen[0]

    @property
    def converts(self) -> bool:
        """Whether the passes expand or compress packed slots themselves."""
        return self._chosen[1]

    @property
    def unpacks(self) -> bool:
        """Whether the slots of the source become values before anything moves."""
        return self.slots.unit == "value" and not self.converts and not self.slots.source.is_plain

    @property
    def packs(self) -> bool:
        """Whether values become the slots of the destination after everything has moved."""
        return self.slots.unit == "value" and not self.converts and not self.slots.destination.is_plain

    def describe(self) -> str:
        """Return one line per pass, and one for what comes before and after them."""
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
        """Return what the passes write to padding, for the bytes of one unpacked value."""
        if self.converts and self.slots.destination.is_packed:
            return packed_byte(pattern, self.slots.destination.bits)
        return self.slots.padding(pattern)

    def run(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Move from one address to the other, and write `pattern`, an unpacked value, to all padding."""
        slots = self.slots
        if bytes_by_numpy(self.nbytes):
            with numpys_time():
                move_by_numpy((self.source, self.destination), slots, source, destination, pattern)
            return
        self.run_kernels(source, destination, pattern, threads)

    def run_kernels(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Do the same by kernels, however small the arrays are."""
        if destination % LINE_BYTES and self.depends_on_lines:
            self.within_lines.run_kernels(source, destination, pattern, threads)
            return
        slots = self.slots
        if self.unpacks:
            assert isinstance(self.source, Shape)
            values = aligned_bytes(self.source.slot_count * slots.width)
            unpack_slots(slots.source, self.source.slot_count, source, address_of(values), threads)
            source = address_of(values)
        if not self.packs:
            self._move(source, destination, pattern, threads)
            return
        assert isinstance(self.destination, Shape)
        moved = aligned_bytes(self.destination.slot_count * slots.width)
        self._move(source, address_of(moved), pattern, threads)
        pack_slots(slots.destination, self.destination.slot_count, address_of(moved), destination, threads)

    def _move(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        padding = self.padding(pattern)
        if self.passes is not None:
            self.compiled.run(source, destination, padding, threads)
            return
        assert isinstance(self.source, Shape)
        assert isinstance(self.destination, Shape)
        sides, addresses = (self.source, self.destination), (source, destination)
        look_up_slots(sides, addresses, self.slots.width, padding, threads, tuning=self.tuning)

    @lazy_property
    def nbytes(self) -> int:
        """Bytes of the larger side."""
        sizes = [side.nbytes for side in (self.source, self.destination) if isinstance(side, Shape)]
        return max(sizes)

    @lazy_property
    def compiled(self) -> CompiledPasses:
        """The passes, ready to run; none where every slot has to be looked up."""
        check_runs_here(self.machine)
        from fastindex.moving.compiled_passes import CompiledPasses

        return CompiledPasses(self.passes or (), self.tuning)

    @property
    def alone(self) -> CompiledPasses | None:
        """The compiled passes, where nothing is unpacked, packed or looked up; None otherwise."""
        return None if self.passes is None or self.unpacks or self.packs else self.compiled


def look_up_slots(
    sides: tuple[Shape, Shape],
    addresses: tuple[int, int],
    width: int,
    padding: bytes,
    threads: int | None,
    slots: range | None = None,
    tuning: Tuning = TUNING,
) -> None:
    """Fill some slots of the destination, or all, by looking up the source slot of each.

    Parameters
    ----------
    sides, addresses : pair
        Source and destination.
    width : int
        Bytes of a slot.
    padding : bytes
        One slot of it.
    threads : int, optional
    slots : range, optional
    tuning : Tuning, optional
    """
    source, destination = sides
    wanted = range(destination.slot_count) if slots is None else slots
    if bytes_by_numpy(len(wanted) * width):
        with numpys_time():
            look_up_by_numpy(sides, width, *addresses, padding, wanted)
        return
    from fastindex.moving.compiled_passes import gather_kernel

    program = conversion_program(destination, source)
    kernel = gather_kernel()
    repeated = np.frombuffer(padding, np.uint8)

    def task(begin: int, end: int) -> None:
        found = np.empty(end - begin, np.int64)
        run(program, (Counted(wanted[begin], wanted.step, found.shape),), (found,), found.shape, mark=True, threads=1)
        kernel(width, addresses[1] + wanted[begin] * width, addresses[0], found, address_of(repeated))

    workers = 1 if len(wanted) <= tuning.least_conversion_share else thread_count(threads)
    run_chunks(task, len(wanted), workers, tuning.least_conversion_share)


@lru_cache(maxsize=512)
def movement(
    source: Shape | Strides, destination: Shape | Strides, tuning: Tuning = TUNING, machine: Machine | None = None
) -> Movement | None:
    """Plan how data moves from one side to the other; plans are cached.

    Parameters
    ----------
    source, destination : Shape or Strides
        Two layouts of one array, at least one a shape.
    tuning : Tuning, optional
    machine : Machine, optional
        This one by default.

    Returns
    -------
    Movement or None
        None where strides share no loops with a shape.
    """
    slots = slot_move(source, destination)
    if slots.loops is not None:
        count = sum(nest.element_count for nest in (*slots.loops.copies, *slots.loops.fills))
        read = LINE_BYTES * read_lines(slots.loops, slots.width)
        spanned = spanned_bytes(slots.loops, slots.width)
        tuning = for_scattered_lines(tuning, read, spanned, count * slots.width)
    found = Movement(source, destination, slots, tuning, machine)
    if slots.loops is None and not (isinstance(source, Shape) and isinstance(destination, Shape)):
        # Without loops, NumPy looks slots up, and strides have none.
        return None if may_be_numpy(found.nbytes, MOST_BYTES) or found.passes is None else found
    return found


def sure_movement(
    source: Shape, destination: Shape, tuning: Tuning = TUNING, machine: Machine | None = None
) -> Movement:
    """Return the movement between two shapes, which there always is."""
    found = movement(source, destination, tuning, machine)
    assert found is not None
    return found


def unpack_slots(slots: SlotFormat, count: int, source: int, target: int, threads: int | None) -> None:
    """Unpack `count` slots into values."""
    if count and bytes_by_numpy(count * slots.value_bytes):
        with numpys_time():
            unpack_by_numpy(slots, count, source, target)
    elif count:
        _conversion(slots, count, False).run(source, target, b"\0", threads)


def pack_slots(slots: SlotFormat, count: int, source: int, target: int, threads: int | None) -> None:
    """Pack `count` values into slots."""
    if count and bytes_by_numpy(count * slots.value_bytes):
        with numpys_time():
            pack_by_numpy(slots, count, source, target)
    elif count:
        _conversion(slots, count, True).run(source, target, b"\0", threads)


@lru_cache(maxsize=64)
def _conversion(slots: SlotFormat, count: int, packing: bool) -> CompiledPasses:
    from fastindex.moving.compiled_passes import CompiledPasses

    if slots.is_packed:
        kernel = "compress" if packing else "expand"
        return CompiledPasses(whole_buffer_passes(count, 8 // slots.bits, kernel, this_machine()))
    loops = (packing_loops if packing else unpacking_loops)(slots, count)
    return CompiledPasses(passes(loops, 1, this_machine()))
