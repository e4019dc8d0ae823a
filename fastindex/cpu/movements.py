"""Runs a relayout between two addresses: its passes on threads, or slot by slot where there are no passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fastindex.arguments.addresses import address_of, expected_pair
from fastindex.arguments.buffers import aligned_bytes
from fastindex.cpu.index_programs import run
from fastindex.cpu.threads import run_chunks, run_together, thread_count
from fastindex.kernels.cpu import deal as deal_cpu
from fastindex.kernels.cpu import element_moves, packed_bits
from fastindex.kernels.cpu import narrow_transpose as narrow_transpose_cpu
from fastindex.kernels.cpu import pass_runner as relayout_steps
from fastindex.kernels.cpu import stream as stream_cpu
from fastindex.kernels.cpu import transpose as transpose_cpu
from fastindex.kernels.cpu.pass_runner import STEP_NUMBERS, TASKS, TASKS_AT_ONCE
from fastindex.kernels.cpu.pass_table import SCRATCH_FRONT_BYTES
from fastindex.lowering.index_program import conversion_program
from fastindex.lowering.passes import POWERS_OF_TWO, Pass, packed_passes, passes
from fastindex.lowering.relayout_loops import Strides
from fastindex.lowering.slot_format import SlotFormat
from fastindex.lowering.slot_moves import SlotMove, packed_byte, packing_loops, slot_move, unpacking_loops
from fastindex.shapes.shape import Shape

Bytes = NDArray[np.uint8]

#: Below this many bytes a call stays on the caller's thread.
SMALL_CALL_BYTES = 4 << 20

_CHUNK_BYTES = 1 << 18
_GATHERED_SLOTS = 1 << 15
_BITS_CHUNK = 1 << 20

_ADDRESS = types.int64
_TABLE = types.int64[::1]
_RANGE = (types.int64, types.int64)
_SCRATCH_BYTES = SCRATCH_FRONT_BYTES + max(
    stream_cpu.SCRATCH_BYTES, deal_cpu.SCRATCH_BYTES, transpose_cpu.SCRATCH_BYTES, narrow_transpose_cpu.SCRATCH_BYTES
)

#: The kernels of passes, by the name of the pass.
PASS_KERNELS = {
    "copy": stream_cpu.copy_chunks,
    "interleave": stream_cpu.interleave_chunks,
    "deal": deal_cpu.deal_chunks,
    "expand": stream_cpu.expand_chunks,
    "compress": stream_cpu.compress_chunks,
    "transpose": transpose_cpu.transpose_panels,
    "narrow transpose": narrow_transpose_cpu.narrow_panels,
    "strided": element_moves.copy_elements,
    "fill": element_moves.fill_runs,
}


def dispatcher_of(name: str, width: int, ways: int = 1) -> tuple[Any, tuple[types.Type, ...]]:
    """Return the dispatcher of a kernel, and the types that it is compiled for.

    Parameters
    ----------
    name : str
        As `Pass.kernel`, or "gather", "expand all" or "compress all".
    width : int
        Bytes of an element; where packed elements are expanded or compressed, their bits.
    ways : int
        1 where the kernel has no such parameter; 0 for a number that is no power of two.
    """
    if name in PASS_KERNELS:
        return PASS_KERNELS[name], (types.literal(width), types.literal(ways), *(_ADDRESS,) * 4, *_RANGE)
    ends = (types.literal(width), _ADDRESS, _ADDRESS)
    kernels: dict[str, tuple[Any, tuple[types.Type, ...]]] = {
        "gather": (element_moves.gather_slots, (*ends, _TABLE, _ADDRESS)),
        "expand all": (packed_bits.expand_bits, (*ends, *_RANGE)),
        "compress all": (packed_bits.compress_bits, (*ends, *_RANGE)),
    }
    return kernels[name]


@cache
def pass_kernel(name: str, width: int, ways: int) -> int:
    """Compile the kernel of a pass, or load it from the cache, and return its address."""
    dispatcher, signature = dispatcher_of(name, width, ways)
    dispatcher.compile(signature)
    compiled = dispatcher.overloads[signature]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name))


@cache
def kernel_of(name: str, width: int) -> Callable[..., None]:
    """Compile a kernel that is no pass, or load it from the cache."""
    dispatcher, signature = dispatcher_of(name, width)
    compiled: Callable[..., None] = dispatcher.compile(signature)
    return compiled


class _Scratch(threading.local):
    """Memory of a thread for the kernels it runs, on a line boundary."""

    def __init__(self) -> None:
        self._buffer = np.empty(_SCRATCH_BYTES + 64, np.uint8)
        self.address = -(-self._buffer.ctypes.data // 64) * 64


#: The memory that kernels use on this thread.
thread_scratch = _Scratch()


@lru_cache(maxsize=64)
def _repeated(pattern: bytes) -> tuple[Bytes, int]:
    """Give 128 bytes of a pattern, and their address."""
    repeated = np.frombuffer((pattern * -(-128 // len(pattern)))[:128], np.uint8)
    return repeated, address_of(repeated)


class Steps:
    """Passes with their kernels compiled, as the numbers that `run_steps` takes.

    Attributes
    ----------
    address, count : int
        Where the numbers are, and of how many passes.
    is_small : bool
        Whether a call stays on the caller's thread.
    """

    def __init__(self, steps: Sequence[Pass]) -> None:
        self._tables = [_table_of(step) for step in steps]
        rows = [_numbers_of(step, table) for step, (table, _) in zip(steps, self._tables, strict=True)]
        self._rows = np.array(rows, np.int64).reshape(len(rows), STEP_NUMBERS)
        self.address, self.count = address_of(self._rows), len(steps)
        self.is_small = sum(step.tasks * step.task_bytes for step in steps) <= SMALL_CALL_BYTES
        self._chunks = sum(-(-row[TASKS] // row[TASKS_AT_ONCE]) for row in rows)

    def run(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Run them between two addresses, `pattern` being the bytes of one value of padding."""
        kept = _repeated(pattern)
        addresses = self.address, self.count, destination, source, kept[1]
        helpers = 0 if self.is_small else min(thread_count(threads), self._chunks) - 1
        if helpers <= 0:
            _driver()(*addresses, thread_scratch.address, 0)
            return
        counters = np.zeros(self.count, np.int64)
        shared, run = address_of(counters), _driver()
        run_together(lambda: run(*addresses, thread_scratch.address, shared), helpers)


def _table_of(step: Pass) -> tuple[NDArray[np.int64], Pass]:
    """Give the table of a pass, and the pass itself, which keeps alive what the table points to."""
    first = step.tables[0] if step.tables else step.geometry
    second = step.tables[1] if len(step.tables) > 1 else step.geometry
    numbers = len(step.outer), *map(address_of, (step.outer, first, second)), len(second), address_of(step.geometry)
    return np.array(numbers, np.int64), step


def _numbers_of(step: Pass, table: NDArray[np.int64]) -> list[int]:
    source_start, destination_start = step.source_start, step.destination_start
    width, ways = step.width, 1
    match step.kernel:
        case "copy" | "fill":
            width = 1
        case "expand":
            width = 8 // step.ways
            source_start //= step.ways
        case "compress":
            width = 8 // step.ways
            destination_start //= step.ways
        case "interleave" | "deal":
            vectors = step.ways in POWERS_OF_TWO and step.ways * step.width <= 32
            padded = step.kernel == "interleave" and step.geometry[stream_cpu.PADDING]
            ways = step.ways if vectors and not padded else 0
    at_once = max(1, min(_CHUNK_BYTES // step.task_bytes, step.tasks))
    starts = source_start, destination_start
    fills = step.kernel == "fill"
    return [pass_kernel(step.kernel, width, ways), address_of(table), *starts, step.tasks, at_once, fills]


@cache
def _driver() -> Callable[..., None]:
    compiled: Callable[..., None] = relayout_steps.run_steps.compile((types.int64,) * 7)
    return compiled


@dataclass(frozen=True, eq=False)
class Movement:
    """How data gets from one side to the other.

    Attributes
    ----------
    source, destination : Shape or Strides
    slots : SlotMove
    passes : tuple of Pass or None
        None where every slot has to be looked up.
    converts : bool
        Whether the passes expand or compress packed slots themselves.
    """

    source: Shape | Strides
    destination: Shape | Strides
    slots: SlotMove
    passes: tuple[Pass, ...] | None
    converts: bool = False

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
            lines.append("\n".join(step.describe() for step in self.passes) or "nothing to move")
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
            self.steps.run(source, destination, padding, threads)
            return
        assert isinstance(self.source, Shape)
        assert isinstance(self.destination, Shape)
        move_slots(self.source, self.destination, self.slots.width, source, destination, padding, threads)

    @cached_property
    def steps(self) -> Steps:
        """The passes, ready to run; none where every slot has to be looked up."""
        return Steps(self.passes or ())


class OneCall:
    """A movement between two plain arrays as one native call, which looks at the arrays too.

    Attributes
    ----------
    run : callable
        Takes the ``id`` of both, `address` and the address of a thread's scratch memory; tells whether it has moved
        anything, or leaves the arrays to be looked at one by one.
    address : int
    is_small : bool
        Whether no other thread would help.
    """

    def __init__(
        self,
        moved: Movement,
        source: tuple[np.dtype[Any], int],
        destination: tuple[np.dtype[Any], int],
        pattern: bytes,
    ) -> None:
        self.run: Callable[[int, int, int, int], bool] = _never
        self.address, self.is_small = 0, False
        if moved.passes is None or moved.unpacks or moved.packs:
            return
        steps, (repeated, pattern_address) = moved.steps, _repeated(moved.padding(pattern))
        numbers = *expected_pair(source, destination), steps.address, steps.count, pattern_address
        table = np.array(numbers, np.int64)
        self._kept = table, repeated, steps, source, destination
        self.run, self.address, self.is_small = _plain_driver(), address_of(table), steps.is_small


def _never(source: int, target: int, numbers: int, scratch: int) -> bool:
    return False


@cache
def _plain_driver() -> Callable[[int, int, int, int], bool]:
    compiled: Callable[[int, int, int, int], bool] = relayout_steps.run_plain.compile((types.int64,) * 4)
    return compiled


def move_slots(
    source: Shape,
    destination: Shape,
    width: int,
    source_address: int,
    destination_address: int,
    pattern: bytes,
    threads: int | None,
    slots: range | None = None,
) -> None:
    """Move what lies in some slots of the destination, or in all, by looking up the slot of the source for each."""
    program = conversion_program(destination, source)
    kernel = kernel_of("gather", width)
    repeated = np.frombuffer(pattern, np.uint8)
    wanted = range(destination.slot_count) if slots is None else slots

    def task(begin: int, end: int) -> None:
        found = np.empty(end - begin, np.int64)
        run(program, (wanted[begin:end],), (found,), found.shape, mark=True, threads=1)
        target = destination_address + wanted[begin] * width
        kernel(width, target, source_address, found, address_of(repeated))

    workers = 1 if len(wanted) <= _GATHERED_SLOTS else thread_count(threads)
    run_chunks(task, len(wanted), workers, _GATHERED_SLOTS)


def run_pass(step: Pass, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
    """Run one pass between two addresses; it adds where it starts on each side."""
    Steps((step,)).run(source, destination, pattern, threads)


@lru_cache(maxsize=512)
def movement(source: Shape | Strides, destination: Shape | Strides) -> Movement | None:
    """Plan how data gets from one side to the other; kept for the next call.

    Parameters
    ----------
    source, destination : Shape or Strides
        Two layouts of one array, at least one a shape.

    Returns
    -------
    Movement or None
        None where strides share no loops with a shape.
    """
    slots = slot_move(source, destination)
    if slots.loops is None:
        slot_by_slot = isinstance(source, Shape) and isinstance(destination, Shape)
        return Movement(source, destination, slots, None) if slot_by_slot else None
    if slots.conversion is not None:
        packed = slots.source if slots.source.is_packed else slots.destination
        converting = packed_passes(slots.loops, 8 // packed.bits, slots.conversion)
        if converting is not None:
            return Movement(source, destination, slots, converting, converts=True)
    return Movement(source, destination, slots, passes(slots.loops, slots.width))


def sure_movement(source: Shape, destination: Shape) -> Movement:
    """Return the movement between two shapes, which there always is."""
    found = movement(source, destination)
    assert found is not None
    return found


def unpack_slots(slots: SlotFormat, count: int, source: int, target: int, threads: int | None) -> None:
    """Give the values of `count` slots that are no plain values bytes of their own."""
    if slots.is_packed:
        _convert_bits("expand all", slots.bits, count, source, target, threads)
    elif count:
        _wide_slots(slots, count, False).run(source, target, b"\0", threads)


def pack_slots(slots: SlotFormat, count: int, source: int, target: int, threads: int | None) -> None:
    """Store `count` values as narrow, or as wide, as slots are."""
    if slots.is_packed:
        _convert_bits("compress all", slots.bits, count, source, target, threads)
    elif count:
        _wide_slots(slots, count, True).run(source, target, b"\0", threads)


def _convert_bits(name: str, bits: int, count: int, source: int, target: int, threads: int | None) -> None:
    kernel = kernel_of(name, bits)
    workers = 1 if count <= _BITS_CHUNK else thread_count(threads)
    run_chunks(lambda begin, end: kernel(bits, target, source, begin, end), count, workers, _BITS_CHUNK)


@lru_cache(maxsize=64)
def _wide_slots(slots: SlotFormat, count: int, packing: bool) -> Steps:
    loops = packing_loops(slots, count) if packing else unpacking_loops(slots, count)
    return Steps(passes(loops, 1))
