"""The main job, end to end, on this machine: checked against NumPy, and timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.buffers import aligned_bytes
from fastindex.core.shape import Shape
from fastindex.index.indices import linear_index, multi_index
from fastindex.moving.numpy_copies import copyto
from fastindex.moving.relayout_calls import plan_relayout
from fastindex.runtime.threads import run_chunks, thread_count

if TYPE_CHECKING:
    from fastindex.terminal import Progress

#: 256 MiB, and no tile divides it.
ROWS, COLUMNS = 11586, 11585
INDICES = 10_000_000

Bytes = NDArray[np.uint8]
Bits = NDArray[np.uint16]
Coordinates = tuple[NDArray[np.int64], NDArray[np.int64]]
Write = Callable[[str], None]

_REPEATS = 5
_COPIED_AT_ONCE = 1 << 20


class Cpu:
    """The processor, with as many threads as a relayout uses."""

    def __init__(self) -> None:
        self.name = f"{thread_count()} threads"

    def new(self, count: int, dtype: Any) -> NDArray[Any]:
        """Return an uninitialised array of one dimension."""
        return aligned_bytes(count * np.dtype(dtype).itemsize).view(dtype)

    def put(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array."""
        return array

    def get(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array."""
        return array

    def copies(self, source: Bytes, target: Bytes) -> Sequence[Callable[[], None]]:
        """Return a copy with ordinary stores and one with non-temporal stores, both on all threads."""

        def task(begin: int, end: int) -> None:
            target[begin:end] = source[begin:end]

        return (
            lambda: run_chunks(task, len(source), thread_count(), _COPIED_AT_ONCE),
            lambda: copyto(target, source),
        )

    def wait(self) -> None:
        """Do nothing: calls return when they are done."""


class Gpu:
    """The current CUDA device.

    Raises
    ------
    FastIndexError
        There is none.
    """

    def __init__(self) -> None:
        from fastindex import cuda as interface

        self.name = interface.device_name()
        from fastindex.cuda.kernels import device as cuda

        self._cuda = cuda

    def new(self, count: int, dtype: Any) -> Any:
        """Return an uninitialised array of one dimension."""
        return self._cuda.new_array(count, dtype)

    def put(self, array: NDArray[Any]) -> Any:
        """Return the array on the device."""
        return self._cuda.uploaded(array, 0)

    def get(self, array: Any) -> NDArray[Any]:
        """Return the array on the host."""
        host: NDArray[Any] = array.copy_to_host()
        return host

    def copies(self, source: Any, target: Any) -> Sequence[Callable[[], None]]:
        """Return the copy from device to device."""
        return (lambda: target.copy_to_device(source),)

    def wait(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize(0)


Device = Cpu | Gpu


def run_demo(
    write: Write,
    device: Device | None = None,
    rows: int = ROWS,
    columns: int = COLUMNS,
    indices: int = INDICES,
    progress: Progress | None = None,
) -> bool:
    """Relayout a bfloat16 array to TPU tiles and back, convert indices, check both, and print the speed.

    Parameters
    ----------
    write : callable
        Receives each line of the output.
    device : Device, optional
        Where to do it; the CPU without it.
    rows, columns : int
        Sizes of the array.
    indices : int
        Number of indices.
    progress : Progress, optional
        Receives the progress of compiling or loading kernels.

    Returns
    -------
    bool
        Whether all checks passed.
    """
    on: Device = Cpu() if device is None else device
    plain = Shape("bf16", (rows, columns))
    tiled = Shape.parse(f"bf16[{rows},{columns}]{{1,0:T(8,128)(2,1)}}")
    write(f"{tiled}: {plain.nbytes / 2**20:,.0f} MiB, {on.name}")
    seconds = _ready(on, plain, tiled, indices, progress)
    from fastindex.runtime.machine_code import compiled_kernels

    write(f"kernels ready after {seconds:.1f} s{' (compiled once for this machine)' if compiled_kernels() else ''}")
    write("")
    write(f"{'':<34}{'time':>10}{'GB/s':>8}{'of a copy':>11}{'x NumPy':>9}")
    checks = [*_relayouts(on, plain, tiled, write), *_conversions(on, tiled, indices, write)]
    write("")
    for name, passed in checks:
        write(f"{'ok   ' if passed else 'WRONG'} {name}")
    return all(passed for _, passed in checks)


def _ready(on: Device, plain: Shape, tiled: Shape, count: int, progress: Progress | None) -> float:
    """Call each function once as it will be timed, which compiles or loads its kernels; return the seconds it took.

    Small arrays are not enough: NumPy answers them, and other sizes may use other kernels.
    """
    zeros = aligned_bytes(plain.nbytes)
    zeros[:] = 0
    given, packed, back = on.put(zeros), on.new(tiled.nbytes, np.uint8), on.new(plain.nbytes, np.uint8)
    places = on.put(np.zeros(count, np.int64)), on.put(np.zeros(count, np.int64))
    slots = on.new(count, np.int64)
    steps: list[Callable[[], Any]] = [
        *on.copies(given, back),
        lambda: linear_index(tiled, places, out=slots),
        lambda: multi_index(tiled, slots, out=places),
        lambda: plan_relayout(plain, tiled)(given, packed),
        lambda: plan_relayout(tiled, plain)(packed, back),
    ]
    if progress is not None:
        progress.start(len(steps))
    began = time.perf_counter()
    for step in steps:
        step()
        on.wait()
        if progress is not None:
            progress.advance(1)
    return time.perf_counter() - began


def _relayouts(on: Device, plain: Shape, tiled: Shape, write: Write) -> list[tuple[str, bool]]:
    bits = _random_bits(plain.nbytes)
    timed, packed, returned = _there_and_back(on, plain, tiled, bits)
    numpy_seconds, agrees = _numpy_relayouts(bits.view(np.uint16).reshape(plain.dimensions), packed.view(np.uint16))
    moved = plain.nbytes + tiled.nbytes
    for name, (copy, own), other in zip(("to tiles", "back"), timed, numpy_seconds, strict=True):
        _row(write, "plain copy, in turns with the next", copy, 2 * plain.nbytes)
        # The baseline is the time of a copy of the same number of bytes.
        _row(write, f"relayout, {name}", own, moved, copy * moved / (2 * plain.nbytes), other)
    return [
        ("to tiles: every byte as NumPy's pad, reshape and transpose give it", agrees),
        ("there and back: every byte as before", returned),
    ]


def _there_and_back(
    on: Device, plain: Shape, tiled: Shape, bits: Bytes
) -> tuple[tuple[tuple[float, float], tuple[float, float]], Bytes, bool]:
    """Return the times of a copy and of a relayout, both ways, the tiled buffer, and whether `bits` come back."""
    given, packed, back = on.put(bits), on.new(tiled.nbytes, np.uint8), on.new(plain.nbytes, np.uint8)
    there, return_ = plan_relayout(plain, tiled), plan_relayout(tiled, plain)
    # Copies go to another buffer than `back`, where a relayout that does nothing would pass.
    copies = on.copies(given, on.new(plain.nbytes, np.uint8))
    timed = (
        _in_turns(on, copies, lambda: there(given, packed)),
        _in_turns(on, copies, lambda: return_(packed, back)),
    )
    return timed, on.get(packed), _equal(bits, on.get(back))


def _in_turns(on: Device, copies: Sequence[Callable[[], None]], task: Callable[[], Any]) -> tuple[float, float]:
    """Return the times of the fastest copy and of a task, run alternately: memory speed changes by the minute."""
    seconds: list[list[float]] = [[] for _ in (*copies, task)]
    # The first round maps pages and is not counted.
    for number in range(_REPEATS + 1):
        for run, found in zip((*copies, task), seconds, strict=True):
            _, spent = _timed(run, on)
            if number:
                found.append(spent)
    *of_copies, of_task = map(statistics.median, seconds)
    return min(of_copies), of_task


def _numpy_relayouts(array: Bits, packed: Bits) -> tuple[tuple[float, float], bool]:
    """Do the same relayouts with NumPy; return the time of each, and whether `packed` is right."""
    rows, columns = array.shape
    tile_rows, tile_columns = -(-rows // 8), -(-columns // 128)
    padded = np.zeros((8 * tile_rows, 128 * tile_columns), np.uint16)
    expected = np.zeros_like(packed)
    grid = padded.reshape(tile_rows, 4, 2, tile_columns, 128).transpose(0, 3, 1, 4, 2)
    tiles = expected.reshape(tile_rows, tile_columns, 4, 128, 2)

    def to_tiles() -> None:
        padded[:rows, :columns] = array
        tiles[...] = grid

    def to_rows() -> None:
        grid[...] = tiles
        array[...] = padded[:rows, :columns]

    seconds = _seconds_warm(to_tiles)
    agrees = _equal(expected.view(np.uint8), packed.view(np.uint8))
    return (seconds, _seconds_warm(to_rows)), agrees


def _conversions(on: Device, shape: Shape, count: int, write: Write) -> list[tuple[str, bool]]:
    rows, columns = shape.dimensions
    generator = np.random.default_rng(2)
    places = generator.integers(0, rows, count), generator.integers(0, columns, count)
    given = on.put(places[0]), on.put(places[1])
    slots = on.new(count, np.int64)
    found = on.new(count, np.int64), on.new(count, np.int64)
    touched = 24 * count
    own = _median_seconds(on, lambda: linear_index(shape, given, out=slots))
    expected, seconds = _timed(lambda: _numpy_slots(*places, columns))
    _row(write, f"{count:,} indices to slots", own, touched, other=seconds)
    right = bool(np.array_equal(on.get(slots), expected))
    own = _median_seconds(on, lambda: multi_index(shape, slots, out=found))
    back, seconds = _timed(lambda: _numpy_places(expected, columns))
    _row(write, f"{count:,} slots to indices", own, touched, other=seconds)
    sides = zip(found, places, back, strict=True)
    returned = all(np.array_equal(on.get(a), b) and np.array_equal(b, c) for a, b, c in sides)
    return [
        ("slots: every one as NumPy's arithmetic gives it", right),
        ("indices: every one as before", returned),
    ]


def _numpy_slots(y: NDArray[np.int64], x: NDArray[np.int64], columns: int) -> NDArray[np.int64]:
    """Return the slots of ``T(8,128)(2,1)``, from the definition."""
    tile = y // 8 * -(-columns // 128) + x // 128
    slots: NDArray[np.int64] = tile * 1024 + y % 8 // 2 * 256 + x % 128 * 2 + y % 2
    return slots


def _numpy_places(slots: NDArray[np.int64], columns: int) -> Coordinates:
    tile, within = np.divmod(slots, 1024)
    tile_y, tile_x = np.divmod(tile, -(-columns // 128))
    return tile_y * 8 + within // 256 * 2 + within % 2, tile_x * 128 + within % 256 // 2


def _random_bits(size: int) -> Bytes:
    bits = aligned_bytes(size)
    words = bits[: size // 8 * 8].view(np.uint64)
    words[...] = np.random.default_rng(1).integers(0, 2**64, len(words), dtype=np.uint64)
    bits[size // 8 * 8 :] = 7
    return bits


def _equal(a: Bytes, b: Bytes) -> bool:
    """Compare chunk by chunk, which limits the memory that the comparison takes."""
    parts = range(0, len(a), _COPIED_AT_ONCE)
    return len(a) == len(b) and all(
        np.array_equal(a[i : i + _COPIED_AT_ONCE], b[i : i + _COPIED_AT_ONCE]) for i in parts
    )


def _median_seconds(on: Device, task: Callable[[], Any]) -> float:
    _timed(task, on)
    return statistics.median(_timed(task, on)[1] for _ in range(_REPEATS))


def _seconds_warm(task: Callable[[], Any]) -> float:
    task()
    return _timed(task)[1]


def _timed(task: Callable[[], Any], on: Device | None = None) -> tuple[Any, float]:
    """Return the result of a task and its seconds, until the device is done."""
    began = time.perf_counter()
    result = task()
    if on is not None:
        on.wait()
    return result, time.perf_counter() - began


def _row(
    write: Write, name: str, seconds: float, moved: int, copy: float | None = None, other: float | None = None
) -> None:
    share = f"{copy / seconds:.2f}" if copy else ""
    ratio = f"{other / seconds:.1f}" if other else ""
    write(f"{name:<34}{seconds * 1000:>7.1f} ms{moved / seconds / 1e9:>8.1f}{share:>11}{ratio:>9}".rstrip())
