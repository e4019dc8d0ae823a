"""Nests that reach every remainder of every kernel's blocks, and moves of them between guarded pieces of memory.

A case is a nest in elements, the bytes of an element, and the kernel that has to move it.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Nest, RelayoutLoops
from fastindex.arrays.arrays import address_of
from fastindex.moving.compiled_passes import CompiledPasses
from fastindex.moving.moves.nests.plan import drafts, packed_drafts, passes, whole_buffer_passes
from fastindex.moving.passes import Pass, with_tables
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.machine_code import function
from fastindex.runtime.tuning import TUNING, Tuning
from tests.oracles import reference
from tests.oracles.nest_places import byte_places, loops, places

Bytes = NDArray[np.uint8]

LINE_BYTES = 64
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
BITS = (1, 2, 4)

#: (width, ways): every vector kernel of bytes, and for each width a small and the largest number of ways that vectors
#: take. Of the numbers that go by lanes: every unit of every width, one block of columns, and blocks that overlap.
INTERLEAVES = [
    *((1, ways) for ways in (2, 4, 8, 16, 32, 3, 5, 9, 12, 17, 33, 64, 200, 500)),
    *((2, ways) for ways in (2, 8, 16, 3, 7, 9, 32, 100)),
    *((4, ways) for ways in (2, 4, 8, 3, 5, 16, 63)),
    *((8, ways) for ways in (2, 3, 4, 5, 9)),
    *((16, ways) for ways in (2, 3, 15)),
]
DEALS = [
    *((1, ways) for ways in (2, 4, 8, 16, 32, 3, 5, 9, 12, 17, 33, 63)),
    *((2, ways) for ways in (2, 16, 3, 7, 9, 31)),
    *((4, ways) for ways in (2, 4, 8, 3, 5, 15)),
    *((8, ways) for ways in (2, 4, 3, 7)),
    *((16, ways) for ways in (2, 3)),
]


@dataclass(frozen=True)
class Case:
    """``kernel`` has to move `nest`, of elements of `width` bytes or, where they are packed, of `width` bits."""

    kernel: str
    width: int
    nest: Nest


def per_line(width: int) -> int:
    return LINE_BYTES // width


def _squares(width: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Rows and columns: all remainders of rows in the three squares of a band, all remainders of columns."""
    line = per_line(width)
    some = [1, 2, line - 1, line, line + 1, 2 * line, 2 * line + 1]
    for rows in range(1, 3 * line + 3):
        yield rows, rng.choice([n for n in some if n > 0])
    for columns in range(1, 2 * line + 2):
        yield rng.choice([n for n in (*some, 3 * line + 1, 4 * line) if n > 0]), columns


def transposes(width: int, seed: int) -> Iterator[Case]:
    """Columns on line boundaries and beside them, with and without gaps."""
    rng = random.Random(seed)
    line = per_line(width)
    for rows, columns in _squares(width, rng):
        # A gap on each side keeps other kernels from taking it.
        pitch = rng.choice((-(-(rows + 1) // line) * line, rows + rng.randint(1, 5)))
        nest = loops((rows, columns + rng.randint(1, 9), 1), (columns, 1, pitch))
        yield Case("transpose", width, Nest(nest))


def staged_transposes(width: int, seed: int) -> Iterator[Case]:
    """Columns on line boundaries, of several bands, and rows of several chunks of what is staged at a time."""
    rng = random.Random(seed)
    line = per_line(width)
    for remainder in range(line + 1):
        rows = rng.choice((2, 4, 5, 8)) * line + rng.choice((0, 1, line - 1, remainder))
        columns = line * rng.choice((1, 2, 8, 9, 16, 17, 25)) + remainder
        pitch = -(-(rows + 1) // line) * line
        nest = loops((rows, columns + rng.choice((line, 1, 9)), 1), (columns, 1, pitch))
        yield Case("transpose", width, Nest(nest))


def joined_transposes(width: int, seed: int) -> Iterator[Case]:
    """Columns that follow each other, of all remainders of a line, so that most lines belong to two of them."""
    rng = random.Random(seed)
    line = per_line(width)
    for remainder in range(line + 1):
        for rows in {2 * line, 3 * line, 8 * line + 1 + remainder}:
            columns = rng.choice((2, 3, line - 1, line + 1, 2 * line + 1 + remainder % 3))
            columns = max(2, columns)
            outer = rng.choice(((), ((2, rng.choice((1, -1)) * rows * columns * 2, columns * rows + 1),)))
            nest = loops((rows, columns + rng.randint(1, 9), 1), (columns, 1, rows), *outer)
            yield Case("transpose", width, Nest(nest))


def blocked_transposes(width: int, seed: int) -> Iterator[Case]:
    """More rows and columns than a block has, where a block is `SMALL_BLOCK_BYTES`, and loops around them."""
    rng = random.Random(seed)
    block = SMALL_BLOCK_BYTES // width
    line = per_line(width)
    both = block + 3, block + line // 2 + 1
    yield Case("transpose", width, Nest(loops((both[0], both[1] + 5, 1), (both[1], 1, both[0] + 2))))
    for remainder in range(line + 2):
        rows = block * rng.choice((1, 2, 3)) + remainder
        columns = rng.choice((2 + remainder, line + 1, block + 1, 2 * block + line))
        if rows * columns > 1 << 16:
            columns = 2 * line + 1
        rounded = -(-(rows + 1) // line) * line
        pitch = rng.choice((rounded, rows + 3) if rows <= block else (rows, rounded, rows + 3))
        yield Case("transpose", width, Nest(loops((rows, columns + 1, 1), (columns, 1, pitch))))
    for count in (2, 5):
        # Rows of two loops: a block ends within the second.
        rows = 2 * block // count + 1
        inner, outer = (count, 1000, 1), (rows, 7, count)
        columns = line + 3
        outermost = (3, 7000, columns * count * rows)
        yield Case("transpose", width, Nest(loops(inner, outer, (columns, 1, count * rows), outermost), 3, 5))


def scattered_transposes(width: int, seed: int) -> Iterator[Case]:
    """Few columns of rows that are far from each other, and loops whose lines lie between these rows."""
    rng = random.Random(seed)
    line = per_line(width)
    least = 512 // width
    for rows in (*range(least, least + line + 2), 3 * least + 5):
        columns, between = rng.choice([n for n in (2, 3, line - 1, line, line + 1) if n > 1]), rng.randint(2, 4)
        pitch = 3 * max(columns, line) + rng.choice((0, 1, line))
        places = [(rows + rng.choice((0, 0, 1, line))) * n for n in range(2)]
        inner, outer = (between, pitch, places[1]), (rows, between * pitch, 1)
        yield Case("transpose", width, Nest(loops(outer, (columns, 1, between * places[1] + line), inner), 2, 3))


def few_column_transposes(width: int, seed: int) -> Iterator[Case]:
    """Few columns of long rows that lie near each other: all remainders of both, columns anywhere in a line."""
    rng = random.Random(seed)
    line = per_line(width)
    least = -(-2048 // width)
    for k in range(2 * line + 2):
        rows, columns = least + k, min(max(line, 2) + rng.randint(0, 2 * line + 2), 120)
        pitch = columns + rng.choice((1, 5, 3 * columns))
        gap = rng.choice((1, 3, line, -(rows % -line) or line))
        nest = (rows, rng.choice((1, -1)) * pitch, 1), (columns, 1, rows + gap), (2, rows * pitch, columns * 2 * rows)
        yield Case("transpose", width, Nest(loops(*nest), rows * pitch))
    for columns in (n for n in (2, 3, line // 2 + 1, line - 1) if 1 < n < line):
        # A line of each row is read, whatever its columns are.
        for pitch in (line, line + 1, 4 * line):
            rows, sign = least + columns, rng.choice((1, -1))
            nest = (rows, sign * pitch, 1), (columns, 1, rows + rng.choice((0, 1))), (2, 3 * least * pitch, 8000 * line)
            yield Case("transpose", width, Nest(loops(*nest), rows * pitch))
    for columns in (max(line, 2), 120):
        # Rows of two loops, with a jump within and at the end of a block; columns that follow each other.
        inner, outer = (least // 2 + 1, columns, 1), (5, 3 * least * columns, least // 2 + 1)
        yield Case("transpose", width, Nest(loops(inner, outer, (columns, 1, 5 * (least // 2 + 1)))))


def interleaves(width: int, ways: int, seed: int) -> Iterator[Case]:
    """Runs of all remainders of a line, chunk after chunk and with gaps between them; long runs."""
    rng = random.Random(seed)
    line = per_line(width)
    most = max(3, min(2 * line + 2, 16384 // (ways * width)))
    for run in (*range(2, most), *(4 * 1024 // (ways * width) + n for n in (0, 1, line - 1))):
        if run < 2:
            continue
        pitch = run + rng.randint(0, 3)
        chunk = ways * run + rng.choice((0, 0, 1, line))
        chunks = (3, ways * pitch + rng.randint(1, 4), chunk)
        yield Case("interleave", width, Nest(loops((ways, pitch, 1), (run, 1, ways), chunks)))
        if run % 5 == 0:
            # Runs, and chunks of them, that are far from each other.
            far = 3 * run + 2 * line
            chunks = (7, ways * far + rng.choice((0, 5, 3 * line)), chunk)
            yield Case("interleave", width, Nest(loops((ways, far, 1), (run, 1, ways), chunks)))


def deinterleaves(width: int, ways: int, seed: int) -> Iterator[Case]:
    """The other way round; rows begin anywhere in a line."""
    rng = random.Random(seed)
    for case in interleaves(width, ways, seed):
        _, run, chunks = case.nest.loops
        pitch = chunks.size * (run.size + 1) + rng.choice((0, 1, per_line(width)))
        if rng.choice((False, True)):
            pitch = -(-pitch // per_line(width)) * per_line(width)
        rows = (ways, 1, pitch), (run.size, ways, 1)
        after = rng.choice((run.size, run.size, run.size + 1, ways * pitch))
        step = chunks.destination_stride * rng.choice((1, 1, 3))
        yield Case("deinterleave", width, Nest(loops(*rows, (chunks.size, step, after))))


def copies(seed: int) -> Iterator[Case]:
    """Runs of every length up to a few lines, and about the lengths where a kernel changes its mind."""
    rng = random.Random(seed)
    for run in (*range(1, 200), *range(1020, 1030), 1087, 1088, 1089, 2047, 4096, 4161, (128 << 10) + 77):
        if run in (1, 2, 4, 8, 16, 32, 64):
            continue
        count = rng.choice((1, 2, 3, 20)) if run < 5000 else 2
        gaps = rng.choice(((1, 0), (0, 1), (3, 5), (64, 64), (0, 64)))
        yield Case("copy", 1, Nest(loops((run, 1, 1), (count, run + gaps[0], run + gaps[1]))))
    for run in (3, 5, 7, 13, 15, 17, 24, 31, 33, 48, 63, 65, 100, 127, 128, 192, 255, 256, 300, 511, 512, 513, 1000):
        # Rows of runs, in another order on each side: gathered where runs are short.
        rows, columns = 2 + 3000 // run, 3 + 2100 // run
        for sign in (1, -1):
            inner = rows, sign * run * columns, run
            yield Case("copy", 1, Nest(loops((run, 1, 1), inner, (columns, run, run * rows)), rows * columns * run))
        # Tiles of rows: a row of the destination goes through all tiles beside each other.
        tile, beside = (8, run, run * 9 + rng.choice((0, 1, 7, 64))), (9, 8 * run, run)
        below = (3, 72 * run + 5, 8 * tile[2] + rng.choice((0, 3)))
        yield Case("copy", 1, Nest(loops((run, 1, 1), tile, beside, below)))
        pitch, rest = run + 1, (columns, rng.choice((run, run + 3)), 3 * 5 * run + rng.choice((0, 1, 64)))
        pairs = (3, 5000 * pitch, run), (5, 16000 * pitch, 3 * run)
        yield Case("copy", 1, Nest(loops((run, 1, 1), *pairs, rest)))
    yield Case("copy", 16, Nest(()))


def strided(width: int, seed: int) -> Iterator[Case]:
    """Elements with gaps on a side: strides of both signs, and none in the source."""
    rng = random.Random(seed)
    for count in (1, 2, 3, 63, 64, 65, 1000):
        for source_stride, destination_stride in ((2, 1), (1, 2), (3, 2), (-1, 1), (1, -1), (-2, 3), (0, 1), (0, 5)):
            rest = (4, rng.choice((0, 1, -3, count)) + 5000, count * abs(destination_stride) + rng.choice((1, 7)))
            yield Case("strided", width, Nest(loops((count, source_stride, destination_stride), rest)))
    for count in (2, 17, 63, 300):
        # Several elements of each line of the source, that go to separate rows; many short runs.
        for shared, step in ((2, 2), (5, 3), (150, -2)):
            pitch = 2 * abs(step) * shared + rng.choice((0, 1, LINE_BYTES))
            start = shared * abs(step)
            nest = (count, pitch, 1), (shared, step, 3 * (count + 1)), (3, count * pitch, count + 1)
            yield Case("strided", width, Nest(loops(*nest), start))
        yield Case("strided", width, Nest(loops((3, 2, 1), (count, 9, 3), (2, 9 * count + 1, 5 * count))))


def fills(width: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for run in (*range(1, 200 // width + 2), 4096 // width + 1, (192 << 10) // width, (192 << 10) // width + 3):
        rest = rng.choice(((), ((3, 0, run + rng.choice((1, 3, 64))),)))
        yield Case("fill", width, Nest(loops((run, 0, 1), *rest), 0, rng.randint(0, 3)))


def packed(kernel: str, bits: int, seed: int) -> Iterator[Case]:
    """Runs of whole bytes up to a few lines, with gaps of any length on the side of a byte an element."""
    rng = random.Random(seed)
    ways = 8 // bits
    for run in (*range(ways, 200 + 1, ways), 4096, 4096 + ways, 1024 * ways + ways):
        packed_gap, plain_gap = ways * rng.choice((0, 1, 3)), rng.choice((0, 0, 1, 17, 64))
        starts = ways * rng.choice((0, 1)), rng.choice((0, 5))
        strides = run + packed_gap, run + plain_gap
        if kernel == "compress":
            starts, strides = (starts[1], starts[0]), (strides[1], strides[0])
        if strides == (run, run):
            strides = (run + ways, run) if kernel == "expand" else (run, run + ways)
        yield Case(kernel, bits, Nest(loops((run, 1, 1), (4, *strides)), *starts))


# Moving


#: Bytes of the rows and the columns of a task, for `blocked_transposes`.
SMALL_BLOCK_BYTES = 512


def in_small_blocks(tuning: Tuning) -> Tuning:
    """Transposes in blocks of `SMALL_BLOCK_BYTES`."""
    return dataclasses.replace(
        tuning,
        row_bytes=SMALL_BLOCK_BYTES,
        least_row_bytes=SMALL_BLOCK_BYTES,
        column_bytes=SMALL_BLOCK_BYTES,
        aligned_column_bytes=SMALL_BLOCK_BYTES,
    )


def in_pieces(tuning: Tuning, piece_bytes: int, **others: int) -> Tuning:
    """Runs cut into tasks of `task_bytes` bytes."""
    return dataclasses.replace(tuning, task_bytes=piece_bytes, **others)


#: Gives memory of a size, that begins `offset` bytes after a line boundary if it can.
Allocate = Callable[[int, int], Bytes]


def steps_of(case: Case, tuning: Tuning = TUNING) -> tuple[Pass, ...]:
    """The passes of a case; fails where another kernel takes it."""
    found: tuple[Pass, ...] | None
    if case.kernel == "fill":
        found = passes(RelayoutLoops((), (case.nest,)), case.width, EPYC_1M, tuning)
    elif case.kernel in ("expand", "compress"):
        drafted = packed_drafts(RelayoutLoops((case.nest,), ()), 8 // case.width, case.kernel, EPYC_1M, tuning)
        found = None if drafted is None else with_tables(drafted)
    else:
        found = with_tables(drafts(RelayoutLoops((case.nest,), ()), case.width, EPYC_1M, tuning))
    assert found, case
    assert {step.kernel for step in found} == {case.kernel}, (case, [step.describe() for step in found])
    return found


def move(
    case: Case,
    steps: tuple[Pass, ...],
    allocate: Allocate,
    threads: int,
    offsets: tuple[int, int],
    rng: np.random.Generator,
    tuning: Tuning = TUNING,
) -> str:
    """Run the passes of a case between two pieces of memory; give what is wrong, nothing where all is right.

    Bytes of the destination that the nest does not name have to stay.
    """
    bits = case.width if case.kernel in ("expand", "compress") else 0
    source_at, target_at = places(case.nest) if bits else byte_places([case.nest], case.width)
    source_low, target_low = min(0, int(source_at.min())), min(0, int(target_at.min()))
    source_size = int(source_at.max()) + 1 - source_low
    target_size = int(target_at.max()) + 1 - target_low
    assert np.bincount(target_at - target_low).max() == 1, f"{case} writes a place twice"
    if case.kernel == "expand":
        source_size = -(-source_size * bits // 8)
    if case.kernel == "compress":
        target_size = -(-target_size * bits // 8)
    source, target = allocate(source_size, offsets[0]), allocate(target_size, offsets[1])
    source[:] = rng.integers(0, 256, source_size, np.uint8)
    target[:] = 0xA5
    pattern = rng.integers(0, 256, case.width, np.uint8).tobytes()
    expected = _expected(case, source, target, source_at - source_low, target_at - target_low, pattern)
    for step in steps:
        begins = address_of(source) - source_low, address_of(target) - target_low
        CompiledPasses((step,), tuning).run(*begins, pattern, threads)
    wrong = np.flatnonzero(target != expected)
    if not len(wrong):
        return ""
    at = int(wrong[0])
    return f"{len(wrong)} wrong bytes, first at {at}: {target[at]:#x}, expected {expected[at]:#x}; {case}, {offsets}"


def _expected(
    case: Case,
    source: Bytes,
    target: Bytes,
    source_at: NDArray[np.int64],
    target_at: NDArray[np.int64],
    pattern: bytes,
) -> Bytes:
    expected = target.copy()
    if case.kernel == "fill":
        expected[target_at] = np.resize(np.frombuffer(pattern, np.uint8), len(target_at))
    elif case.kernel == "expand":
        values = reference.patterns_of(source.tobytes(), case.width, len(source) * 8 // case.width)
        expected[target_at] = np.array(values, np.uint8)[source_at]
    elif case.kernel == "compress":
        values = reference.patterns_of(target.tobytes(), case.width, len(target) * 8 // case.width)
        slots = np.array(values, np.uint8)
        slots[target_at] = source[source_at] & ((1 << case.width) - 1)
        expected[:] = np.frombuffer(reference.bytes_of(slots.tolist(), case.width), np.uint8)
    else:
        expected[target_at] = source[source_at]
    return expected


# Kernels that passes do not name


def gather(width: int, allocate: Allocate, rng: np.random.Generator, count: int, offset: int) -> str:
    source, target = allocate(17 * width, offset), allocate(count * width, offset + 1)
    source[:] = rng.integers(0, 256, len(source), np.uint8)
    slots = allocate(8 * count, 0).view(np.int64)
    slots[:] = rng.integers(-2, 17, count)
    pattern = allocate(width, 0)
    pattern[:] = rng.integers(0, 256, width, np.uint8)
    addresses = address_of(target), address_of(source), address_of(slots)
    function("gather_slots")(width, *addresses, len(slots), address_of(pattern))
    expected = source.reshape(-1, width)[slots]
    expected[slots < 0] = pattern
    return "" if target.tobytes() == expected.tobytes() else f"gather of {count} elements of {width} bytes"


def bits_of_a_whole_buffer(
    kernel: str,
    bits: int,
    allocate: Allocate,
    rng: np.random.Generator,
    count: int,
    offset: int,
    tuning: Tuning = TUNING,
) -> str:
    """Expand or compress a buffer whose last byte may hold fewer elements; unused bits become 0."""
    packed_size = -(-count * bits // 8)
    sizes = (packed_size, count) if kernel == "expand" else (count, packed_size)
    source, target = allocate(sizes[0], offset), allocate(sizes[1], offset // 2)
    source[:] = rng.integers(0, 256, len(source), np.uint8)
    target[:] = 0xA5
    if kernel == "expand":
        expected = bytes(reference.patterns_of(source.tobytes(), bits, count))
    else:
        expected = reference.bytes_of([int(value) & ((1 << bits) - 1) for value in source], bits)
    for one in whole_buffer_passes(count, 8 // bits, kernel, EPYC_1M, tuning):
        CompiledPasses((one,), tuning).run(address_of(source), address_of(target), b"\0", 1 + count % 2)
    return "" if target.tobytes() == expected else f"{kernel}: {count} elements of {bits} bits"


def every_case(seed: int) -> Iterator[Case]:
    """Cases of every kernel that passes name, but for blocked transposes."""
    yield from copies(seed)
    for width in WIDTHS:
        yield from transposes(width, seed)
        yield from joined_transposes(width, seed)
        yield from scattered_transposes(width, seed)
        yield from strided(width, seed)
    for width, ways in INTERLEAVES:
        yield from interleaves(width, ways, seed)
    for width, ways in DEALS:
        yield from deinterleaves(width, ways, seed)
    for width in WIDTHS[:5]:
        yield from fills(width, seed)
    for kernel, bits in itertools.product(("expand", "compress"), BITS):
        yield from packed(kernel, bits, seed)
