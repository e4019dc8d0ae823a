"""XLA dump files: the module and stage in their names, and the memory reports written next to a module."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fastindex.errors import FastIndexError
from fastindex.hlo.assignments import assigned_memory, read_buffer_assignment, read_memory_usage_report
from fastindex.hlo.read.kinds import ENDINGS, plain_name, read_whole
from fastindex.hlo.totals import AssignedMemory, Basis

#: File name endings of HLO, without a compression ending.
_TEXTS = (".txt", ".hlo")
_PROTOS = (".hlo.pb", ".hlo_proto.pb")
_PROFILE = ".xplane.pb"
#: ``module_0001.jit_f.cpu_after_optimizations.txt``, ``module_0001.jit_f.0003.pass.after_x.before_y.txt``
_DUMP_NAME = re.compile(
    r"(module_\d+\..+?)(?:\.cl_\d+)?\."
    r"(\d{4}\..*|[\w.]*?(?:before|after)_(?:optimizations|codegen)\w*|oom_intermediate_module)\.(?:txt|hlo|hlo\.pb)"
)
#: Endings of stage names, in the order in which XLA dumps them; passes come after the first.
_STAGES = (
    "before_optimizations",
    # Dumped when memory runs out before the optimizations end.
    "oom_intermediate_module",
    "after_optimizations_before_buffer_assignment",
    "after_optimizations",
    "after_optimizations_after_buffer_assignment",
    "after_codegen",
)
#: The buffer assignment of a module with a million values takes 200 MB.
_LONGEST_ASSIGNMENT = 1 << 30
#: Memory reports are named after the first of these stages.
_OPTIMIZED, *_LATER = _STAGES[_STAGES.index("after_optimizations") :]
_MODULE_START = re.compile(rb"\s*(?:(?://[^\n]*\n|/\*.*?\*/)\s*)*HloModule\b", re.DOTALL)
#: Memory reports that XLA writes next to a module, by the ending added to its stem, most precise first.
_BESIDE: tuple[tuple[str, Basis], ...] = (
    ("-buffer-assignment.txt", "buffer assignment"),
    ("-memory-usage-report.txt", "memory usage report"),
)


@dataclass(frozen=True, slots=True)
class KnownMemory:
    """Memory use of a module according to XLA.

    Attributes
    ----------
    nbytes : int
        Bytes in memory space 0.
    basis : str
        Source of the number.
    assigned : AssignedMemory or None
        Bytes by purpose, if known.
    is_rounded : bool
        Whether `nbytes` is a sum of rounded numbers, maybe of several memory spaces: `memory_analysis()` for a TPU.
    """

    nbytes: int
    basis: Basis
    assigned: AssignedMemory | None = None
    is_rounded: bool = False


def stage_of(file: Path) -> str:
    """Return the compilation stage from the name of a dump file, or "".

    Examples
    --------
    >>> stage_of(Path("module_0001.jit_f.sm_9.0_gpu_after_optimizations.txt"))
    'sm_9.0_gpu_after_optimizations'
    """
    name = _DUMP_NAME.fullmatch(plain_name(file.name))
    return name.group(2) if name else ""


def stem_of(file: Path) -> Path:
    """Return the path without the ending that names the file format.

    Examples
    --------
    >>> stem_of(Path("a/module_0001.f.cpu_after_optimizations.hlo.pb.gz")).name
    'module_0001.f.cpu_after_optimizations'
    """
    name = plain_name(file.name)
    return file.with_name(next((name.removesuffix(end) for end in (*_PROTOS, *_TEXTS) if name.endswith(end)), name))


def dumped_modules(folder: Path) -> dict[Path, str]:
    """Return the files to read from a dump folder, with their stages: each module's last stage, and profiles.

    Raises
    ------
    FastIndexError
        No file contains HLO.
    """
    stages: dict[str, dict[str, Path]] = {}
    chosen: dict[Path, str] = {}
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    profiled = {file.parent for file in files if plain_name(file.name).endswith(_PROFILE)}
    # Text before protos: for the same stage prefer the text, after which XLA names the memory reports.
    for file in sorted(files, key=lambda file: plain_name(file.name).endswith(_PROTOS)):
        if plain_name(file.name).endswith(_PROFILE):
            chosen[file] = ""
        elif _has_module(file) and not (plain_name(file.name).endswith(_PROTOS[1]) and file.parent in profiled):
            name = _DUMP_NAME.fullmatch(plain_name(file.name))
            module = str(file.parent / (name.group(1) if name else stem_of(file).name))
            stages.setdefault(module, {}).setdefault(stage_of(file), file)
    if not stages and not chosen:
        raise FastIndexError(
            f"no HLO text in {folder}: no .txt or .hlo file begins with HloModule, and there is no .hlo.pb and no "
            f".xplane.pb; dump with XLA_FLAGS='--xla_dump_to={folder} --xla_dump_hlo_as_text'"
        )
    for found in stages.values():
        stage = max(found, key=_lateness)
        chosen[found[stage]] = f"{stage} (of {len(found)} stages)" if len(found) > 1 else stage
    return dict(sorted(chosen.items()))


def _lateness(stage: str) -> tuple[int, str]:
    """Sort key of a stage: when it is dumped; passes by their number."""
    if stage[:4].isdigit():
        return 1, stage
    ranks = [rank for rank, ending in enumerate(_STAGES) if stage.endswith(ending)]
    return (2 * ranks[-1] if ranks else 0), stage


def _has_module(file: Path) -> bool:
    name = plain_name(file.name)
    if name.endswith(_PROTOS):
        return True
    if not name.endswith(_TEXTS):
        return False
    try:
        return _MODULE_START.match(read_whole(file, 4096)) is not None
    except (OSError, FastIndexError):
        # Reading the file later reports the problem.
        return stage_of(file) != ""


def module_stem(file: Path) -> Path | None:
    """Return the `stem_of` the module to which a dumped memory report belongs; None for other files."""
    for ending, _ in _BESIDE:
        if plain_name(file.name).endswith(ending):
            return file.with_name(plain_name(file.name).removesuffix(ending))
    return None


def _beside_optimized(file: Path, ending: str) -> Path | None:
    """Return the memory report named after the optimized stage, for a later stage of the same compilation."""
    name = _DUMP_NAME.fullmatch(plain_name(file.name))
    if name is None or not name.group(2).endswith(tuple(_LATER)):
        return None
    begin, stage = file.name[: name.start(2)], name.group(2)
    late = next(ending for ending in _LATER if stage.endswith(ending))
    return _existing(file.with_name(f"{begin}{stage.removesuffix(late)}{_OPTIMIZED}{ending}"))


def _existing(file: Path) -> Path | None:
    """Return the file, or its compressed version; None if neither exists."""
    return next((Path(f"{file}{end}") for end in ("", *ENDINGS) if os.path.isfile(f"{file}{end}")), None)


def memory_beside(file: Path) -> KnownMemory | None:
    """Read the memory report that XLA dumped next to a module; None if there is none that can be read."""
    for ending, basis in _BESIDE:
        stem = stem_of(file)
        beside = _existing(stem.with_name(stem.name + ending)) or _beside_optimized(file, ending)
        if beside is None:
            continue
        try:
            text = read_whole(beside, _LONGEST_ASSIGNMENT).decode("utf-8", "replace")
            if basis == "buffer assignment":
                assigned = assigned_memory(read_buffer_assignment(text))
                return KnownMemory(assigned.total, basis, assigned)
            return KnownMemory(read_memory_usage_report(text)[0], basis)
        except (OSError, FastIndexError):
            continue
    return None
