"""What the emulator refuses, each with its line, and what it must not refuse."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from tests.cuda.ptx.emulator import EmulatedError, Program, arrays, library
from tests.cuda.ptx.handwritten import kernel, line_of
from tests.cuda.ptx.reading import PtxError
from tests.cuda.stand_in import driver

pytestmark = pytest.mark.skipif(
    driver.missing() is not None and "ptx" not in os.environ.get("FASTINDEX_REQUIRE", ""), reason=driver.missing() or ""
)

SHARED = "\t.shared .align 16 .b8 cells[1024];\n"
#: %rd12 and %rd13 are this thread's 4 bytes of the arrays, %rd15 its 4 bytes of shared memory.
PLACES = """
shl.b64 %rd11, %rd10, 2;
add.s64 %rd12, %rd1, %rd11;
add.s64 %rd13, %rd2, %rd11;
mov.u64 %rd14, cells;
add.s64 %rd15, %rd14, %rd11;
"""


def run(body: str, threads: int = 64, blocks: int = 1, uninitialised: int | None = None) -> np.ndarray:
    """Run on 256 bytes each to write and to read; return what was written."""
    data = np.arange(64, dtype=np.uint32) if uninitialised is None else uninitialised
    with arrays(np.zeros(64, np.uint32), data) as made:
        Program(kernel(PLACES + body, 2, SHARED)).launch(blocks, threads, *made)
        return made[0].bytes.view(np.uint32).copy()


def refused(body: str, line: str, message: str, **options: int | None) -> None:
    number = line_of(kernel(PLACES + body, 2, SHARED), line)
    with pytest.raises(EmulatedError, match=rf"line {number}, `{re.escape(line)}.*{message}"):
        run(body, **options)  # type: ignore[arg-type]


COPY = "ld.global.u32 %r2, [%rd13];\nst.global.u32 [%rd12], %r2;\n"


def test_a_copy_is_run() -> None:
    assert run(COPY).tolist() == list(range(64))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "ld.global.u32 %r2, [%rd13+4];",
            "outside every array of the launch; the nearest, of 256 bytes, is missed by 4",
        ),
        ("ld.global.u32 %r2, [%rd13+-4];", "missed by -4"),
        ("ld.global.u32 %r2, [%rd13+1];", "misaligned: 4 bytes"),
        ("ld.global.v2.u64 {%rd16, %rd17}, [%rd13];", "misaligned: 16 bytes"),
        ("st.global.u64 [%rd12], %rd10;", r"misaligned: 8 bytes at .*\(thread 1 of block 0\)"),
        ("st.global.u16 [%rd1], %r1;", "race: it writes byte .*, which thread 0 of block 0 wrote"),
        ("ld.shared.u32 %r2, [%rd15];", "never written"),
        ("st.shared.u32 [%rd15+1024], %r1;", "of shared memory, which has 1024"),
        ("st.shared.u16 [cells], %r1;", "race: it writes byte"),
    ],
)
def test_accesses_that_are_wrong(line: str, message: str) -> None:
    refused(line, line, message)


def test_memory_that_nobody_wrote() -> None:
    refused(COPY, "ld.global.u32 %r2, [%rd13];", "never written", uninitialised=256)


def test_an_array_that_is_not_an_argument_is_out_of_bounds() -> None:
    with arrays(256, np.arange(64, dtype=np.uint32), 256) as (to, source, other):
        text = kernel(PLACES + f"mov.u64 %rd16, {other.address};\nst.global.u32 [%rd16], %r1;", 2, SHARED)
        with pytest.raises(EmulatedError, match="outside every array"):
            Program(text).launch(1, 1, to, source)


# Threads among themselves: thread i reads what thread 63 - i wrote

OTHER = "sub.s64 %rd16, 63, %rd10;\nshl.b64 %rd17, %rd16, 2;\nadd.s64 %rd18, %rd14, %rd17;\n"
EXCHANGE = (
    OTHER
    + """st.shared.u32 [%rd15], %r1;
bar.sync 0;
ld.shared.u32 %r2, [%rd18];
st.global.u32 [%rd12], %r2;
"""
)


def test_a_barrier_orders_threads() -> None:
    assert run(EXCHANGE).tolist() == list(range(63, -1, -1))
    # Once more around: what is read is written again behind another barrier.
    assert run(EXCHANGE + "bar.sync 0;\nst.shared.u32 [%rd15], %r2;\nbar.sync 0;\nld.shared.u32 %r3, [%rd18];").size


def test_without_a_barrier_it_is_a_race() -> None:
    refused(EXCHANGE.replace("bar.sync 0;\n", ""), "ld.shared.u32 %r2, [%rd18];", "race: it reads byte .*thread 63 ")
    refused(
        EXCHANGE + "mov.u32 %r3, 7;\nst.shared.u32 [%rd18], %r2;\nst.shared.u32 [%rd15], %r3;",
        "st.shared.u32 [%rd15], %r3;",
        "race",
    )


def test_a_warp_can_wait_for_itself_only() -> None:
    pairs = EXCHANGE.replace("sub.s64 %rd16, 63, %rd10", "xor.b64 %rd16, %rd10, 1").replace(
        "bar.sync 0", "bar.warp.sync -1"
    )
    assert run(pairs).tolist() == [i ^ 1 for i in range(64)]
    refused(EXCHANGE.replace("bar.sync 0", "bar.warp.sync -1"), "ld.shared.u32 %r2, [%rd18];", "race")


def test_divergent_barriers() -> None:
    some = "setp.lt.u32 %p1, %r1, 40;\n"
    refused(some + "@%p1 bar.sync 0;", "@%p1 bar.sync 0;", "divergent barrier: 8 of the 32 threads of warp 1")
    some = "setp.lt.u32 %p1, %r1, 32;\n"
    refused(some + "@%p1 ret;\nbar.sync 0;", "bar.sync 0;", "divergent barrier: thread 31 has ended")
    two = some + "@%p1 bra $other;\nbar.sync 0;\nret;\n$other:\nbar.sync 1;"
    refused(two, "bar.sync 1;", "divergent barrier: thread 32 waits at line")


def test_blocks_may_not_meet() -> None:
    refused(COPY, "st.global.u32 [%rd12], %r2;", "race: .*thread 0 of block 0 wrote", blocks=2)


def test_a_barrier_orders_the_memory_of_the_gpu_for_a_block() -> None:
    back = COPY + "bar.sync 0;\nsub.s64 %rd16, 63, %rd10;\nshl.b64 %rd17, %rd16, 2;\nadd.s64 %rd18, %rd1, %rd17;\n"
    assert run(back + "ld.global.u32 %r3, [%rd18];").size
    refused(back.replace("bar.sync 0;\n", "") + "ld.global.u32 %r3, [%rd18];", "ld.global.u32 %r3, [%rd18];", "race")


def test_atomics_do_not_race() -> None:
    assert run("atom.global.add.u32 %r3, [%rd1], %r1;")[0] == sum(range(64))
    assert run("atom.global.max.s32 %r3, [%rd1], %r1;", blocks=3)[0] == 63
    assert run("neg.s32 %r2, %r1;\nred.global.min.s32 [%rd1], %r2;").view(np.int32)[0] == -63
    assert run("atom.global.cas.b32 %r3, [%rd1], 0, 5;")[0] == 5


def test_atomics_race_with_what_is_not() -> None:
    add = "atom.global.add.u32 %r3, [%rd1], %r1;"
    store = "setp.eq.u32 %p1, %r1, 5;\n@%p1 st.global.u32 [%rd1], %r1;"
    load = "setp.eq.u32 %p1, %r1, 5;\n@%p1 ld.global.u32 %r4, [%rd1];"
    refused(f"{add}\n{store}", "@%p1 st.global.u32 [%rd1], %r1;", "race: it writes")
    refused(f"{add}\n{load}", "@%p1 ld.global.u32 %r4, [%rd1];", "race: it reads")
    refused(f"{store}\n{add}", add, "race: it updates byte .*thread 5 of block 0 wrote")
    refused(f"{load}\n{add}", add, "race: it updates byte .*thread 5 of block 0 read")
    run(f"{add}\nbar.sync 0;\n{load}")
    shared = "st.shared.u32 [%rd15], %r1;\nbar.sync 0;\natom.shared.add.u32 %r3, [cells], %r1;\n"
    run(shared + "bar.sync 0;\nld.shared.u32 %r4, [cells];")
    refused(shared + "ld.shared.u32 %r4, [cells];", "ld.shared.u32 %r4, [cells];", "race: it reads")


# What no GPU starts, and what none ends


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (1, 1025, "a block of 1025 by 1 by 1 threads, of at most 1024"),
        (1, (64, 32), "a block of 64 by 32 by 1 threads"),
        (1, (1, 1, 65), "a block of 1 by 1 by 65 threads"),
        ((1, 65536), 1, "a grid of 1 by 65536 by 1 blocks, of at most 2147483647 by 65535 by 65535"),
        ((1, 1, 65536), 1, "a grid of 1 by 1 by 65536 blocks"),
        (0, 1, "a grid of 0 by 1 by 1 blocks"),
    ],
)
def test_launches_that_no_gpu_starts(grid: int | tuple[int, ...], block: int | tuple[int, ...], message: str) -> None:
    with arrays(256, 256) as made, pytest.raises(EmulatedError, match=message):
        Program(kernel("")).launch(grid, block, *made)


def test_shared_memory_has_an_end() -> None:
    with arrays(256, 256) as made:
        program = Program(kernel(PLACES, 2, SHARED))
        program.launch(1, 32, *made, shared_bytes=(48 << 10) - 1024)
        with pytest.raises(EmulatedError, match="49152 bytes of shared memory at the launch, of at most 48128"):
            program.launch(1, 32, *made, shared_bytes=48 << 10)
    with pytest.raises(PtxError, match="declares 49153 bytes of shared memory, of at most 49152"):
        Program(kernel("", 2, "\t.shared .align 16 .b8 cells[49153];\n"))


def test_threads_a_kernel_says_it_takes() -> None:
    bounded = kernel("").replace(")\n{", ")\n.maxntid 64, 1, 1\n{", 1)
    with arrays(256, 256) as made:
        Program(bounded).launch(1, 64, *made)
        with pytest.raises(EmulatedError, match="a block of 65 by 1 by 1 threads, of at most 64"):
            Program(bounded).launch(1, 65, *made)


def test_a_loop_that_does_not_end() -> None:
    refused("$again:\nbra $again;", "bra $again;", "the block has not ended after")


def test_a_register_that_nobody_writes() -> None:
    with pytest.raises(PtxError, match="reads %r7, which nothing writes"):
        Program(kernel("add.s32 %r2, %r7, 1;"))


def test_bytes_that_hold_a_pattern_until_somebody_writes_them() -> None:
    with arrays(256, 64 << 10) as (to, source):
        library().ptx_memory_pattern(source.address)
        body = f"ld.global.u32 %r2, [%rd2+{50 << 10}];\nst.global.u32 [%rd1], %r2;\nst.global.u32 [%rd2], %r1;\n"
        Program(kernel(body + "ld.global.u32 %r3, [%rd2];\nst.global.u32 [%rd1+4], %r3;")).launch(1, 1, to, source)
        numbers = np.arange(50 << 10, (50 << 10) + 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)
        assert to.bytes[:8].tolist() == [*numbers.tolist(), 0, 0, 0, 0]


# Paths that part and meet


def test_paths_part_and_meet_again() -> None:
    """A loop that each thread leaves at a time of its own: the sum of the numbers below it."""
    loop = """mov.u32 %r3, 0;
mov.u32 %r2, 0;
$again:
setp.ge.u32 %p1, %r2, %r1;
@%p1 bra $out;
add.s32 %r3, %r3, %r2;
add.s32 %r2, %r2, 1;
bra.uni $again;
$out:
bar.sync 0;
st.global.u32 [%rd12], %r3;"""
    assert run(loop).tolist() == [i * (i - 1) // 2 for i in range(64)]


# Lanes of a warp


def test_shuffles() -> None:
    store = "st.global.u32 [%rd12], %r2;"
    assert run(f"shfl.sync.bfly.b32 %r2, %r1, 5, 31, -1;\n{store}").tolist() == [i ^ 5 for i in range(64)]
    down = run(f"shfl.sync.down.b32 %r2|%p1, %r1, 4, 31, -1;\n@!%p1 mov.u32 %r2, 99;\n{store}")
    assert down.tolist() == [i + 4 if i % 32 < 28 else 99 for i in range(64)]
    up = run(f"shfl.sync.up.b32 %r2, %r1, 3, 0, -1;\n{store}")
    assert up.tolist() == [i - 3 if i % 32 >= 3 else i for i in range(64)]
    index = run(f"shfl.sync.idx.b32 %r2, %r1, 7, 31, -1;\n{store}")
    assert index.tolist() == [7 + i // 32 * 32 for i in range(64)]
    some = "setp.lt.u32 %p1, %r1, 5;\n@%p1 shfl.sync.idx.b32 %r2, %r1, 7, 31, -1;"
    refused(some, "@%p1 shfl.sync.idx.b32", "lane 5 is named in the mask")


def test_votes() -> None:
    body = "setp.gt.u32 %p1, %r1, 60;\nvote.sync.ballot.b32 %r2, %p1, -1;\nst.global.u32 [%rd12], %r2;"
    assert run(body).tolist() == [0] * 32 + [0xE0000000] * 32


# Copies that arrive later

LATER = """shl.b64 %rd16, %rd10, 2;
add.s64 %rd17, %rd14, %rd16;
cp.async.ca.shared.global [%rd17], [%rd13], 4;
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
ld.shared.u32 %r2, [%rd15];
st.global.u32 [%rd12], %r2;"""


def test_an_asynchronous_copy_is_there_when_it_was_waited_for() -> None:
    assert run(LATER).tolist() == list(range(64))
    refused(LATER.replace("wait_group 0", "wait_group 1"), "ld.shared.u32 %r2, [%rd15];", "never written")
    shifted = LATER.replace("[%rd13], 4", "[%rd13+2], 4")
    refused(shifted, "cp.async.ca.shared.global", "misaligned|outside")


def test_shared_memory_has_generic_addresses_too() -> None:
    body = "cvta.shared.u64 %rd16, %rd15;\nst.u32 [%rd16], %r1;\nld.shared.u32 %r2, [%rd15];\nst.u32 [%rd12], %r2;"
    assert run(body).tolist() == list(range(64))
    refused("ld.u32 %r2, [%rd10];", "ld.u32 %r2, [%rd10];", "outside|misaligned")
