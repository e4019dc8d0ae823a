"""Runs a relayout between two addresses: its passes on threads, or slot by slot where there are no passes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fastindex.array_address import address_of
from fastindex.execution import run
from fastindex.kernels import element_moves, packed_bits, stream_cpu, transpose_cpu
from fastindex.lowering.index_program import conversion_program
from fastindex.lowering.relayout_loops import Strides, grouped, relayout_loops
from fastindex.lowering.relayout_plan import POWERS_OF_TWO, Pass, packed_passes, passes
from fastindex.shape import Shape
from fastindex.threads import run_chunks, thread_count

Bytes = NDArray[np.uint8]

#: Below this many bytes a call stays on the caller's thread.
SMALL_CALL_BYTES = 2 << 20

_CHUNK_BYTES = 1 << 20
_GATHERED_SLOTS = 1 << 15
_BITS_CHUNK = 1 << 20

_ADDRESS = types.int64
_LOOPS = types.int64[:, ::1]
_TABLE = types.int64[::1]
_RANGE = (types.int64, types.int64)
_SCRATCH_BYTES = max(stream_cpu.SCRATCH_BYTES, transpose_cpu.SCRATCH_BYTES)


@cache
def kernel_of(name: str, width: int, ways: int) -> Callable[..., None]:
    """Compile a kernel, or load it from the cache.

    Parameters
    ----------
    name : str
        As `Pass.kernel`; or "gather", "expand all" and "compress all". Where packed elements are expanded or
        compressed, their bits take the place of the width.
    width, ways : int
        1 where the kernel has no such parameter; 0 ways for a number that is no power of two.
    """
    w = types.literal(width)
    ends = (_ADDRESS, _ADDRESS)
    chunked = (*ends, _LOOPS, _LOOPS)
    kernels: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "copy": (stream_cpu.copy_chunks, (*chunked, _TABLE, _ADDRESS, *_RANGE)),
        "interleave": (
            stream_cpu.interleave_chunks,
            (w, types.literal(ways), *chunked, _TABLE, _TABLE, _ADDRESS, *_RANGE),
        ),
        "deal": (
            stream_cpu.deal_chunks,
            (w, types.literal(ways), *chunked, _TABLE, _TABLE, _ADDRESS, *_RANGE),
        ),
        "transpose": (
            transpose_cpu.transpose_panels,
            (w, *ends, _LOOPS, _TABLE, _TABLE, _TABLE, _ADDRESS, *_RANGE),
        ),
        "strided": (element_moves.copy_elements, (w, *ends, _LOOPS, _TABLE, *_RANGE)),
        "fill": (element_moves.fill_runs, (*ends, _LOOPS, _TABLE, *_RANGE)),
        "gather": (element_moves.gather_slots, (w, *ends, _TABLE, _ADDRESS)),
        "expand": (stream_cpu.expand_chunks, (w, *chunked, _TABLE, _ADDRESS, *_RANGE)),
        "compress": (stream_cpu.compress_chunks, (w, *chunked, _TABLE, _ADDRESS, *_RANGE)),
        "expand all": (packed_bits.expand_bits, (w, *ends, *_RANGE)),
        "compress all": (packed_bits.compress_bits, (w, *ends, *_RANGE)),
    }
    dispatcher, signature = kernels[name]
    compiled: Callable[..., None] = dispatcher.compile(signature)
    return compiled


class _Scratch(threading.local):
    """Memory of a thread for the kernels it runs, on a line boundary."""

    def __init__(self) -> None:
        self._buffer = np.empty(_SCRATCH_BYTES + 64, np.uint8)
        self.address = -(-self._buffer.ctypes.data // 64) * 64


_scratch = _Scratch()


@dataclass(frozen=True, slots=True)
class _Call:
    """A pass with its kernel compiled: what is left is two addresses and a range of tasks."""

    kernel: Callable[..., None]
    head: tuple[Any, ...]
    tail: tuple[Any, ...]
    needs_scratch: bool
    fills: bool
    source_start: int
    destination_start: int
    tasks: int
    task_bytes: int

    def run(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Run it between two addresses, `pattern` being the bytes of one value of padding."""
        destination += self.destination_start
        source = _repeated(pattern)[1] if self.fills else source + self.source_start
        if self.tasks * self.task_bytes <= SMALL_CALL_BYTES:
            self._run_tasks(source, destination, 0, self.tasks)
            return
        chunk = max(1, min(_CHUNK_BYTES // self.task_bytes, self.tasks))
        task = partial(self._run_tasks, source, destination)
        run_chunks(task, self.tasks, thread_count(threads), chunk)

    def _run_tasks(self, source: int, destination: int, first: int, last: int) -> None:
        if self.needs_scratch:
            self.kernel(*self.head, destination, source, *self.tail, _scratch.address, first, last)
        else:
            self.kernel(*self.head, destination, source, *self.tail, first, last)


@lru_cache(maxsize=64)
def _repeated(pattern: bytes) -> tuple[Bytes, int]:
    """Give 128 bytes of a pattern, and their address."""
    repeated = np.frombuffer((pattern * -(-128 // len(pattern)))[:128], np.uint8)
    return repeated, address_of(repeated)


def _call_of(step: Pass) -> _Call:
    ways = step.ways if step.ways in POWERS_OF_TWO and step.ways * step.width <= 32 else 0
    bits = 8 // step.ways
    head: tuple[int, ...] = ()
    arrays = (step.outer, *step.tables, step.geometry)
    source_start, destination_start = step.source_start, step.destination_start
    match step.kernel:
        case "copy":
            kernel = kernel_of("copy", 1, 1)
        case "expand":
            kernel, head = kernel_of("expand", bits, 1), (bits,)
            source_start //= step.ways
        case "compress":
            kernel, head = kernel_of("compress", bits, 1), (bits,)
            destination_start //= step.ways
        case "interleave" | "deal":
            kernel, head = kernel_of(step.kernel, step.width, ways), (step.width, ways)
        case "transpose" | "strided":
            kernel, head = kernel_of(step.kernel, step.width, 1), (step.width,)
        case _:
            kernel = kernel_of("fill", 1, 1)
    needs_scratch = step.kernel not in ("strided", "fill")
    fills = step.kernel == "fill"
    starts = source_start, destination_start
    return _Call(kernel, head, arrays, needs_scratch, fills, *starts, step.tasks, step.task_bytes)


@dataclass(frozen=True, eq=False)
class Movement:
    """How values of ``width`` bytes get from one side to the other.

    Attributes
    ----------
    source, destination : Shape or Strides
    width : int
        Bytes of a value.
    passes : tuple of Pass or None
        None where every slot has to be looked up.
    keeps_places : bool
        Whether every element has the same slot on both sides.
    """

    source: Shape | Strides
    destination: Shape | Strides
    width: int
    passes: tuple[Pass, ...] | None
    keeps_places: bool = False

    def describe(self) -> str:
        """Give one line per pass."""
        if self.passes is None:
            return "slot by slot, through the index programs: the tiles of the two layouts do not divide each other"
        return "\n".join(step.describe() for step in self.passes) or "nothing to move"

    def run(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Move from one address to the other, and write `pattern`, `width` bytes long, to all padding."""
        if self.passes is None:
            self._gather(source, destination, pattern, threads)
            return
        for call in self._calls:
            call.run(source, destination, pattern, threads)

    @cached_property
    def _calls(self) -> tuple[_Call, ...]:
        return tuple(map(_call_of, self.passes or ()))

    def _gather(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        assert isinstance(self.source, Shape)
        assert isinstance(self.destination, Shape)
        move_slots(self.source, self.destination, self.width, source, destination, pattern, threads)


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
    kernel = kernel_of("gather", width, 1)
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
    _call_of(step).run(source, destination, pattern, threads)


@lru_cache(maxsize=512)
def movement(source: Shape | Strides, destination: Shape | Strides, width: int, per_byte: int = 1) -> Movement | None:
    """Plan how values get from one side to the other; kept for the next call.

    Parameters
    ----------
    source, destination : Shape or Strides
    width : int
        Bytes of a value, or of the byte that `per_byte` packed values share.
    per_byte : int
        More than 1: whole bytes of packed values move.

    Returns
    -------
    Movement or None
        None where whole bytes cannot move, or strides share no loops with a shape.
    """
    loops = relayout_loops(source, destination)
    if loops is not None and per_byte > 1:
        loops = grouped(loops, per_byte)
    if loops is None:
        slot_by_slot = per_byte == 1 and isinstance(source, Shape) and isinstance(destination, Shape)
        return Movement(source, destination, width, None) if slot_by_slot else None
    return Movement(source, destination, width, passes(loops, width), loops.keeps_places)


@lru_cache(maxsize=512)
def packed_movement(source: Shape | Strides, destination: Shape | Strides, bits: int, kernel: str) -> Movement | None:
    """Plan how packed elements of `bits` bits are expanded to bytes on the way, or bytes compressed.

    Returns
    -------
    Movement or None
        None where this takes a step of its own.
    """
    loops = relayout_loops(source, destination)
    steps = None if loops is None else packed_passes(loops, 8 // bits, kernel)
    return None if steps is None else Movement(source, destination, 1, steps)


def expand(packed: Bytes, bits: int, slots: int, threads: int | None) -> Bytes:
    """Give packed values a byte each."""
    values = np.empty(slots, np.uint8)
    kernel = kernel_of("expand all", bits, 1)
    source, target = address_of(packed), address_of(values)
    workers = 1 if slots <= _BITS_CHUNK else thread_count(threads)
    run_chunks(lambda begin, end: kernel(bits, target, source, begin, end), slots, workers, _BITS_CHUNK)
    return values


def compress(values: Bytes, bits: int, packed: Bytes, threads: int | None) -> None:
    """Pack values of a byte each."""
    kernel = kernel_of("compress all", bits, 1)
    source, target = address_of(values), address_of(packed)
    workers = 1 if len(values) <= _BITS_CHUNK else thread_count(threads)
    run_chunks(lambda begin, end: kernel(bits, target, source, begin, end), len(values), workers, _BITS_CHUNK)
