"""Bugs planted in the PTX of kernels and in the host's code, each found with its line; `test_emulated_gpu` runs this.

Each test also runs without its bug, so that what is found is the bug.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.cuda import index_programs, movements, queues, relayouts
from fastindex.cuda.kernels import compilation, granules, stages, tiles, units
from fastindex.cuda.kernels.device import cuda
from fastindex.cuda.kernels.index_kernel import index_kernel
from fastindex.moving import relayout_plans
from tests.cuda.ptx.emulator import EmulatedError
from tests.cuda.ptx.reading import PtxError
from tests.cuda.stand_in import emulated, far_blocks
from tests.kernels.gpu_package import to_gpu, to_host

_CACHES: tuple[Any, ...] = (
    relayout_plans.plan_of,
    movements.transfer,
    relayouts._copying,
    units.copy_kernel,
    tiles.transpose_kernel,
    tiles.scalar_transpose_kernel,
    tiles.word_transpose_kernel,
    granules.shift_kernel,
    granules.interleave_rows_kernel,
    granules.deinterleave_rows_kernel,
    stages.staged_kernel,
    index_kernel,
)


def forget() -> None:
    """Let kernels and plans be made anew."""
    for cache in _CACHES:
        cache.cache_clear()
    for function in vars(index_programs).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


#: Of the test that runs: in what its bug is planted, and what was said of it.
_told: list[tuple[str, str]] = []


@pytest.fixture(autouse=True)
def _nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    forget()
    _told.clear()
    yield
    request.node.user_properties.extend(_told)
    forget()


def moved(source: str, destination: str) -> None:
    """Relayout on the GPU as on the processor."""
    shape = fi.Shape.parse(source)
    buffer = np.random.default_rng(1).integers(256, size=shape.nbytes, dtype=np.uint8)
    expected = fi.relayout(buffer, source, destination)
    found = to_host(fi.relayout(to_gpu(buffer), source, destination))
    emulated.finish()
    assert found.tobytes() == expected.tobytes()


def transposed(dtype: str = "f32", sizes: str = "128,256") -> None:
    moved(f"{dtype}[{sizes}]{{1,0}}", f"{dtype}[{sizes}]{{0,1}}")


def copied() -> None:
    moved("f32[32,128]{1,0}", "f32[32,128]{1,0:T(8,128)}")


def complaint(run: Callable[[], None], planted_in: str, lines: Sequence[int] = ()) -> str:
    """Return what is found in a run; where it ends with other bytes than it should, that, and the first of `lines`."""
    found = _complaint(run) or f"line {lines[0] if lines else 0}, the bytes are not those that belong there"
    _told.append((planted_in, found))
    return found


def _complaint(run: Callable[[], None]) -> str:
    """Return what the emulator says of a run, whichever call came to know of it first; "" of one with wrong bytes."""
    try:
        run()
        emulated.finish()
    except (EmulatedError, PtxError) as error:
        return str(error)
    except Exception as error:
        try:
            emulated.finish()
        except (EmulatedError, PtxError) as told:
            return str(told)
        if isinstance(error, AssertionError):
            return ""
        raise
    pytest.fail("nothing was found")


Edit = Callable[[str], str]


def planted(monkeypatch: pytest.MonkeyPatch, run: Callable[[], None], edit: Edit, message: str) -> None:
    """Run as it is, then with an edit of one line of PTX, and look for the message; {line} stands for that line."""
    run()
    forget()
    lines: list[int] = []
    before = compilation.Kernel.ptx

    def ptx(self: compilation.Kernel, capability: tuple[int, int]) -> str:
        text = before(self, capability)
        edited = edit(text)
        pairs = zip(text.splitlines(), edited.splitlines(), strict=True)
        lines.extend(i for i, (old, new) in enumerate(pairs, 1) if old != new)
        return edited

    monkeypatch.setattr(compilation.Kernel, "ptx", ptx)
    monkeypatch.setattr(compilation, "_kept", lambda: None)
    found = complaint(run, "kernel", lines)
    assert lines
    assert re.search(message.replace("{line}", f"line {lines[0]}, "), found), (found, lines)


def replaced(pattern: str, by: str, which: int = 0) -> Edit:
    """Make the edit of one place where a pattern is found."""

    def edit(text: str) -> str:
        places = list(re.finditer(pattern, text))
        place = places[which]
        return text[: place.start()] + place.expand(by) + text[place.end() :]

    return edit


def test_a_vector_at_half_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = replaced(r"(ld\.global\.v2\.u64 .*\[%rd\d+)(\+\d+)?\]", r"\1+8]")
    planted(monkeypatch, transposed, edit, "{line}.*misaligned: 16 bytes")


def test_a_missing_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, transposed, replaced(r"bar\.sync 0;|bar\.sync \t0;", ""), r"line \d+, `ld\.shared.*race")


def test_a_barrier_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    some = "{ .reg .pred %q; .reg .b32 %t; mov.u32 %t, %tid.x; setp.lt.u32 %q, %t, 40; @%q bar.sync 0; }"
    planted(monkeypatch, transposed, replaced(r"bar\.sync\s+0;", some), "{line}.*divergent barrier: 8 of the 32")


def test_one_unit_past_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = replaced(r"(st\.global\.v2\.u64 \s*\[%rd\d+)\]", r"\1+16]", -1)
    planted(monkeypatch, copied, edit, "{line}.*outside every array.*missed by 16")


def test_a_guard_that_lets_one_more_through(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = to_gpu(np.ones((45, 96), np.float32))[:, :80], cuda.device_array((45, 80), np.float32)

    def in_900_units() -> None:
        fi.numpy.copyto(target, source)
        emulated.finish()

    # The kernel has such guards for each width.
    edit = replaced(r"setp\.ge(\.s64(?:(?!setp)[\s\S])*?st\.global\.v2\.u64)", r"setp.gt\1", -1)
    planted(monkeypatch, in_900_units, edit, r"line \d+, `st\.global.*(race|outside)")


def test_a_store_of_twice_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = (cuda.to_device(np.ones((64, 64), np.uint8)) for _ in range(2))

    def single_bytes() -> None:
        fi.numpy.copyto(target[:, ::3], source[:, ::3])
        emulated.finish()

    edit = replaced(r"st\.global\.u8", "st.global.u16")
    planted(monkeypatch, single_bytes, edit, "{line}.*misaligned: 2 bytes")


def test_a_sum_of_half_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = replaced(r"add\.s64", "add.s32")
    planted(monkeypatch, transposed, edit, "{line}.*64 bits where the instruction takes 32")


def test_an_instruction_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = replaced(r"bar\.sync\s+0;", "barrier.cluster.arrive;")
    planted(monkeypatch, transposed, edit, "{line}.*does not know")


def test_a_tile_that_is_larger_than_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = replaced(r"fastindex_shared\[16384\]", "fastindex_shared[8192]")
    planted(monkeypatch, transposed, edit, r"line \d+, `st\.shared.*of shared memory, which has 8192")


def test_a_cell_that_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = replaced(r"st\.shared\.\S+\s.*;", "")
    planted(monkeypatch, transposed, edit, r"line \d+, `ld\.shared.*never written")


def test_a_minimum_that_is_not_atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = itertools.count(3)

    def offenders() -> None:
        rows = to_gpu(np.full(4096, 99))
        with pytest.raises(fi.OutOfBoundsError, match="at position 0"):
            fi.linear_index(f"f32[{next(sizes)},5]", (rows, rows))

    edit = replaced(r"atom\.global\.min\.s64\s+%rd\d+, (\[%rd\d+\], %rd\d+;)", r"st.global.u64 \1")
    planted(monkeypatch, offenders, edit, "{line}.*race")


# What starts anywhere: a kernel and what it moves

ANYWHERE = {
    "shift 8": ("u8[9,203]{1,0}", "u8[9,203]{1,0:T(8,128)}"),
    "shift 4": ("s4[8,75]{1,0:E(4)}", "s4[8,75]{1,0:T(8,128)}"),
    "interleave rows 1": ("f32[4,75]{1,0}", "f32[4,75]{1,0:T(4,32)}"),
    "interleave rows 2": ("bf16[8,75]{1,0}", "bf16[8,75]{1,0:T(4,32)(2,1)}"),
    "interleave rows 4": ("u8[8,75]{1,0}", "u8[8,75]{1,0:T(8,32)(4,1)}"),
    "deinterleave rows 1": ("f32[5,75]{1,0:T(4,32)}", "f32[5,75]{1,0}"),
    "deinterleave rows 2": ("bf16[8,75]{1,0:T(4,32)(2,1)}", "bf16[8,75]{1,0}"),
    "deinterleave rows 4": ("u8[8,75]{1,0:T(8,32)(4,1)}", "u8[8,75]{1,0}"),
    "transpose words 1": ("u8[67,70]{1,0}", "u8[67,70]{0,1}"),
    "transpose words 2": ("bf16[37,45]{1,0}", "bf16[37,45]{0,1}"),
}


def of_kernel(monkeypatch: pytest.MonkeyPatch, name: str, edit: Edit) -> list[int]:
    """Edit lines of one kernel alone; return a list that gets their numbers."""
    lines: list[int] = []
    before = compilation.Kernel.ptx

    def ptx(self: compilation.Kernel, capability: tuple[int, int]) -> str:
        text = before(self, capability)
        # A kernel has one kind or several.
        if not f"{self.name} ".startswith(f"{name} ") and not f"{name} ".startswith(f"{self.name} "):
            return text
        edited = edit(text)
        pairs = zip(text.splitlines(), edited.splitlines(), strict=True)
        lines.extend(i for i, (old, new) in enumerate(pairs, 1) if old != new)
        return edited

    monkeypatch.setattr(compilation.Kernel, "ptx", ptx)
    monkeypatch.setattr(compilation, "_kept", lambda: None)
    return lines


@pytest.mark.parametrize("name", list(ANYWHERE))
def test_bytes_of_the_wrong_lane(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane gets its own word for the next one's: memory is touched as before, and holds something else."""
    moved(*ANYWHERE[name])
    forget()
    found = r"shfl\.sync\.idx\.b32 +\t?(%r\d+)(\|%p\d+)?, (%r\d+), (%r\d+)"
    lines = of_kernel(monkeypatch, name, lambda text: re.sub(found, r"shfl.sync.bfly.b32 \1\2, \3, 0", text))
    assert complaint(lambda: moved(*ANYWHERE[name]), "kernel", lines).endswith(
        "the bytes are not those that belong there"
    )
    assert lines


@pytest.mark.parametrize("name", list(ANYWHERE))
def test_a_run_that_is_a_byte_too_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind a run belongs to the next one, to padding, or to nobody."""
    moved(*ANYWHERE[name])
    forget()
    before = movements._started

    def started(found: Any) -> Any:
        longer = []
        for launch in found:
            tile = launch.tile
            if launch.pieces is not None:
                launch = replace(launch, length=launch.length + 4 // launch.width * launch.width)
            elif launch.kernel == "shift":
                launch = replace(launch, length=launch.length + 1)
            elif tile is not None:
                launch = replace(
                    launch, tile=replace(tile, columns=tile.columns + 1, tile_columns=tile.tile_columns + 1)
                )
            longer.append(launch)
        return before(longer)

    monkeypatch.setattr(movements, "_started", started)
    found = complaint(lambda: moved(*ANYWHERE[name]), "host")
    assert re.search(r"line \d+, `(ld|st)\..*(outside|race|never written)", found), found


# In the host's code


def host_bug(run: Callable[[], None], plant: Callable[[], None], message: str) -> None:
    run()
    forget()
    plant()
    found = complaint(run, "host")
    assert re.search(message, found), found


def test_strides_of_31_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are 2 GiB apart, of which only the few bytes that are copied are ever touched."""
    large = cuda.device_array((3, 1 << 31), np.uint8)
    rows = np.random.default_rng(1).integers(256, size=(3, 4096), dtype=np.uint8)
    for i in range(3):
        large[i, :4096].copy_to_device(rows[i])

    def far_apart() -> None:
        target = cuda.device_array((3, 4096), np.uint8)
        fi.numpy.copyto(target, large[:, :4096])
        emulated.finish()
        assert np.array_equal(to_host(target), rows)

    before = movements.table_of

    def plant() -> None:
        monkeypatch.setattr(movements, "table_of", lambda launch: before(launch).astype(np.int32).astype(np.int64))

    host_bug(far_apart, plant, r"line \d+, `ld\.global.*outside every array")


def test_a_product_of_31_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a tile starts is cut to 31 bits: seen only where an array is larger than that."""
    cut = r"{ .reg .b64 %q; .reg .b32 %t; mul.lo.s64 %q, \2; cvt.u32.u64 %t, %q; cvt.s64.s32 \1, %t; }"

    def far_apart() -> None:
        with far_blocks.few_blocks():
            far_blocks.moved_right(*far_blocks.RELAYOUTS["transpose 4"])

    edit = replaced(r"mul\.lo\.s64\s+(%rd\d+), (%rd\d+, %rd\d+);", cut)
    planted(monkeypatch, far_apart, edit, "line.*the bytes are not those|line.*outside every array")


def test_a_stream_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy to the GPU is on another stream, so the kernel reads what is not there yet."""
    first, second = cuda.stream(), cuda.stream()

    def on_two_streams() -> None:
        data = np.arange(4096, dtype=np.float32)
        fi.relayout(cuda.to_device(data, stream=first), "f32[64,64]{1,0}", "f32[64,64]{0,1}", stream=second)
        second.synchronize()
        emulated.finish()

    def plant() -> None:
        monkeypatch.setattr(queues.cuda, "order", lambda before, after: None)

    host_bug(on_two_streams, plant, r"line \d+, `ld\.global.*never written")


def test_a_unit_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    before = movements._started

    def plant() -> None:
        def started(found: Any) -> Any:
            some, numbers = before(found)
            return tuple(replace(one, others=(one.others[0] + 1, *one.others[1:])) for one in some), numbers

        monkeypatch.setattr(movements, "_started", started)

    def in_900_units() -> None:
        source, target = to_gpu(np.ones((45, 96), np.float32))[:, :80], cuda.device_array((45, 80), np.float32)
        fi.numpy.copyto(target, source)
        emulated.finish()

    host_bug(in_900_units, plant, r"line \d+, `(ld|st)\.global.*(outside|race)")


def test_tiles_on_top_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before = movements.table_of

    def plant() -> None:
        def table(launch: Any) -> Any:
            found = before(launch)
            # Header, then the first loop: its size, magic, shift and strides.
            found[(movements.cuda_tables.HEADER_BYTES + movements.cuda_tables.DESTINATION) // 8] = 0
            return found

        monkeypatch.setattr(movements, "table_of", table)

    host_bug(transposed, plant, r"line \d+, `st\.global.*race: it writes")


def test_a_table_that_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    before = movements.table_of

    def plant() -> None:
        monkeypatch.setattr(movements, "table_of", lambda launch: before(launch)[:-8])

    host_bug(transposed, plant, r"line \d+, `ld\.global\.u64.*outside every array")
