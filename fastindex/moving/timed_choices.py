"""Timings of the candidates of relayouts on this machine, kept in files with the fastest candidate.

Each relayout and number of threads has one file, which is replaced atomically, so that processes need no locks. A file
that is damaged, or of another relayout, machine or version, is ignored until it is overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import fastindex
from fastindex.algebra.sides import RegroupedShape, joined_variables
from fastindex.core.shape import Shape
from fastindex.first_use import load
from fastindex.runtime.machine import Machine
from fastindex.runtime.threads import thread_count
from fastindex.runtime.tuning import Tuning

_FOLDER = "tuned"
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest candidate, and the times of all.

    Attributes
    ----------
    name : str
        Name of the fastest candidate.
    threads : int
        Number of threads of the timed calls.
    seconds : mapping of str to float
        Seconds of each timed candidate.
    """

    name: str
    threads: int
    seconds: Mapping[str, float]


def remember(source: Shape, destination: Shape, machine: Machine, tuning: Tuning, choice: Choice) -> None:
    """Store a choice for later processes; do nothing where no folder is writable."""
    folder, key = _folder(), _key(source, destination, machine, tuning, choice.threads)
    if folder is None:
        return
    text = json.dumps({"key": key, "choice": choice.name, "seconds": dict(choice.seconds)}, indent=1)
    from fastindex.runtime.machine_code import write_whole

    # On a full disk or in a read-only folder, only this process keeps the choice.
    with contextlib.suppress(OSError):
        write_whole(_path(folder, key), text.encode())


def remembered(source: Shape, destination: Shape, machine: Machine, tuning: Tuning) -> Choice | None:
    """Return the stored choice for the default number of threads, else for one thread, else None."""
    folder = _folder()
    if folder is None or not folder.is_dir():
        return None
    for threads in dict.fromkeys((thread_count(None), 1)):
        key = _key(source, destination, machine, tuning, threads)
        found = _read(_path(folder, key), key)
        if found is not None:
            return Choice(found["choice"], threads, found["seconds"])
    return None


def _read(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """Return the content of a file, or None unless `remember` has written it for this key."""
    try:
        if not path.is_file():  # a pipe would never end
            return None
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("key") != key or not isinstance(found.get("choice"), str):
        return None
    seconds = found.get("seconds")
    if not isinstance(seconds, dict) or not all(type(value) is float and value > 0 for value in seconds.values()):
        return None
    return found if found["choice"] in seconds else None


def _key(source: Shape, destination: Shape, machine: Machine, tuning: Tuning, threads: int) -> dict[str, Any]:
    """Return everything that a choice depends on."""
    sides, instructions = _spelled(source, destination), ",".join(sorted(machine.target.instructions))
    return {
        "version": fastindex.__version__,
        "processor": _processor(),
        "machine": f"{machine.caches}, {machine.processors} processors, {instructions}",
        "source": sides[0],
        "destination": sides[1],
        "threads": threads,
        "tuning": repr(tuning),
    }


def _spelled(source: Shape, destination: Shape) -> tuple[str, str]:
    """Return the text of two sides; equal rearrangements have equal text, however their patterns are written."""
    if not isinstance(source, RegroupedShape) or not isinstance(destination, RegroupedShape):
        return str(source), str(destination)
    left, right = joined_variables((source, destination))
    extents = [v.extent for v in left.variables]
    first, last = (
        f"{side.shape} {[[(d.weight, d.variable.key, d.low, d.high) for d in one] for one in side.coordinates]}"
        for side in (left, right)
    )
    return f"{first} {extents}", last


@lru_cache(maxsize=1)
def _processor() -> str:
    """Return LLVM's name of this processor."""
    load("llvmlite.binding")
    from llvmlite import binding

    return str(binding.get_host_cpu_name())


def _folder() -> Path | None:
    load("fastindex.runtime.machine_code")
    from fastindex.runtime.machine_code import cache_folder

    folder = cache_folder()
    return None if folder is None else folder / _FOLDER


def _path(folder: Path, key: dict[str, Any]) -> Path:
    return folder / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]}.json"
