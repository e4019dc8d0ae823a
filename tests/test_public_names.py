"""The face of the package: few names, loaded when they are used, known to type checkers.

Tests of: lazy.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from pathlib import Path
from types import ModuleType

import pytest

import fastindex as fi
from fastindex import xla
from fastindex.cli.commands import main

#: What the package may hold; it grows by a decision, not by itself.
MOST_NAMES = 76
PACKAGES = [fi, xla]


def names_in_stub(package: ModuleType) -> set[str]:
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text())
    imported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {name for name in imported if name is not None}


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_public_names_and_no_other(package: ModuleType) -> None:
    submodules = {name for name in dir(package) if inspect.ismodule(getattr(package, name))}
    assert {name for name in dir(package) if not name.startswith("__")} == {*package.__all__, *submodules}
    assert submodules == ({"cuda", "dask", "xla"} if package is fi else set())


def test_few_names() -> None:
    assert len([name for name in dir(fi) if not name.startswith("__")]) <= MOST_NAMES


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_same_names(package: ModuleType) -> None:
    assert names_in_stub(package) == {name for name in dir(package) if not name.startswith("__")}


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_where_the_stub_says(package: ModuleType) -> None:
    for name in package.__all__:
        value = getattr(package, name)
        assert value.__doc__, name
        if hasattr(value, "__module__"):
            assert f"from {value.__module__} import {name} as {name}" in (
                Path(str(package.__file__)).with_suffix(".pyi").read_text()
            )


def test_no_name_is_in_two_places() -> None:
    assert not set(fi.__all__) & set(xla.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_names(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no_such_name'"):
        _ = package.no_such_name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("info", "explain(shape)"),
        ("show", "draw(shape)"),
        ("copies", "layout_copies(program)"),
        ("load_checkpoint", "open_checkpoint(folder)"),
        ("repeat", "einops.repeat"),
        ("transpose", "ascontiguousarray(array.T)"),
    ],
)
def test_names_that_are_asked_for(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; use .*{re.escape(meant)}"):
        getattr(fi, name)


def test_every_command_is_a_name_or_says_which_is_meant() -> None:
    for name in main.commands.keys() - {"completion"}:
        if name in fi.__all__:
            continue
        with pytest.raises(AttributeError) as caught:
            getattr(fi, name)
        named = re.findall(r"(\w+)\(", str(caught.value).partition("; use ")[2])
        assert named or f"the command 'fastindex {name}'" in str(caught.value)
        assert {*named} <= {*fi.__all__, "parse", "verify"}, name


@pytest.mark.parametrize("name", [name for name in xla.__all__ if inspect.isfunction(getattr(xla, name))])
def test_shapes_come_first_and_as_text(name: str) -> None:
    parameters = list(inspect.signature(getattr(xla, name)).parameters.values())
    assert parameters[0].annotation == "Shape | str"
    assert "Shape" not in {parameter.annotation for parameter in parameters}


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_can_be_pickled(package: ModuleType) -> None:
    for name in package.__all__:
        value = getattr(package, name)
        assert pickle.loads(pickle.dumps(value)) is value, name
