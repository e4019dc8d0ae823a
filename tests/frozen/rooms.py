"""Code lines room by room, and the imports between rooms: what a change of the structure is measured by.

    python -m tests.frozen.rooms

A room is a folder of the package, or a module beside them. A code line has code: no docstring, comment or blank line
counts. "Up" are imports against the order of `layers` in ``pyproject.toml``; imports for types alone are left out.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.code_lines import code_lines  # noqa: E402

PACKAGE = ROOT / "fastindex"


def layers() -> list[str]:
    """Return the rooms in the order of the import contract, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    return [room.strip() for layer in contract["layers"] for room in layer.replace(":", "|").split("|")]


def room_of(module: str) -> str:
    """Return the room of a module of the package.

    Examples
    --------
    >>> room_of("fastindex.lowering.tuning"), room_of("fastindex.errors")
    ('lowering', 'errors')
    """
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of the package that a module imports, at its top or in a function."""
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fastindex":
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] == "fastindex")


def import_lines(tree: ast.Module) -> int:
    """Return how many lines of a module are imports of anything."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def measured() -> tuple[dict[str, list[int]], Counter[tuple[str, str]]]:
    """Return files, code lines and import lines of each room, and how many imports lead from room to room."""
    rooms: dict[str, list[int]] = {}
    between: Counter[tuple[str, str]] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found = rooms.setdefault(parts[0], [0, 0, 0])
        for k, count in enumerate((1, code_lines(text), import_lines(tree))):
            found[k] += count
        for module in imports_of(tree):
            if room_of(module) != parts[0]:
                between[parts[0], room_of(module)] += 1
    return rooms, between


def main() -> None:
    rooms, between = measured()
    order = {room: k for k, room in enumerate(layers())}
    lines = [f"{'room':16}{'files':>7}{'code':>8}{'imports':>9}"]
    lines += [f"{room:16}{files:7}{code:8}{imports:9}" for room, (files, code, imports) in sorted(rooms.items())]
    lines.append(
        f"{'in all':16}"
        + "".join(f"{sum(column):{w}}" for column, w in zip(zip(*rooms.values(), strict=True), (7, 8, 9), strict=True))
    )
    up = {pair: count for pair, count in between.items() if order.get(pair[0], -1) > order.get(pair[1], -1) >= 0}
    lines.append(
        f"{len(between)} pairs of rooms, {sum(between.values())} imports between them, {sum(up.values())} of them up"
    )
    lines += [f"  up: {a} imports {b}, {count} times" for (a, b), count in sorted(up.items())]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
