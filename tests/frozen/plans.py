"""Digests of plans, frozen: whether code that was moved still plans the same, on machines that are named.

    python -m tests.frozen.plans            what differs from the file; a minute
    python -m tests.frozen.plans --write    freeze the plans of today, after a change of them that was meant

A cell is a relayout: of the cases of benchmarks, of the sweep over layouts of dumps, or drawn at random. Its plan is
the candidate that is chosen and every number that its kernels read. Each cell is planned on each machine of
`tests.cases.machines`, with vectors of 16 and 64 bytes. A line of the file is the cell, the candidate chosen most
often, and a digest of all its plans.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.cases import RELAYOUT_CASES, SIZES  # noqa: E402
from benchmarks.sweep_cells import CHAINS, DIRECTIONS, MINORS, ORDERS, SECONDS, TYPES, Cell  # noqa: E402
from fastindex import Shape  # noqa: E402
from fastindex.moving.choice import select_plan  # noqa: E402
from fastindex.moving.passes import Pass, with_tables  # noqa: E402
from fastindex.moving.problem import Problem, slot_move  # noqa: E402
from fastindex.runtime.machine import Machine  # noqa: E402
from fastindex.runtime.tuning import TUNING  # noqa: E402
from tests.cases.machines import MACHINES  # noqa: E402
from tests.cases.strategies import medium_pair  # noqa: E402

FILE = ROOT / "tests" / "golden" / "plans.txt"
SWEPT, DRAWN = 900, 1034
VECTOR_BYTES = (16, 64)


def cells() -> Iterator[tuple[str, str]]:
    """Yield source and destination of each cell, in the order of the file."""
    for case in RELAYOUT_CASES:
        for size in SIZES:
            yield case.source(size), case.destination(size)
    draw = random.Random(1)
    for _ in range(SWEPT):
        parts = (CHAINS, list(TYPES), MINORS, SECONDS, list(ORDERS), DIRECTIONS)
        source, destination = Cell(*(draw.choice(part) for part in parts)).shapes  # type: ignore[arg-type, misc]
        yield str(source), str(destination)
    for seed in range(DRAWN):
        source, destination = medium_pair(seed)
        yield str(source), str(destination)


def machines() -> Iterator[Machine]:
    """Yield the named machines, with either size of vectors."""
    for machine in MACHINES.values():
        for vector_bytes in VECTOR_BYTES:
            yield replace(machine, target=replace(machine.target, vector_bytes=vector_bytes))


def planned(source: str, destination: str, machine: Machine) -> tuple[str, tuple[Pass, ...]]:
    """Return the candidate that is chosen, and its passes."""
    sides = Shape.parse(source), Shape.parse(destination)
    plan = select_plan(Problem(*sides, slot_move(*sides), machine, TUNING))
    return plan.name, with_tables(plan.drafts or ())


def numbers(one: Pass) -> Iterator[Any]:
    """Yield all that a kernel is started with."""
    yield one.kernel, one.width, one.ways, one.tasks, one.task_bytes, one.source_start, one.destination_start
    for table in (one.outer, one.geometry, *one.tables):
        yield table.shape, table.tobytes()
    for inner, reads, writes in one.inner:
        yield reads, writes
        yield from numbers(inner)


def line(source: str, destination: str) -> str:
    """Return the line of a cell."""
    digest, names = hashlib.sha256(), Counter[str]()
    for machine in machines():
        name, passes = planned(source, destination, machine)
        names[name] += 1
        digest.update(repr((name, [list(numbers(one)) for one in passes])).encode())
    return f"{source} {destination} {names.most_common(1)[0][0].replace(' ', '_')} {digest.hexdigest()[:12]}"


def main() -> int:
    found = [line(*cell) for cell in cells()]
    if "--write" in sys.argv:
        FILE.write_text("".join(f"{one}\n" for one in found))
        return 0
    frozen = FILE.read_text().splitlines()
    differing = [pair for pair in zip(frozen, found, strict=True) if pair[0] != pair[1]]
    for before, now in differing:
        sys.stdout.write(f"- {before}\n+ {now}\n")
    sys.stdout.write(f"{len(differing)} of {len(found)} cells differ\n")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
