"""Functions of vendors, loaded from where their packages are installed; none of their code is in this repository.

Some packages want a GPU to be imported: their functions are taken out of the files by name, and run with NumPy and
PyTorch around them. An unpacked wheel on ``PYTHONPATH`` is enough.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def module(name: str) -> Any:
    """A module of an installed package; the test is skipped without it."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        pytest.skip(f"{name} is not installed, or cannot be imported here: {str(error)[:80]}")


def functions(package: str, path: str, *names: str, **around: Any) -> dict[str, Any]:
    """Functions, classes and constants of one file of a package, by name."""
    torch = module("torch")
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    files = [Path(place) / path for place in places if (Path(place) / path).exists()]
    if not files:
        pytest.skip(f"{package} is not installed, or has no {path}")
    tree = ast.parse(files[0].read_text(encoding="utf-8"))
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            if isinstance(node, ast.FunctionDef):
                node.decorator_list = []
                # They compute on any device.
                node.body = [
                    s for s in node.body if not (isinstance(s, ast.If) and "device.type" in ast.unparse(s.test))
                ]
            kept.append(node)
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
            kept.append(node)
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    code = compile(ast.fix_missing_locations(ast.Module([future, *kept], [])), str(files[0]), "exec")
    space: dict[str, Any] = {"torch": torch, "np": np, "numpy": np, "math": math, **around}
    exec(code, space)
    missing = [name for name in names if name not in space]
    if missing:
        pytest.skip(f"{package} {path} has no {', '.join(missing)}: another version")
    return space
