"""Real programs, compiled by jaxlib: buffers, live ranges and peaks against what XLA says of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastindex as fi
from fastindex.hlo.flow.buffers import ModuleBuffers, module_buffers, union
from fastindex.hlo.modules import Module, ModuleReader
from fastindex.hlo.scanner import HloScanner
from fastindex.hlo.shape_table import ShapeTable

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = TESTS / "data" / "hlo" / "programs.py"
FOLDERS = sorted(path for path in (TESTS / "data" / "hlo" / "programs").iterdir() if path.is_dir())
_VALUE = re.compile(r" value: <(\d+) (\S+?)(?:\{([\d,]*)\})? (?:\(phi\) )?@\d+> \(size=(\d+),offset=\d+\): (\S+)")

#: XLA also gives memory to the constants inside comparators, which are no buffers of the program: bytes of each.
EMBEDDED_CONSTANTS = {"sort_fft": [4] * 8}


def main_dump(folder: Path) -> Path:
    (found,) = folder.glob("*after_optimizations.txt")
    return found


def dumped(folder: Path, ending: str) -> str:
    main = main_dump(folder)
    return main.with_name(f"{main.stem}-{ending}.txt").read_text()


def facts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return found


def assigned_values(folder: Path) -> dict[int, tuple[int, str]]:
    """Size and shape of the values that XLA gave memory of the module, by number; no thread-local ones."""
    values = {}
    for allocation in dumped(folder, "buffer-assignment").split("\nallocation ")[1:]:
        if "thread-local" not in allocation.split("\n")[0]:
            for number, _, _, size, shape in _VALUE.findall(allocation):
                values[int(number)] = int(size), shape
    return values


def xla_peak(sizes: dict[str, int]) -> int:
    parts = (sizes[f"{part}_size_in_bytes"] for part in ("argument", "output", "temp"))
    return sum(parts) - sizes["alias_size_in_bytes"]


def read(folder: Path) -> tuple[Module, ModuleBuffers, ShapeTable]:
    modules: list[Module] = []
    reader = ModuleReader(modules.append)
    scanner = HloScanner(reader)
    scanner.feed(main_dump(folder).read_bytes())
    scanner.close()
    reader.finish()
    table = ShapeTable()
    return modules[0], module_buffers(modules[0], table), table


def names(folder: Path) -> str:
    return folder.name


@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_the_buffers_are_those_of_xla(folder: Path) -> None:
    """To the byte: the sum over XLA's buffers, as its log lists them; index tables of tuples are left out."""
    values = assigned_values(folder)
    expected = sorted(
        max(values[number][0] for number in numbers if number in values)
        for numbers in facts(folder)["buffers"]
        if any(number in values and not values[number][1].startswith("(") for number in numbers)
    )
    for size in EMBEDDED_CONSTANTS.get(folder.name, ()):
        expected.remove(size)
    report = fi.hlo.report(main_dump(folder))
    found = sorted(size for use in report.uses for size in [use.nbytes] * use.count)
    assert found == expected
    assert report.total_nbytes == sum(expected) + report.table_nbytes
    assert report.problems == ()


@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_the_peak_is_near_that_of_xla(folder: Path) -> None:
    _, found, table = read(folder)
    constants = sum(
        table.nbytes[leaf] for leaf, role in zip(found.leaves, found.roles, strict=True) if role == "constant"
    )
    peak = fi.hlo.report(main_dump(folder)).peak
    assert peak is not None
    expected = xla_peak(facts(folder)["memory_analysis"])
    estimate = (peak.estimate_nbytes or peak.nbytes) - constants
    assert estimate == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_the_schedule_is_that_of_xla(folder: Path) -> None:
    order = re.findall(r"^    (\d+):(\S+)$", dumped(folder, "live-range"), re.MULTILINE)
    _, found, _ = read(folder)
    steps = [("", "")] * found.steps
    for computation, begin, end in found.schedule:
        inner = [(b, e) for _, b, e in found.schedule if begin <= b and e <= end and (b, e) != (begin, end)]
        own = [step for step in range(begin, end) if not any(b <= step < e for b, e in inner)]
        for step, name in zip(own, computation.names(), strict=True):
            steps[step] = str(step), name
    assert steps == order


@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_live_ranges_are_those_of_xla(folder: Path) -> None:
    """The steps at which each of XLA's buffers is alive: the union of the live ranges of its values.

    Arguments are alive throughout for XLA, and are counted so here. A buffer of one value that hands its memory to
    the result of its last reader ends a step earlier here.
    """
    ranges = {
        (name, index): (int(start), int(end))
        for name, index, start, end in re.findall(
            r"^    (\S+?)\{([\d,]*)\}:(\d+)-(\d+)$", dumped(folder, "live-range"), re.MULTILINE
        )
    }
    named = {
        int(number): (name, index or "")
        for number, name, index, _, _ in _VALUE.findall(dumped(folder, "buffer-assignment"))
    }
    by_name: dict[str, list[list[tuple[int, int]]]] = {}
    for numbers in facts(folder)["buffers"]:
        keys = [named[number] for number in numbers if number in named and named[number] in ranges]
        for name in {name for name, _ in keys}:
            by_name.setdefault(name, []).append(union([ranges[key] for key in keys]))
    compared = 0
    found = read(folder)[1]
    for number, (computation, place) in enumerate(zip(found.owners, found.places, strict=True)):
        groups = by_name.get(computation.names()[place], [])
        if len(groups) == 1 and found.roles[number] in ("temporary", "output"):
            (expected,) = groups
            start, end = expected[-1]
            intervals = found.intervals(number)
            assert intervals == expected or (len(expected) == 1 and intervals == [(start, end - 1)])
            compared += 1
    assert compared >= 1


@pytest.mark.sweep
@pytest.mark.parametrize("folder", FOLDERS, ids=names)
def test_the_same_of_what_this_jaxlib_compiles(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    compiled = compile_again(folder.name, tmp_path / "as users have it", "")
    test_the_buffers_are_those_of_xla(compiled)
    test_the_peak_is_near_that_of_xla(compiled)
    if re.search(r"\(.*#\d", main_dump(compiled).read_text()):
        # Where the instructions stand that this text leaves out, only the long text says.
        compiled = compile_again(folder.name, tmp_path / "with all instructions", "--xla_dump_compact_gte=false")
        test_the_buffers_are_those_of_xla(compiled)
        test_the_peak_is_near_that_of_xla(compiled)
    test_the_schedule_is_that_of_xla(compiled)
    test_live_ranges_are_those_of_xla(compiled)


def compile_again(name: str, folder: Path, flags: str) -> Path:
    command = [sys.executable, str(PROGRAMS), name, str(folder / name)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "XLA_FLAGS": flags})
    return folder / name
