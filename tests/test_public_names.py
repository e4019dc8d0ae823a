"""The face of the package: few names, loaded when they are used, known to type checkers.

Tests of: lazy.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fastindex as fi
from fastindex import cuda, dask, hlo, layouts, numpy, paged, sharding, weights, xla
from fastindex.cli.commands import main
from tests.cases.hangs import HANG_SECONDS

#: The public names, but those of `fastindex.xla`: they grow by a decision, not by themselves.
FACE = {
    fi: """
        Shape Layout ElementType
        linear_index multi_index convert_index tile_index from_tile_index tile_slots TileSlots
        runs strided_runs StridedRun
        pack unpack relayout plan_relayout RelayoutPlan reshape rearrange plan_rearrange RearrangePlan explain draw
        ArgumentTypeError FastIndexError LayoutError OutOfBoundsError ParseError UnsupportedError
    """,
    cuda: "DeviceMemoryError device_name is_available relayout_through_device why_unavailable",
    dask: "WarmUp convert_index linear_index multi_index pack rearrange relayout unpack",
    hlo: "report Report layout_copies LayoutCopies try_layouts TriedLayouts",
    layouts: "named_layout layout_name steps Steps suggest_tiles TileSuggestion LinearForm same_bytes Picture",
    numpy: "ravel_multi_index unravel_index copyto ascontiguousarray asfortranarray",
    paged: """
        Cache Part copy gather scatter swap_blocks Runs StridedRuns runs Element byte_offset element_at slot_mapping
        BlockTable Csr Owners PagePicture draw explain
    """,
    sharding: "Sharding Shard shard unshard shards shard_index unshard_index plan_reshard ReshardPlan",
    weights: """
        repack RepackPlan formats layout_of discover Discovery GatherPlan check WrongSlot
        pack_checkpoint open_checkpoint Checkpoint convert_checkpoint ConvertedCheckpoint
    """,
}
MODULES = [*FACE, xla]
#: Those whose names can be had here: `fastindex.dask` needs Dask.
PACKAGES = [module for module in MODULES if module is not dask or (find_spec("dask") and find_spec("distributed"))]


def names_in_stub(package: ModuleType) -> set[str]:
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text())
    imported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {name for name in imported if name is not None}


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_public_names_and_no_other(package: ModuleType) -> None:
    submodules = {name for name in dir(package) if inspect.ismodule(getattr(package, name))}
    assert {name for name in dir(package) if not name.startswith("__")} == {*package.__all__, *submodules}
    assert submodules == ({module.__name__.split(".")[1] for module in MODULES if module is not fi} & submodules)
    assert bool(submodules) == (package is fi)


@pytest.mark.parametrize("module", FACE)
def test_public_names_are_those_decided_on(module: ModuleType) -> None:
    assert sorted(FACE[module].split()) == module.__all__


#: Prints how many public names are something else once every module has been imported, and how many modules there are.
_ALL_IMPORTED = """
import importlib, inspect, pkgutil, sys
import fastindex
count = 0
for found in pkgutil.walk_packages(fastindex.__path__, "fastindex."):
    if found.name != "fastindex.__main__":
        try:
            importlib.import_module(found.name)
            count += 1
        except ImportError as error:
            # Part of an extra.
            assert not str(error.name).startswith("fastindex"), error
print(count)
for module in sys.argv[1:]:
    public = sys.modules[module]
    for name in public.__all__:
        if inspect.ismodule(getattr(public, name)):
            print(f"{module}.{name} is a module")
"""


def test_no_import_replaces_a_public_name() -> None:
    """Importing ``fastindex.NAME``, a module, makes it an attribute of the package, whatever the package had there."""
    names = [package.__name__ for package in PACKAGES]
    command = [sys.executable, "-c", _ALL_IMPORTED, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)
    count, *replaced = done.stdout.splitlines()
    assert int(count) > 230
    assert replaced == []


@pytest.mark.parametrize("module", MODULES)
def test_no_submodule_is_called_like_a_public_name(module: ModuleType) -> None:
    folder = Path(str(module.__file__)).parent
    assert {path.stem for path in folder.iterdir()} & set(module.__all__) == set()


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


def returned_classes(function: Callable[..., Any]) -> Iterator[type]:
    """Classes of the package that the return annotation of a function names."""
    module = sys.modules[function.__module__]
    homes = {
        alias.name: str(node.module)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name in re.findall(r"(?<![.\w])\w+", function.__annotations__["return"]):
        # What is imported for types alone is no attribute of the module.
        home = import_module(homes[name]) if homes.get(name, "").startswith("fastindex.") else module
        found = getattr(home, name, None)
        if isinstance(found, type) and found.__module__.startswith("fastindex."):
            yield found


@pytest.mark.parametrize("package", PACKAGES)
def test_classes_that_public_functions_return_are_public(package: ModuleType) -> None:
    public = [getattr(one, name) for one in PACKAGES for name in one.__all__]
    functions = [value for name in package.__all__ if inspect.isfunction(value := getattr(package, name))]
    assert functions != []
    hidden = [
        f"{function.__name__} returns {one.__name__}"
        for function in functions
        for one in returned_classes(inspect.unwrap(function))
        if one not in public
    ]
    assert hidden == []


def test_a_hidden_class_shows() -> None:
    from fastindex.weights.repack_plans import RepackPlan, repack_plan

    assert list(returned_classes(inspect.unwrap(repack_plan))) == [RepackPlan]


def test_no_name_is_in_two_places() -> None:
    """But for what takes Dask arrays under the same name, and what takes caches of pages."""
    names = [name for module in MODULES if module not in (dask, paged) for name in module.__all__]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_names(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no_such_name'"):
        _ = package.no_such_name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("info", "explain(shape)"),
        ("check", "fastindex.weights.check"),
        ("copies", "fastindex.hlo.layout_copies(program)"),
        ("copyto", "fastindex.numpy.copyto"),
        ("Sharding", "fastindex.sharding.Sharding"),
        ("load_checkpoint", "fastindex.weights.open_checkpoint(folder)"),
        ("repeat", "einops.repeat"),
        ("transpose", "ascontiguousarray(array.T)"),
    ],
)
def test_names_that_are_asked_for(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; use .*{re.escape(meant)}"):
        getattr(fi, name)


def test_every_command_is_a_name_or_says_which_is_meant() -> None:
    for name in main.commands.keys() - {"completion"}:
        if name in fi.__all__ or inspect.ismodule(getattr(fi, name, None)):
            # Folders of the package are attributes once they have been imported.
            continue
        with pytest.raises(AttributeError) as caught:
            getattr(fi, name)
        use = str(caught.value).partition("; use ")[2]
        named = [use] if re.fullmatch(r"fastindex\.[\w.]+", use) else re.findall(r"([\w.]+)\(", use)
        assert named or f"the command 'fastindex {name}'" in use
        for one in named:
            found: Any = {"Shape.parse": fi.Shape.parse, ".verify": weights.Checkpoint.verify}.get(one, fi)
            if found is fi:
                for part in one.removeprefix("fastindex.").split("."):
                    found = getattr(found, part)
            assert callable(found), name


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
