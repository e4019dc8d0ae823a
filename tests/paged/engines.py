"""Functions of serving engines, from the text of an installed package: nothing else of the package is imported.

An unpacked wheel on ``PYTHONPATH`` is enough. Kernels of Triton run as Python over NumPy, one program after the other.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cases.strategies import seeds

Random = np.random.Generator


def vendor_source(package: str, path: str) -> str:
    """The text of a file of an installed package; the test is skipped without it."""
    found = importlib.util.find_spec(package)
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(place) / path).exists():
            return (Path(place) / path).read_text()
    pytest.skip(f"{package} is not installed, or has no {path}")


def vendor(package: str, path: str, *names: str, **space: Any) -> SimpleNamespace:
    """Functions, methods (``Class.name``) and classes of a file, without decorators, with what `space` gives them."""
    tree = ast.parse(vendor_source(package, path))
    kept: list[ast.stmt] = []
    for name in names:
        owner, _, attribute = name.rpartition(".")
        body = tree.body
        if owner:
            body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
        found = next(n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == attribute)
        if isinstance(found, ast.FunctionDef):
            found.decorator_list = [d for d in found.decorator_list if isinstance(d, ast.Name) and d.id[0] == "s"]
            found.returns = None
            for argument in [*found.args.args, *found.args.kwonlyargs]:
                argument.annotation = None
        kept.append(found)
    scope = {"np": np, "Any": Any, **space}
    exec(compile(ast.Module(kept, []), path, "exec"), scope)
    return SimpleNamespace(**{name.rpartition(".")[2]: scope[name.rpartition(".")[2]] for name in names})


# Random cases


def for_seeds(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test for each of some seeds, as one test: most machines have no engine, and skip it once."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        for seed in seeds(20):
            test(seed=seed, **arguments)

    others = [p for name, p in inspect.signature(test).parameters.items() if name != "seed"]
    run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
    return run


def upto(random: Random, *most: int) -> tuple[int, ...]:
    """A number from 1 to each bound."""
    return tuple(int(random.integers(1, bound + 1)) for bound in most)


# Triton


class Values(np.ndarray[Any, Any]):
    """What a kernel of Triton computes with: NumPy's arrays, with a method for the type."""

    def to(self, dtype: str) -> Values:
        return self.astype(dtype)  # type: ignore[return-value]


class Pointer:
    """A place in an array, or many."""

    def __init__(self, array: Any, offset: Any = 0) -> None:
        self.array, self.offset = np.asarray(array).reshape(-1), offset

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.array, self.offset + np.asarray(offset))


class Triton:
    """The functions of ``triton.language`` that kernels of tables call, for one program at a time."""

    int32, int64, constexpr = "int32", "int64", object

    def run(self, kernel: Callable[..., None], grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        self.grid = grid
        for self.program in itertools.product(*map(range, grid)):
            kernel(*arguments, **constants)

    def program_id(self, axis: int) -> int:
        return self.program[axis]

    def num_programs(self, axis: int) -> int:
        return self.grid[axis]

    def arange(self, begin: int, end: int) -> Values:
        return np.arange(begin, end).view(Values)

    def load(self, pointer: Pointer, mask: Any = True, other: Any = 0) -> Any:
        offset, mask = np.broadcast_arrays(pointer.offset, mask)
        found = np.full(offset.shape, other, pointer.array.dtype).view(Values)
        found[mask] = pointer.array[offset[mask]]
        return found

    def store(self, pointer: Pointer, value: Any, mask: Any = True) -> None:
        offset, value, mask = np.broadcast_arrays(pointer.offset, value, mask)
        pointer.array[offset[mask]] = value[mask]

    def cdiv(self, number: Any, size: int) -> int:
        return -(-int(number) // size)

    def range(self, begin: Any, end: Any, step: int, num_stages: int = 1) -> range:
        return range(int(begin), int(end), step)

    where, maximum = staticmethod(np.where), staticmethod(np.maximum)
