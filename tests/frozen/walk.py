"""Follow one parameter of a public function through the calls, by reading the package: how far a reader has to go.

    python -m tests.frozen.walk relayout:source pack_file:shape    where they go, and the counts
    python -m tests.frozen.walk                                    the counts of those in `tests/golden/walks.txt`
    python -m tests.frozen.walk --base 3a89012                     and those of another commit
    python -m tests.frozen.walk --write                            record the counts

The walk visits what the parameter is handed to, depth first in the order of the calls, each function once. It is handed
on by position, by keyword, as the object of a method or a property, and through assignments; with it goes what a call
makes of it, and of that each part that is an object of the package: numbers and bools end it. A function that is handed
over in front of it is called with it. What an object is, annotations say; calls through tables, protocols and other
libraries are not followed. Functions within functions are read where they stand.

A climb is a step into a room above that of the step before, by the layers of ``pyproject.toml``; a return is one into a
module that the walk has left before.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.frozen.rooms import PACKAGE, ROOT, is_upwards, levels, modules, room_of, tree_at

FILE = ROOT / "tests" / "golden" / "walks.txt"

#: Types of results that carry nothing of the arguments, and functions of Python's that have such.
_WORKED_OUT = {"bool", "int", "float", "None", "Never", "NoReturn"}
_NUMBERS = {"len", "isinstance", "issubclass", "hasattr", "callable", "hash", "id", "any", "all", "sum", "int", "bool"}
_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """A module, or a class or function in it; a method's name has its class in front."""

    module: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}".removeprefix(f"{PACKAGE}.").removesuffix(".")


class Counts(NamedTuple):
    """What a walk comes to."""

    functions: int
    rooms: int
    climbs: int
    returns: int

    def __str__(self) -> str:
        return f"functions {self.functions}, rooms {self.rooms}, climbs {self.climbs}, returns {self.returns}"


class Package:
    """The modules of a tree, and what their names mean."""

    def __init__(self, root: Path) -> None:
        self.levels = levels(root)
        self._nodes: dict[Definition, ast.AST] = {}
        self._imported: dict[Definition, Definition] = {}
        self._constants: dict[Definition, ast.expr] = {}
        self.modules = modules(root)
        for name, path in self.modules.items():
            self.read(name, ast.parse(path.read_text()))

    def read(self, module: str, tree: ast.Module) -> None:
        """Add a module, of the package or one that imports it."""
        self._nodes[Definition(module)] = tree
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
                for one in node.names:
                    self._imported[Definition(module, one.asname or one.name)] = Definition(node.module or "", one.name)
            elif isinstance(node, ast.Import):
                for one in node.names:
                    name, meant = (one.asname, one.name) if one.asname else [one.name.split(".")[0]] * 2
                    self._imported[Definition(module, name)] = Definition(meant)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy_names":
                for home, names in ast.literal_eval(node.args[1]).items():
                    self._imported |= {Definition(module, name): Definition(home, name) for name in names}
        for stated in tree.body:
            if isinstance(stated, ast.Assign) and isinstance(stated.targets[0], ast.Name):
                self._constants[Definition(module, stated.targets[0].id)] = stated.value
            self._define(module, stated, "")

    def _define(self, module: str, node: ast.AST, prefix: str) -> None:
        if isinstance(node, ast.ClassDef | _Function):
            self._nodes[Definition(module, prefix + node.name)] = node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                self._define(module, inner, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ast.iter_child_nodes(node):
                self._define(module, part, prefix)

    def node(self, definition: Definition) -> ast.AST:
        return self._nodes[definition]

    def public(self, name: str) -> Definition:
        """Return the function of a public name, of a dotted one, or of one that a single module has."""
        found = self.resolved(Definition(PACKAGE, name))
        if found is not None:
            return found
        parent, _, last = name.rpartition(".")
        named = Definition(f"{PACKAGE}.{parent}", last)
        alike = [one for one in self._nodes if one.name == name] if not parent else [self.resolved(named) or named]
        if len(alike) != 1 or alike[0] not in self._nodes:
            raise SystemExit(
                f"{name} is {'no function' if not alike else 'several'}; name its module: folder.module.name"
            )
        return alike[0]

    def resolved(self, definition: Definition) -> Definition | None:
        """Return where something is defined that a module has, or has imported."""
        for _ in range(9):
            if definition in self._nodes:
                return definition
            whole = Definition(f"{definition.module}.{definition.name}")
            if whole in self._nodes:
                return whole
            imported = self._imported.get(definition)
            if imported is None:
                break
            definition = imported
        return None

    def meaning(self, module: str, node: ast.AST) -> Definition | None:
        """Return what a dotted name means in a module."""
        if isinstance(node, ast.Name):
            return self.resolved(Definition(module, node.id))
        if isinstance(node, ast.Attribute):
            owner = self.meaning(module, node.value)
            if owner is None:
                return None
            return self.member(owner, node.attr) if owner.name else self.resolved(Definition(owner.module, node.attr))
        return None

    def member(self, owner: Definition, name: str) -> Definition | None:
        """Return the method or property of a class, or of what it derives from."""
        node = self._nodes.get(owner)
        if not isinstance(node, ast.ClassDef):
            return None
        own = Definition(owner.module, f"{owner.name}.{name}")
        if own in self._nodes:
            return own
        bases = (self.meaning(owner.module, base) for base in node.bases)
        return next((found for base in bases if base and (found := self.member(base, name))), None)

    def field(self, owner: Definition, name: str) -> tuple[str, ast.expr] | None:
        """Return the module and the annotation of a field of a class."""
        node = self._nodes.get(owner)
        if not isinstance(node, ast.ClassDef):
            return None
        for inner in ast.walk(node):
            if isinstance(inner, ast.AnnAssign) and ast.unparse(inner.target) in (name, f"self.{name}"):
                return owner.module, inner.annotation
        bases = (self.meaning(owner.module, base) for base in node.bases)
        return next((found for base in bases if base and (found := self.field(base, name))), None)

    def classes(self, module: str, annotation: ast.expr | None) -> frozenset[Definition]:
        """Return the classes of the package that an annotation names, those of what a container holds among them."""
        found: set[Definition] = set()
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= self.classes(module, ast.parse(node.value, mode="eval").body)
            meant = self.meaning(module, node)
            if meant and isinstance(self._nodes[meant], ast.ClassDef):
                found.add(meant)
            elif isinstance(node, ast.Name):
                alias = self._constants.get(Definition(module, node.id))
                found |= self.classes(module, alias) if not isinstance(alias, ast.Call) else set()
        return frozenset(found)


class Reader:
    """One function, as the walk reads it: which of its names carry the parameter, and of which class they are."""

    def __init__(self, package: Package, function: Definition, carrying: frozenset[str]) -> None:
        self._package, self._module = package, function.module
        node = package.node(function)
        assert isinstance(node, _Function)
        self._node = node
        self.carrying = set(carrying)
        self._classes: dict[str, frozenset[Definition]] = {}
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for one in [*arguments, *filter(None, (node.args.vararg, node.args.kwarg))]:
            self._classes[one.arg] = package.classes(function.module, one.annotation)
        if "." in function.name and arguments:
            self._classes[arguments[0].arg] = frozenset({Definition(function.module, function.name.rpartition(".")[0])})
        self._assign()

    def _assign(self) -> None:
        """Give each name of the function what it is assigned anywhere in it."""
        size = -1
        while size != (size := len(self.carrying) + sum(map(len, self._classes.values()))):
            for node in ast.walk(self._node):
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        self._bind(target, node.value)
                elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign) and node.value is not None:
                    self._bind(node.target, node.value)
                elif isinstance(node, ast.For | ast.comprehension):
                    self._bind(node.target, node.iter)
                elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                    self._bind(node.optional_vars, node.context_expr)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, part in zip(target.elts, value.elts, strict=True):
                self._bind(one, part)
            return
        names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        if self.carries(value):
            self.carrying.update(names)
        classes = self.classes(value)
        for name in names:
            self._classes[name] = self._classes.get(name, frozenset()) | classes

    def carries(self, node: ast.AST | None) -> bool:
        """Whether an expression is the parameter, what a call made of it, or an object that is a part of that."""
        if isinstance(node, ast.Name):
            return node.id in self.carrying
        if isinstance(node, ast.Attribute):
            return self.carries(node.value) and bool(self.classes(node))
        if isinstance(node, ast.Starred | ast.Await | ast.NamedExpr):
            return self.carries(node.value)
        if isinstance(node, ast.IfExp):
            return self.carries(node.body) or self.carries(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(map(self.carries, node.values))
        if isinstance(node, ast.Tuple | ast.List):
            return any(map(self.carries, node.elts))
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in _NUMBERS:
            is_given = any(self.carries(one) for one in [*node.args, *(keyword.value for keyword in node.keywords)])
            return is_given and not any(ast.unparse(returned) in _WORKED_OUT for _, returned in self._returned(node))
        return False

    def given(self, call: ast.Call) -> Iterator[ast.expr]:
        """Yield what a call hands over, the object of a method among it."""
        if isinstance(call.func, ast.Attribute):
            yield call.func.value
        yield from call.args
        yield from (keyword.value for keyword in call.keywords)

    def classes(self, node: ast.AST | None) -> frozenset[Definition]:
        """Return the classes that a value may be of, or hold."""
        if isinstance(node, ast.Name):
            return self._classes.get(node.id, frozenset())
        if isinstance(node, ast.Attribute):
            named = (self._package.classes(*found) for found in self._annotated(node))
            return frozenset().union(*named)
        if isinstance(node, ast.Call):
            called = [one for one in self.called(node) if isinstance(self._package.node(one), ast.ClassDef)]
            if called:
                return frozenset(called)
            returned = self._returned(node)
            if returned:
                return frozenset().union(*(self._package.classes(*one) for one in returned))
            # Such as `replace`, `tuple` and `zip`.
            return frozenset().union(*map(self.classes, self.given(node)))
        if isinstance(node, ast.expr):
            return frozenset().union(*map(self.classes, ast.iter_child_nodes(node)))
        return frozenset()

    def _annotated(self, node: ast.Attribute) -> list[tuple[str, ast.expr]]:
        """Return module and annotation of an attribute, in each class that its object may be of."""
        found = []
        for owner in self.classes(node.value):
            method = self._package.member(owner, node.attr)
            if method is not None and isinstance(function := self._package.node(method), _Function):
                found += [(method.module, function.returns)] if function.returns is not None else []
            elif (field := self._package.field(owner, node.attr)) is not None:
                found.append(field)
        return sorted(found, key=lambda one: (one[0], ast.unparse(one[1])))

    def _returned(self, call: ast.Call) -> list[tuple[str, ast.expr]]:
        """Return module and annotation of what a call returns; a method's own class for Self."""
        found = []
        for one in self.called(call):
            node = self._package.node(one)
            if isinstance(node, _Function) and node.returns is not None:
                own = ast.Name(one.name.rpartition(".")[0]) if ast.unparse(node.returns) == "Self" else node.returns
                found.append((one.module, own))
        return found

    def called(self, call: ast.Call) -> list[Definition]:
        """Return the functions and classes that a call may be of."""
        return self.meant(call.func)

    def meant(self, node: ast.expr) -> list[Definition]:
        """Return the functions and classes that an expression may be."""
        if isinstance(node, ast.Name) and (node.id in self._classes or hasattr(builtins, node.id)):
            return []
        found = self._package.meaning(self._module, node)
        if found is not None and found.name:
            return [found]
        if isinstance(node, ast.Attribute):
            owners = sorted(self.classes(node.value))
            return [method for owner in owners if (method := self._package.member(owner, node.attr)) is not None]
        return []

    def steps(self) -> Iterator[tuple[Definition, frozenset[str]]]:
        """Yield what the parameter is handed to, in the order of the calls, with the parameters that get it."""
        yield from self._steps_in(self._node.body)

    def _steps_in(self, nodes: Iterable[ast.AST]) -> Iterator[tuple[Definition, frozenset[str]]]:
        for node in nodes:
            if isinstance(node, ast.Call):
                # The object of a method, not the method, which would look like a property.
                inner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
                yield from self._steps_in([*inner, *node.args, *(one.value for one in node.keywords)])
                yield from self._handed(node)
            else:
                yield from self._steps_in(ast.iter_child_nodes(node))
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and self.carries(node.value):
                    for one in self.meant(node):
                        if isinstance(function := self._package.node(one), _Function):
                            yield one, frozenset(parameter.arg for parameter in function.args.args[:1])

    def _handed(self, call: ast.Call) -> Iterator[tuple[Definition, frozenset[str]]]:
        if not any(self.carries(one) for one in self.given(call)):
            return
        for one in self.called(call):
            is_method = isinstance(call.func, ast.Attribute) and self._package.meaning(self._module, call.func) is None
            objects = [call.func.value] if is_method and isinstance(call.func, ast.Attribute) else []
            yield from self._received(one, [*objects, *call.args], call.keywords, is_method)
        for k, argument in enumerate(call.args):
            if not self.carries(argument):
                for one in self.meant(argument):
                    if isinstance(self._package.node(one), _Function):
                        yield from self._received(one, call.args[k + 1 :], call.keywords, is_method=False)

    def _received(
        self, called: Definition, arguments: list[ast.expr], keywords: list[ast.keyword], is_method: bool
    ) -> Iterator[tuple[Definition, frozenset[str]]]:
        """Yield what is called, where it gets the parameter; for a class the function that makes its objects."""
        node = self._package.node(called)
        if isinstance(node, ast.ClassDef):
            made_by = (self._package.member(called, name) for name in _CONSTRUCTORS)
            called = next((found for found in made_by if found is not None), called)
            node = self._package.node(called)
            if isinstance(node, ast.ClassDef):
                if any(self.carries(one) for one in [*arguments, *(keyword.value for keyword in keywords)]):
                    yield called, frozenset()
                return
            is_method, arguments = True, [ast.Constant(None), *arguments]
            if called.name.endswith("__post_init__"):
                yield called, frozenset({"self"})
                return
        if not isinstance(node, _Function):
            return
        kinds = {ast.unparse(one) for one in node.decorator_list}
        if is_method and "staticmethod" in kinds:
            arguments = arguments[1:]
        elif not is_method and "classmethod" in kinds:
            arguments = [ast.Constant(None), *arguments]
        names = [one.arg for one in [*node.args.posonlyargs, *node.args.args]]
        rest = node.args.vararg.arg if node.args.vararg else None
        got = {names[k] if k < len(names) else rest for k, one in enumerate(arguments) if self.carries(one)}
        known = {*names, *(one.arg for one in node.args.kwonlyargs)}
        others = node.args.kwarg.arg if node.args.kwarg else None
        got |= {one.arg if one.arg in known else others for one in keywords if self.carries(one.value)}
        if got - {None}:
            yield called, frozenset(name for name in got if name is not None)


class Walk:
    """A walk of one parameter: each step with its depth, in order."""

    def __init__(self, package: Package, function: str, parameter: str) -> None:
        self._package = package
        self.steps: list[tuple[int, Definition]] = []
        self._visited: set[Definition] = set()
        start = package.public(function)
        node = package.node(start)
        if not isinstance(node, _Function) or parameter not in {
            one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)
        }:
            raise SystemExit(f"{start} has no parameter {parameter!r}")
        self._visit(start, frozenset({parameter}), 0)

    def _visit(self, function: Definition, carrying: frozenset[str], depth: int) -> None:
        self._visited.add(function)
        self.steps.append((depth, function))
        if isinstance(self._package.node(function), _Function):
            for one, received in Reader(self._package, function, carrying).steps():
                if one not in self._visited:
                    self._visit(one, received, depth + 1)

    def marks(self) -> list[str]:
        """Return for each step "climb", "return", both or neither."""
        found, left = [""], set[str]()
        for (_, before), (_, now) in zip(self.steps, self.steps[1:], strict=False):
            is_elsewhere = before.module != now.module
            if is_elsewhere:
                left.add(before.module)
            climbs = is_upwards(self._package.levels, room_of(before.module), room_of(now.module))
            kinds = ["climb"] * climbs + ["return"] * (is_elsewhere and now.module in left)
            found.append(" ".join(kinds))
        return found

    def counts(self) -> Counts:
        marks = self.marks()
        rooms = {room_of(one.module) for _, one in self.steps}
        return Counts(len(marks), len(rooms), *(sum(kind in mark for mark in marks) for kind in ("climb", "return")))

    def lines(self) -> Iterator[str]:
        """Yield a line for each step, indented by the depth of the call."""
        for (depth, one), mark in zip(self.steps, self.marks(), strict=True):
            yield f"{'  ' * depth}{one}{'  <- ' + mark if mark else ''}"


@cache
def this_package() -> Package:
    return Package(ROOT)


def walk(name: str, package: Package | None = None) -> Walk:
    """Walk ``function:parameter`` through a tree, this one by default."""
    return Walk(package or this_package(), *name.split(":"))


def recorded() -> dict[str, Counts]:
    """Return the counts of the file, by ``function:parameter``."""
    pairs = (line.split(maxsplit=1) for line in FILE.read_text().splitlines())
    return {name: Counts(*(int(part.split()[1]) for part in counts.split(", "))) for name, counts in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow a parameter through the calls.")
    parser.add_argument("names", nargs="*", metavar="FUNCTION:PARAMETER")
    parser.add_argument("--base", metavar="REV", help="a commit whose counts are printed too")
    parser.add_argument("--write", action="store_true", help="record the counts of those that are recorded, or named")
    given = parser.parse_args()
    walks = {name: walk(name) for name in given.names or recorded()}
    counts = [f"{name} {found.counts()}" for name, found in walks.items()]
    if given.write:
        FILE.write_text("".join(f"{line}\n" for line in counts))
    elif given.names:
        counts = [line for found, line in zip(walks.values(), counts, strict=True) for line in [*found.lines(), line]]
    if given.base:
        with tree_at(given.base) as root:
            package = Package(root)
        counts += [f"{given.base} {name} {walk(name, package).counts()}" for name in walks]
    sys.stdout.write("\n".join(counts) + "\n")


if __name__ == "__main__":
    main()
