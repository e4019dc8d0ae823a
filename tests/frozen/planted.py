"""Planted bugs by id, and every name of the package that tests replace: a bug whose place has moved does not pass.

    python -m tests.frozen.planted            each bug and where it is planted, then replaced names that nothing reads
    python -m tests.frozen.planted --write    record the bugs, after one was taken out or given another name

A bug is a test that says "planted" or whose name says that what is wrong shows, is noticed or found. Its id is the file
and the function. Its places are the names of the package that it replaces, also in the text of a program for another
process; without any it spoils data, and fails if it does not. A name that is replaced has to be in its module, and
something has to read it there: what imports a name keeps the old value.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.frozen.rooms import PACKAGE, ROOT
from tests.frozen.walk import Definition, Package, this_package

TESTS = ROOT / "tests"
FILE = TESTS / "golden" / "planted.txt"

_SAYS_SO = re.compile("planted", re.IGNORECASE)
_ENDS = ("_shows", "_noticed")
#: Of a test that replaces something, or of the fault campaign.
_ENDS_OF_SOME = ("_found",)


class Replaced(NamedTuple):
    """A name of the package that a test replaces."""

    where: str
    owner: Definition
    name: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


class Bug(NamedTuple):
    """A planted bug."""

    id: str
    places: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.id} {' '.join(self.places) or '-'}"


def programs(node: ast.AST, constants: Mapping[str, ast.AST]) -> Iterator[ast.Module]:
    """Yield the programs in the texts of a function, and in those of its module that it names."""
    named = [constants[one.id] for one in ast.walk(node) if isinstance(one, ast.Name) and one.id in constants]
    for inner in (inner for one in (node, *named) for inner in ast.walk(one)):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and "import" in inner.value:
            try:
                yield ast.parse(inner.value)
            except SyntaxError:
                continue


def replaced_in(package: Package, module: str, where: str, node: ast.AST) -> Iterator[Replaced]:
    """Yield the names of the package that code replaces, by `monkeypatch.setattr` or by an assignment."""
    for inner in ast.walk(node):
        target: tuple[ast.expr, str] | None = None
        if isinstance(inner, ast.Call) and is_patch(inner.func):
            first = inner.args[0]
            if isinstance(first, ast.Constant) and str(first.value).startswith(f"{PACKAGE}."):
                dotted, _, name = str(first.value).rpartition(".")
                # A dotted name that means nothing is reported as it stands.
                yield Replaced(where, dotted_meaning(package, dotted) or Definition(dotted), name)
            elif len(inner.args) > 1 and isinstance(inner.args[1], ast.Constant):
                target = first, str(inner.args[1].value)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            target = inner.value, inner.attr
        owner = package.meaning(module, target[0]) if target is not None else None
        if target and owner and not isinstance(package.node(owner), ast.FunctionDef):
            yield Replaced(where, owner, target[1])


def is_patch(function: ast.expr) -> bool:
    """Whether a function is `setattr` of `monkeypatch`, or of another name that ends so."""
    is_setattr = isinstance(function, ast.Attribute) and function.attr == "setattr"
    return is_setattr and ast.unparse(function.value).endswith("patch")


def dotted_meaning(package: Package, dotted: str) -> Definition | None:
    """Return the module or the class of a dotted name."""
    parent, _, last = dotted.rpartition(".")
    return package.resolved(Definition(dotted)) or package.resolved(Definition(parent, last))


def found_in(package: Package, path: Path) -> tuple[list[Bug], list[Replaced]]:
    """Return the bugs of a file of tests, and all that it replaces."""
    text = path.read_text()
    module, tree = str(path), ast.parse(text)
    may_say_so = bool(_SAYS_SO.search(f"{path.stem} {text}"))
    package.read(module, tree)
    bugs, replaced = [], []
    constants = {ast.unparse(one.targets[0]): one.value for one in tree.body if isinstance(one, ast.Assign)}
    for node in tree.body:
        name = getattr(node, "name", "module")
        where = f"{path.stem}.{name}"
        here = [*replaced_in(package, module, where, node)]
        for k, program in enumerate(programs(node, constants)):
            package.read(f"{where}.{k}", program)
            here += replaced_in(package, f"{where}.{k}", where, program)
        replaced += here
        # Comments do not say so: what is unparsed has none.
        says_so = name.startswith("test_") and may_say_so and bool(_SAYS_SO.search(f"{path.stem} {ast.unparse(node)}"))
        says_so |= name.endswith(_ENDS)
        says_so |= bool(here or path.stem == "test_faults") and name.endswith(_ENDS_OF_SOME)
        if says_so and name.startswith("test_"):
            bugs.append(Bug(where, tuple(sorted({str(one) for one in here}))))
    return bugs, replaced


def is_there(package: Package, one: Replaced) -> bool:
    """Whether a name is in its module or class."""
    if one.owner.name and package.member(one.owner, one.name):
        return True
    bound: set[str] = set()
    for node in ast.walk(package.node(one.owner)) if package.resolved(one.owner) else ():
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            bound.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound.update(name.asname or name.name for name in node.names)
    return one.name in bound


def reads(package: Package) -> set[tuple[str, str]]:
    """Return module and name of each name that is read where it is, or from elsewhere as an attribute of its module.

    Of a class the attribute alone, with no module: which class an object is of, nothing says.
    """
    found = set()
    for module in package.modules:
        for node in ast.walk(package.node(Definition(module))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add((module, node.id))
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(("", node.attr))
                owner = package.meaning(module, node.value)
                if owner is not None and not owner.name:
                    found.add((owner.module, node.attr))
            elif isinstance(node, ast.FunctionDef):
                # An import in a function finds what is there when it runs.
                late = (one for one in ast.walk(node) if isinstance(one, ast.ImportFrom) and one.module)
                found.update((one.module or "", name.name) for one in late for name in one.names)
    return found


def everything() -> tuple[list[Bug], list[Replaced]]:
    """Return all bugs and all that tests replace."""
    bugs: list[Bug] = []
    replaced: list[Replaced] = []
    for path in sorted({*TESTS.rglob("*.py")} - {TESTS / "frozen" / "test_planted.py"}):
        found = found_in(this_package(), path)
        bugs += found[0]
        replaced += found[1]
    return bugs, replaced


def lost(package: Package, replaced: list[Replaced]) -> list[str]:
    """Return what is replaced and is not there, or is read by nothing."""
    read = reads(package)
    return [
        f"{one.where} replaces {one}, which {'nothing reads' if is_there(package, one) else 'is not there'}"
        for one in replaced
        if not is_there(package, one) or ((one.owner.module if not one.owner.name else ""), one.name) not in read
    ]


def main() -> None:
    bugs, replaced = everything()
    if "--write" in sys.argv:
        FILE.write_text("".join(f"{one}\n" for one in sorted(bugs)))
    missing = lost(this_package(), replaced)
    lines = [*map(str, bugs), *missing]
    lines.append(f"{len(bugs)} planted bugs; {len(replaced)} names are replaced, {len(missing)} of them are lost")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
