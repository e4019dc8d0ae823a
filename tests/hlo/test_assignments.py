"""XLA's own numbers: what it dumps beside a module, alone or with it, and what compiled objects know.

Tests of: hlo.assignments, hlo.reports, hlo.read.dumps, hlo.read.kinds.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import fastindex as fi
from fastindex.hlo.read.dumps import dumped_modules
from tests.cases.pipes import needs_pipes, pipe
from tests.hlo.test_programs import FOLDERS, dumped, facts, main_dump, names, xla_peak

#: What XLA adds to the name of a module for what it writes about its memory.
ENDINGS = "buffer-assignment", "memory-usage-report"

TILED = "f32[1000,3]{1,0:T(8,128)}"
MODULE = f"HloModule m, is_scheduled=true\n\nENTRY %e (p: f32[2]) -> f32[2] {{\n  ROOT %p = {TILED} parameter(0)\n}}\n"


def program_nbytes(folder: Path) -> int:
    """XLA's total, without what it lists as local to a thread: the scalars of reducers."""
    (total,) = re.findall(r"Total bytes: (\d+)", dumped(folder, "memory-usage-report"))
    local = re.findall(r"^allocation \d+: size (\d+), [^|\n]*thread-local", dumped(folder, "buffer-assignment"), re.M)
    return int(total) - sum(map(int, local))


@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_beside_the_module_to_the_byte(folder: Path) -> None:
    report = fi.hlo.report(main_dump(folder))
    assert report.peak is not None
    assert report.peak.basis == "buffer assignment"
    assert report.peak_nbytes == program_nbytes(folder)
    assigned = report.peak.assigned
    assert assigned is not None
    sizes = facts(folder)["memory_analysis"]
    assert assigned.arguments == sizes["argument_size_in_bytes"]
    assert assigned.outputs == sizes["output_size_in_bytes"]
    assert assigned.temporaries == sizes["temp_size_in_bytes"]
    assert assigned.aliased == sizes["alias_size_in_bytes"]
    assert assigned.arguments + assigned.outputs + assigned.temporaries - assigned.aliased == xla_peak(sizes)


@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_the_files_alone(folder: Path) -> None:
    """Slots of memory: as many and as large as the places that the file lists."""
    main = main_dump(folder)
    assignment = main.with_name(f"{main.stem}-buffer-assignment.txt")
    report = fi.hlo.report(assignment)
    assert report.peak_nbytes == program_nbytes(folder)
    places = set()
    for number, allocation in enumerate(assignment.read_text().split("\nallocation ")[1:]):
        if "thread-local" not in allocation.split("\n")[0]:
            values = re.findall(r"\(size=(\d+),offset=(\d+)\): (\S)", allocation)
            places |= {(number, int(offset), int(size)) for size, offset, kind in values if kind != "("}
    assert report.total_nbytes == sum(size for _, _, size in places)
    assert report.buffer_count == len(places)
    usage = fi.hlo.report(main.with_name(f"{main.stem}-memory-usage-report.txt"))
    (total,) = re.findall(r"Total bytes: (\d+)", dumped(folder, "memory-usage-report"))
    assert usage.peak_nbytes == int(total)
    assert "scratch memory of threads" in usage.summary()
    assert usage.problems == ()


def test_a_module_and_what_lies_beside_it_count_once() -> None:
    folder = next(folder for folder in FOLDERS if folder.name == "while_loop")
    everything = fi.hlo.report(sorted(folder.glob("*.txt")))
    assert len(everything.modules) == 1
    assert everything.total_nbytes == fi.hlo.report(main_dump(folder)).total_nbytes
    assert fi.hlo.report(folder).peak_nbytes == everything.peak_nbytes
    (problem,) = everything.problems
    assert "live ranges" in str(problem)


def test_the_usage_report_serves_where_there_is_no_assignment(tmp_path: Path) -> None:
    folder = next(folder for folder in FOLDERS if folder.name == "scan_loop")
    main = main_dump(folder)
    for ending in ("", "-memory-usage-report"):
        shutil.copy(main.with_name(f"{main.stem}{ending}.txt"), tmp_path)
    report = fi.hlo.report(tmp_path)
    assert report.peak is not None
    assert report.peak.basis == "memory usage report"
    (total,) = re.findall(r"Total bytes: (\d+)", dumped(folder, "memory-usage-report"))
    assert report.peak_nbytes == int(total) > fi.hlo.report(main).peak_nbytes
    assert "scratch memory of threads" in report.summary()
    assert report.peak.estimate_nbytes == pytest.approx(report.peak_nbytes, rel=0.1)


def test_an_assignment_with_tiles_and_memory_spaces() -> None:
    """Two slots of memory space 0; the one of space 1 is not in the peak."""
    report = fi.hlo.report(f"""BufferAssignment:
allocation 0: size 512000, parameter 0, shape |f32[1000,3]| at ShapeIndex {{}}:
 value: <1 p @0> (size=512000,offset=0): {TILED}
allocation 1: size 1024, color 1, maybe-live-out:
 value: <2 q @0> (size=1024,offset=0): f32[2]{{0:T(256)S(1)}}
allocation 2: size 512512, preallocated-temp:
 value: <3 a @0> (size=512000,offset=0): {TILED}
 value: <4 b @1> (size=512,offset=512000): f32[]{{:T(128)}}
 value: <5 c{{0}} (phi) @0> (size=512000,offset=0): {TILED}
""")
    assert report.peak_nbytes == 512000 + 512512
    assert [(str(use.shape), use.count) for use in report.uses] == [(TILED, 2), ("f32[]{:T(128)}", 1)]
    assert [place.instruction for place in report.uses[0].places] == ["p", "a", "c"]
    assert report.peak_logical_nbytes == 512000 + 512512 - 2 * (512000 - 12000) - 508


def test_other_memory_spaces_beside_the_module(tmp_path: Path) -> None:
    """Where XLA left a gap in the fast memory, its number is taken; a space that it does not list stays an estimate."""
    fast, host = TILED[:-1] + "S(1)}", TILED[:-1] + "S(5)}"
    name = tmp_path / "module_0001.jit_f.after_optimizations.txt"
    name.write_text(
        f"HloModule m, is_scheduled=true\n\nENTRY %e (p: f32[2], q: f32[2]) -> f32[2] {{\n"
        f"  %p = {TILED} parameter(0)\n  %q = {host} parameter(1)\n  %a = {fast} negate(%p)\n"
        f"  ROOT %b = {TILED} negate(%a)\n}}\n"
    )
    name.with_name(f"{name.stem}-buffer-assignment.txt").write_text(
        "BufferAssignment:\nallocation 0: size 512000, parameter 0, shape |f32[1000,3]| at ShapeIndex {}:\n"
        "allocation 1: size 512000, maybe-live-out:\nallocation 2: size 700000, color 1, preallocated-temp:\n"
        "allocation 3: size 4096, color 1, thread-local:\n"
    )
    (module,) = fi.hlo.report(tmp_path).modules
    assert [(space, peak.nbytes, peak.basis) for space, peak in module.space_peaks] == [
        (1, 700000, "buffer assignment"),
        (5, 512000, "estimate"),
    ]
    assert module.space_peaks[0][1].estimate_nbytes == 512000


def test_an_older_usage_report() -> None:
    """The form before memory spaces: all allocations first, and then the slots in each."""
    report = fi.hlo.report("""Total bytes used: 1049600 (1.00MiB)

Allocations sorted by size:

cumulative_size; total_size - cumulative_size; allocation
------------------------------------------------------------------------------
    1.00MiB(100%);     1.0KiB; allocation 1: size 1.00MiB, preallocated-temp:
    1.00MiB(100%);         0B; allocation 0: size 1.0KiB, parameter 0, shape |f32[256]| at ShapeIndex {}:

Allocations sorted by size with their values:
allocation 1: size 1.00MiB, preallocated-temp:
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
  512.0KiB( 50%);   512.0KiB;            0;                2; f32[131072], f32[2,65536]
    1.00MiB(100%);   512.0KiB;       524288;                3; 3\u00d7f32[131072]

""")
    assert report.peak_nbytes == 1049600
    assert [(str(use.shape), use.count, use.nbytes) for use in report.uses] == [("f32[131072]{0}", 2, 524288)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nTotal bytes used: 524368 (512.1KiB)\n\nUsed values:\n<9 constant.4 @0>\n", "buffer-assignment-values"),
        ("HloLiveRange (max 18):\n  InstructionSequence:\n    0:x.1\n", "live-range"),
        ("BufferAssignment:\n", "no allocation"),
    ],
)
def test_dumps_that_say_too_little_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(fi.FastIndexError, match=message):
        fi.hlo.report(text)
    file = tmp_path / "x.txt"
    file.write_text(text)
    with pytest.raises(fi.FastIndexError, match=message):
        fi.hlo.report(file)


def test_one_stage_of_each_module_is_taken(tmp_path: Path) -> None:
    stages = [
        "module_0001.jit_f.cl_812.before_optimizations.txt",
        "module_0001.jit_f.cl_812.0003.dce.after_cse.before_dce.txt",
        "module_0001.jit_f.cl_812.0012.fusion.after_dce.before_fusion.txt",
        "module_0001.jit_f.cl_812.after_optimizations_before_buffer_assignment.txt",
        "module_0001.jit_f.cl_812.after_optimizations.txt",
        "module_0001.jit_f.cl_812.after_codegen.txt",
    ]
    for number, name in enumerate(stages, 1):
        (tmp_path / name).write_text(MODULE.replace("1000", str(number)))
        (chosen,) = dumped_modules(tmp_path)
        assert chosen.name == name
    (module,) = fi.hlo.report(tmp_path).modules
    assert module.stage.endswith("after_codegen (of 6 stages)")
    assert "after_codegen" in fi.hlo.report(tmp_path).summary()


def test_an_assignment_beside_an_earlier_stage_is_found(tmp_path: Path) -> None:
    """XLA dumps it beside the module after optimizations; the module after code generation is read."""
    main = main_dump(next(folder for folder in FOLDERS if folder.name == "updates"))
    for stage in ("after_optimizations", "after_codegen"):
        shutil.copy(main, tmp_path / f"module_0001.jit_f.cl_812.{stage}.txt")
    assignment = main.with_name(f"{main.stem}-buffer-assignment.txt")
    shutil.copy(assignment, tmp_path / "module_0001.jit_f.cl_812.after_optimizations-buffer-assignment.txt")
    report = fi.hlo.report(tmp_path)
    assert report.modules[0].stage.startswith("after_codegen")
    assert report.peak is not None
    assert report.peak.basis == "buffer assignment"
    assert report.peak_nbytes == fi.hlo.report(main).peak_nbytes
    (tmp_path / "module_0001.jit_f.cl_812.after_optimizations-buffer-assignment.txt").rename(
        tmp_path / "module_0002.jit_g.after_optimizations-buffer-assignment.txt"
    )
    assert fi.hlo.report(tmp_path / "module_0001.jit_f.cl_812.after_codegen.txt").peak.basis == "estimate"  # type: ignore[union-attr]


@needs_pipes
def test_pipes_beside_a_module_are_not_waited_for(tmp_path: Path) -> None:
    main = main_dump(next(folder for folder in FOLDERS if folder.name == "updates"))
    for stage in ("after_optimizations", "after_codegen"):
        shutil.copy(main, tmp_path / f"module_0001.jit_f.cl_812.{stage}.txt")
    beside = [f"{stage}-{ending}" for stage in ("after_optimizations", "after_codegen") for ending in ENDINGS]
    with ExitStack() as stack:
        for name in beside:
            stack.enter_context(pipe(tmp_path / f"module_0001.jit_f.cl_812.{name}.txt"))
        assert fi.hlo.report(tmp_path).peak.basis == "estimate"  # type: ignore[union-attr]


class CompiledForTpu:
    """What `jax.stages.Compiled` says for a TPU: sums over all memory spaces, and no assignment."""

    temp_size_in_bytes = 10**9
    argument_size_in_bytes = output_size_in_bytes = alias_size_in_bytes = 0
    peak_memory_in_bytes = 22928384
    serialized_buffer_assignment_proto = b""

    def as_text(self) -> str:
        return (main_dump(FOLDERS[0]).parents[2] / "convolutions_v4.txt").read_text()

    def memory_analysis(self) -> CompiledForTpu:
        return self


def test_the_peak_of_a_program_for_a_tpu_is_that_of_its_memory() -> None:
    report = fi.hlo.report(CompiledForTpu())
    assert report.peak is not None
    assert report.peak.basis == "estimate"
    # What XLA says of S(0) alone, and four tables; its peak is that and S(3) together.
    assert report.peak_nbytes == 1839616 + 3 * 16384 + 512
    assert "XLA's peak_memory_in_bytes, on some TPUs with the memory of the core: 21.9 MiB" in report.summary()


def test_modules_of_a_folder_have_separate_totals(tmp_path: Path) -> None:
    for name, rows in (("f", 1000), ("g", 2000)):
        text = MODULE.replace("1000", str(rows)).replace("HloModule m", f"HloModule jit_{name}, num_partitions=8")
        (tmp_path / f"module_0001.jit_{name}.after_optimizations.txt").write_text(text)
    report = fi.hlo.report(tmp_path)
    assert {module.label: module.nbytes for module in report.modules} == {"jit_f": 512000, "jit_g": 1024000}
    assert report.total_nbytes == 1536000
    assert report.peak_nbytes == 1024000
    assert "one of 8 partitions" in report.summary()
    assert [module["module"] for module in report.to_json()["modules"]] == ["jit_f", "jit_g"]


def test_one_unreadable_file_among_many_is_a_problem(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(MODULE)
    bad.write_bytes(b"\x7fELF\0\0")
    report = fi.hlo.report([bad, good, tmp_path / "missing.txt"])
    assert report.total_nbytes == 512000
    assert [problem.source for problem in report.problems] == [str(bad), str(tmp_path / "missing.txt")]
    assert "No such file" in str(report.problems[1])
    with pytest.raises(fi.FastIndexError, match="machine code"):
        fi.hlo.report([bad, tmp_path / "missing.txt"])


@pytest.mark.parametrize(
    "text",
    ["dumps/module_0001.txt", "nothing.hlo", "/nowhere/dumps", "nope.log", "nope", "train log.txt", "lr=0.1/oom.log"],
)
@pytest.mark.parametrize("function", [fi.hlo.report, fi.hlo.layout_copies])
def test_a_path_that_does_not_exist(text: str, function: Callable[[str], object]) -> None:
    with pytest.raises(fi.FastIndexError, match=f"no such file: '{text}'.*pathlib"):
        function(text)


def test_a_message_of_one_line_is_no_path() -> None:
    message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes, in model.py"
    assert "out of memory" in fi.hlo.report(message).text()


def test_a_path_as_text(tmp_path: Path) -> None:
    with pytest.raises(fi.FastIndexError, match="is a path, not HLO text; pass pathlib"):
        fi.hlo.report(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("HloModule m\nENTRY e {\n  ROOT p = f32[2] parameter(0)\n}\n", "before layout assignment"),
        ("HloModule m\nENTRY e {\n  ROOT p = f32[2]{0} parameter(0)\n}\n", "before layout assignment"),
        (
            "HloModule m, is_scheduled=true\nENTRY e {\n  ROOT p = f32[2]{0} parameter(0)\n}\n",
            "compiled for CPU or GPU",
        ),
    ],
)
def test_no_tiled_layout_is_said(text: str, note: str) -> None:
    report = fi.hlo.report(text)
    assert note in report.summary()
    assert "of it padding" not in report.summary()


JAX = """
import json, sys
import jax, jax.numpy as jnp
import fastindex as fi
lowered = jax.jit(lambda x: jnp.sin(x) @ x.T + x.sum(), donate_argnums=0).lower(jnp.ones((40, 30)))
compiled = lowered.compile()
memory = compiled.memory_analysis()
reports = [fi.hlo.report(compiled), fi.hlo.report(lowered), fi.hlo.report(compiled, instruction_results=True)]
expected = (
    memory.argument_size_in_bytes + memory.output_size_in_bytes
    + memory.temp_size_in_bytes - memory.alias_size_in_bytes
)
class WithoutProto:
    def __getattr__(self, name):
        return b"" if name.startswith("serialized") else getattr(memory, name)
from fastindex.hlo.assignments import memory_of_compiled
print(json.dumps([expected, memory_of_compiled(WithoutProto()).total, [r.to_json() for r in reports]]))
"""


@pytest.mark.in_turn(seconds=2)
def test_objects_of_jax() -> None:
    pytest.importorskip("jax")
    run = subprocess.run([sys.executable, "-c", JAX], capture_output=True, text=True, check=True)
    expected, without_proto, (compiled, lowered, results) = json.loads(run.stdout)
    assert without_proto == expected
    (module,) = compiled["modules"]
    assert module["peak_basis"] == "buffer assignment"
    constants = module["assigned"]["constant_nbytes"]
    # Reducers have a few bytes themselves.
    assert 0 <= module["peak_nbytes"] - constants - expected < 64
    assert "before layout assignment" in lowered["modules"][0]["notes"][0]
    assert lowered["peak_nbytes"] is None
    assert results["counted"] == "instruction results"
    assert any(place["source_line"] for row in compiled["shapes"] for place in row["instructions"])
