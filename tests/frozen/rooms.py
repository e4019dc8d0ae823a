"""Code lines room by room, and the imports between rooms: what a change of the structure is measured by.

    python -m tests.frozen.rooms
    python -m tests.frozen.rooms --base 3a89012    beside the same of another commit

A room is a folder of the package, or a module beside them, as they are in the tree. A code line has code: no docstring,
comment or blank line counts. An import points upwards if it is against the order of `layers` in ``pyproject.toml``;
imports for types alone, and of what a text names, are left out.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tempfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "fastindex"
_SKIPPED_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def code_lines(text: str) -> int:
    """How many lines have code.

    Examples
    --------
    >>> code_lines("'''Says what.'''\\n\\nx = 1  # one\\n# two\\ny = (\\n    2\\n)\\n")
    4
    """
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            said = node.body[0]
            strings.update(range(said.lineno, (said.end_lineno or said.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SKIPPED_TOKENS and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - strings)


class Size(NamedTuple):
    """What a room has."""

    files: int
    code: int
    imports: int

    def row(self) -> str:
        """Return the columns of a table."""
        return f"{self.files:6}{self.code:8}{self.imports:9}{self.imports / max(self.code, 1):7.1%}"


class Rooms(NamedTuple):
    """The rooms of a tree, and how many imports lead from one to another."""

    sizes: dict[str, Size]
    between: Counter[tuple[str, str]]
    levels: dict[str, int]

    @property
    def total(self) -> Size:
        """The size of the package."""
        return Size(*(sum(column) for column in zip(*self.sizes.values(), strict=True)))

    def upwards(self) -> dict[tuple[str, str], int]:
        """Return the imports from a room into one above it."""
        return {pair: count for pair, count in sorted(self.between.items()) if is_upwards(self.levels, *pair)}


def levels(root: Path) -> dict[str, int]:
    """Return the level of each room that the import contract of a tree lists, 0 the lowest."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    contract = next(one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    named = enumerate(reversed(contract["layers"]))
    return {room.strip(" ()"): k for k, layer in named for room in layer.replace(":", "|").split("|")}


def is_upwards(levels: dict[str, int], source: str, target: str) -> bool:
    """Whether a room imports, or calls, one above it; of a room that the contract does not list, nothing is said.

    Examples
    --------
    >>> is_upwards({"errors": 0, "shapes": 1}, "errors", "shapes"), is_upwards({"shapes": 1}, "shapes", "__init__")
    (True, False)
    """
    return source in levels and target in levels and levels[target] > levels[source]


def room_of(module: str) -> str:
    """Return the room of a module of the package.

    Examples
    --------
    >>> room_of("fastindex.runtime.tuning"), room_of("fastindex.errors"), room_of("fastindex")
    ('runtime', 'errors', '__init__')
    """
    return module.split(".")[1] if "." in module else "__init__"


def modules(root: Path) -> dict[str, Path]:
    """Return the modules of the package of a tree, by name."""
    paths = [path for path in sorted((root / PACKAGE).rglob("*.py")) if "__pycache__" not in path.parts]
    names = (".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return dict(zip(names, paths, strict=True))


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
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            yield from (f"{PACKAGE}.{one.name}" for one in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] == PACKAGE)


def import_lines(tree: ast.Module) -> int:
    """Return how many lines of a module are imports of anything."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def measured(root: Path) -> Rooms:
    """Return the rooms of a tree."""
    found: dict[str, Size] = {}
    between: Counter[tuple[str, str]] = Counter()
    sources = {name: path.read_text() for name, path in modules(root).items()}
    rooms = {room_of(name) for name in sources}
    for name, text in sources.items():
        tree, room = ast.parse(text), room_of(name)
        before = found.get(room, Size(0, 0, 0))
        found[room] = Size(before.files + 1, before.code + code_lines(text), before.imports + import_lines(tree))
        # A public name of the package comes from its `__init__`.
        targets = (room_of(module) for module in imports_of(tree))
        between.update((room, target if target in rooms else "__init__") for target in targets)
    for room in found:
        del between[room, room]
    return Rooms(found, between, levels(root))


@contextmanager
def tree_at(revision: str) -> Iterator[Path]:
    """Unpack the package of a commit into a temporary folder."""
    command = ["git", "archive", revision, PACKAGE, "pyproject.toml"]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def table(columns: dict[str, Rooms]) -> Iterator[str]:
    """Yield the lines of a table of rooms, with some columns for each tree."""
    heads = (f"{'files':>6}{'code':>8}{'imports':>9}{'share':>7}" for _ in columns)
    if len(columns) > 1:
        yield f"{'':14}" + "  ".join(f"{name:>30}" for name in columns)
    yield f"{'room':14}" + "  ".join(heads)
    none = Size(0, 0, 0)
    for room in sorted({room for rooms in columns.values() for room in rooms.sizes}):
        yield f"{room:14}" + "  ".join(rooms.sizes.get(room, none).row() for rooms in columns.values())
    yield f"{'in all':14}" + "  ".join(rooms.total.row() for rooms in columns.values())


def doors(rooms: Rooms) -> Iterator[str]:
    """Yield what imports what, room by room, and the imports upwards."""
    for room in sorted(rooms.sizes):
        targets = [f"{target} {count}" for (source, target), count in sorted(rooms.between.items()) if source == room]
        if targets:
            yield f"{room} imports {', '.join(targets)}"
    upwards = rooms.upwards()
    count = f"{len(rooms.between)} pairs of rooms, {rooms.between.total()} imports between them"
    yield f"{count}, {sum(upwards.values())} of them upwards"
    yield from (f"  upwards: {source} imports {target} {count}" for (source, target), count in upwards.items())


def main() -> None:
    parser = argparse.ArgumentParser(description="Code lines and imports, room by room.")
    parser.add_argument("--base", metavar="REV", help="a commit to print beside this tree")
    base = parser.parse_args().base
    columns = {"now": measured(ROOT)}
    if base:
        with tree_at(base) as root:
            columns[base] = measured(root)
    lines = [*table(columns)]
    for name, rooms in columns.items():
        lines += ["", *([f"{name}:"] if base else []), *doors(rooms)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
