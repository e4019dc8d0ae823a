"""The files that XLA dumps: the module and stage of each, and the files about memory beside a module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fastindex.errors import FastIndexError
from fastindex.hlo.assignments import assigned_memory, read_buffer_assignment, read_memory_usage_report
from fastindex.hlo.module_sums import AssignedMemory, Basis

SUFFIXES = (".txt", ".hlo")
#: ``module_0001.jit_f.cpu_after_optimizations.txt``, ``module_0001.jit_f.0003.pass.after_x.before_y.txt``
_DUMP_NAME = re.compile(
    r"(module_\d+\..+?)(?:\.cl_\d+)?\.(\d{4}\..*|[\w.]*?(?:before|after)_(?:optimizations|codegen)\w*)\.(?:txt|hlo)"
)
#: How the names of stages end, in the order in which XLA dumps them; passes come after the first.
_STAGES = (
    "before_optimizations",
    "after_optimizations_before_buffer_assignment",
    "after_optimizations",
    "after_optimizations_after_buffer_assignment",
    "after_codegen",
)
_MODULE_START = re.compile(rb"\s*(?:(?://[^\n]*\n|/\*.*?\*/)\s*)*HloModule\b", re.DOTALL)
#: What XLA writes beside a module, by the ending that it adds to the stem, best first.
_BESIDE: tuple[tuple[str, Basis], ...] = (
    ("-buffer-assignment.txt", "buffer assignment"),
    ("-memory-usage-report.txt", "memory usage report"),
)


@dataclass(frozen=True, slots=True)
class KnownMemory:
    """The memory of a module according to XLA.

    Attributes
    ----------
    nbytes : int
        All of memory space 0.
    basis : str
        The source of the number.
    assigned : AssignedMemory or None
        The parts by purpose, if known.
    """

    nbytes: int
    basis: Basis
    assigned: AssignedMemory | None = None


def stage_of(file: Path) -> str:
    """Return the stage of compilation in the name of a file, or "".

    Examples
    --------
    >>> stage_of(Path("module_0001.jit_f.sm_9.0_gpu_after_optimizations.txt"))
    'sm_9.0_gpu_after_optimizations'
    """
    name = _DUMP_NAME.fullmatch(file.name)
    return name.group(2) if name else ""


def dumped_modules(folder: Path) -> dict[Path, str]:
    """Return the files of a dump folder to read, and their stages: the last one of each module.

    Raises
    ------
    FastIndexError
        No file begins with ``HloModule``.
    """
    stages: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix not in SUFFIXES or not file.is_file() or not _begins_module(file):
            continue
        name = _DUMP_NAME.fullmatch(file.name)
        module = str(file.parent / (name.group(1) if name else file.name))
        stages.setdefault(module, {})[stage_of(file)] = file
    if not stages:
        raise FastIndexError(
            f"no HLO text in {folder}: no .txt or .hlo file begins with HloModule; dump with "
            f"XLA_FLAGS='--xla_dump_to={folder} --xla_dump_hlo_as_text'"
        )
    chosen = {}
    for files in stages.values():
        stage = max(files, key=_lateness)
        chosen[files[stage]] = f"{stage} (of {len(files)} stages)" if len(files) > 1 else stage
    return chosen


def _lateness(stage: str) -> tuple[int, str]:
    """Order stages by when they are dumped; among passes, by their number."""
    if stage[:4].isdigit():
        return 1, stage
    ranks = [rank for rank, ending in enumerate(_STAGES) if stage.endswith(ending)]
    return (2 * ranks[-1] if ranks else 0), stage


def _begins_module(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return _MODULE_START.match(stream.read(4096)) is not None
    except OSError:
        # Reading it later reports the problem.
        return stage_of(file) != ""


def module_of(file: Path) -> Path | None:
    """Return the module that a dumped file about memory belongs to; None for other files."""
    for ending, _ in _BESIDE:
        if file.name.endswith(ending):
            return file.with_name(file.name.removesuffix(ending) + ".txt")
    return None


def _beside_optimized(file: Path, ending: str) -> Path | None:
    """Return what lies beside the stage after optimizations, for a later stage of the same compilation."""
    name = _DUMP_NAME.fullmatch(file.name)
    if name is None or not name.group(2).endswith(_STAGES[3:]):
        return None
    begin, stage = file.name[: name.start(2)], name.group(2)
    late = next(ending for ending in _STAGES[3:] if stage.endswith(ending))
    beside = file.with_name(f"{begin}{stage.removesuffix(late)}{_STAGES[2]}{ending}")
    return beside if beside.is_file() else None


def memory_beside(file: Path) -> KnownMemory | None:
    """Read what XLA dumped about a module's memory beside it; None if there is nothing readable."""
    for ending, basis in _BESIDE:
        own = file.with_name(file.stem + ending)
        beside = own if own.is_file() else _beside_optimized(file, ending)
        if beside is None:
            continue
        try:
            text = beside.read_text(encoding="utf-8", errors="replace")
            if basis == "buffer assignment":
                assigned = assigned_memory(read_buffer_assignment(text))
                return KnownMemory(assigned.total, basis, assigned)
            return KnownMemory(read_memory_usage_report(text)[0], basis)
        except (OSError, FastIndexError):
            continue
    return None
