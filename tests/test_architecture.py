"""The rules that hold the package together, read off the source by AST and off fresh processes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastindex

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fastindex"

#: Layer of each module, the lowest first. A module imports from its own layer and below.
LAYERS = {
    "metadata": 0,
    "lowering": 1,
    "kernels": 1,
    "api": 2,
    "edges": 3,
}
#: Modules that are not listed are metadata, which may do the least.
API = {
    "threads",
    "host_arrays",
    "arguments",
    "array_address",
    "execution",
    "indexing",
    "numpy_dropins",
    "relayouts",
    "relayout_execution",
    "buffers",
    "cuda",
    "cuda_arrays",
    "cuda_execution",
    "cuda_indexing",
    "cuda_launches",
    "cuda_relayouts",
    "cuda_streaming",
    "fill_patterns",
    "bounded_relayout",
    "warmup",
}
#: Edges, by their names or the first word of them: the command line, reports, pictures, other libraries.
EDGES = {
    "hlo",
    "drawing",
    "picture",
    "pictures",
    "scene",
    "explanation",
    "format",
    "proto_messages",
    "interop",
    "file",
    "files",
    "cli",
    "demo",
    "",
}
STANDARD_LIBRARY = set(sys.stdlib_module_names)
#: What a layer may import from outside; inside functions, metadata may also reach for NumPy's dtypes.
OUTSIDE = {
    "metadata": STANDARD_LIBRARY,
    "lowering": STANDARD_LIBRARY | {"numpy"},
    "kernels": STANDARD_LIBRARY | {"numpy", "numba", "llvmlite"},
    "api": STANDARD_LIBRARY | {"numpy", "numba"},
}
OUTSIDE_IN_FUNCTIONS = {
    "metadata": STANDARD_LIBRARY | {"numpy", "ml_dtypes"},
    "lowering": OUTSIDE["lowering"],
    "kernels": OUTSIDE["kernels"] | {"cuda"},
    "api": OUTSIDE["api"] | {"ml_dtypes", "rich", "cupy", "torch"},
}
#: Methods of `Shape` that belong to edges, and load them when they are called.
UPWARD_WHEN_CALLED = {("shape_conversions", "interop"), ("shape_conversions", "drawing")}
MAY_PRINT = {"cli", "demo", "__main__"}


def modules() -> dict[str, Path]:
    """Dotted name below the package -> file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


def layer_of(name: str) -> str:
    first = name.split(".")[0]
    if first in ("kernels", "lowering"):
        return first
    return "api" if first in API else "edges" if {first, first.split("_")[0]} & EDGES else "metadata"


def imports(tree: ast.Module) -> Iterator[tuple[str, bool, int]]:
    """(dotted name, whether inside a function, line) of every import that runs."""

    def visit(node: ast.AST, in_function: bool) -> Iterator[tuple[str, bool, int]]:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.orelse:
                yield from visit(child, in_function)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, in_function, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", in_function, node.lineno
        inner = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(tree, False)


def inside(name: str) -> str | None:
    """The package's module that a dotted name imports from, or None for the outside."""
    if name.split(".")[0] != "fastindex":
        return None
    known = modules()
    parts = name.split(".")[1:]
    if parts[:1] and parts[0] in fastindex._HOME_OF:
        parts = fastindex._HOME_OF[parts[0]].split(".")[1:]
    while len(parts) > 1 and ".".join(parts) not in known:
        parts.pop()
    return ".".join(parts)


def offences(name: str, tree: ast.Module) -> list[str]:
    """Imports of one module that its layer does not allow."""
    layer = layer_of(name)
    found = []
    for imported, in_function, line in imports(tree):
        target = inside(imported)
        where = f"fastindex.{name}:{line} ({layer}) imports {imported}"
        if target is None:
            allowed = (OUTSIDE_IN_FUNCTIONS if in_function else OUTSIDE).get(layer)
            if allowed is not None and imported.split(".")[0] not in allowed:
                found.append(where)
            if imported.startswith("numba.cuda") and name != "kernels.cuda":
                found.append(f"{where}; only kernels.cuda may")
        elif target and target != name:
            other = layer_of(target)
            if in_function and (name, target) in UPWARD_WHEN_CALLED:
                continue
            if {layer, other} == {"kernels", "lowering"} or LAYERS[other] > LAYERS[layer]:
                found.append(f"{where}, which is {other}")
            if layer == "kernels" and other != "kernels":
                found.append(f"{where}; kernels see numbers only")
    return found


@pytest.mark.parametrize("name", [name for name in modules() if name])
def test_imports_go_down_only(name: str) -> None:
    assert offences(name, ast.parse(modules()[name].read_text())) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("shape", "import numpy"),
        ("shape", "from fastindex.indexing import linear_index"),
        ("shape", "from fastindex import linear_index"),
        ("tiling", "def f():\n    import numba"),
        ("lowering.index_program", "from fastindex.kernels import index_cpu"),
        ("lowering.index_program", "import numba"),
        ("kernels.index_cpu", "from fastindex.shape import Shape"),
        ("kernels.index_cpu", "import numba.cuda"),
        ("kernels.index_cpu", "from numba import cuda"),
        ("indexing", "from fastindex.cli import main"),
        ("indexing", "import jax"),
    ],
)
def test_an_import_that_goes_up_shows(name: str, source: str) -> None:
    assert offences(name, ast.parse(source)) != []


def prints(tree: ast.Module) -> list[int]:
    """Lines that print to standard output; notices go to an explicit file."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and "file" not in {keyword.arg for keyword in node.keywords}
    ]


@pytest.mark.parametrize("name", [name for name in modules() if name.split(".")[0] not in MAY_PRINT])
def test_only_the_command_line_prints(name: str) -> None:
    assert prints(ast.parse(modules()[name].read_text())) == []


def test_a_print_shows() -> None:
    assert prints(ast.parse("def f():\n    print(1)")) == [2]


def test_no_parallel_kernels() -> None:
    """Numba's threading layers end the process when called from several threads or after a fork."""
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "parallel":
                assert isinstance(node.value, ast.Constant), name
                assert node.value.value is False, name


def guards(tree: ast.Module) -> list[int]:
    """Lines of asserts, but for those that only tell a type checker what something is."""
    narrowing = re.compile(r"\w+ is not None|isinstance\([\w.]+, \w+\)")
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and not narrowing.fullmatch(ast.unparse(node.test))
    ]


@pytest.mark.parametrize("name", list(modules()))
def test_no_asserts_guard_input(name: str) -> None:
    """Asserts vanish under ``python -O``; input is checked by exceptions."""
    assert guards(ast.parse(modules()[name].read_text())) == []


def test_a_guarding_assert_shows() -> None:
    assert guards(ast.parse("assert x > 0\nassert x is not None")) == [1]


# Fresh processes


def loaded_after(source: str) -> set[str]:
    """The top-level modules that are loaded after some code has run in a fresh process."""
    program = f"{source}\nimport sys\nsys.stderr.write(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return set(result.stderr.split()) | {name.split(".")[0] for name in result.stderr.split()}


HEAVY = {"numba", "llvmlite", "jax", "jaxlib", "torch", "scipy", "rich", "click", "google.protobuf"}
MODULE = "HloModule m\n\nENTRY e {\n  ROOT p = f32[3,5]{1,0} parameter(0)\n}\n"
TEXT = "bf16[1024,1000]{1,0:T(8,128)(2,1)}"
#: What must stay light, and what it may still load.
LIGHT = {
    "import": ("import fastindex", set()),
    "parse and print": (f"import fastindex as fi; str(fi.Shape.parse({TEXT!r}))", set()),
    "sizes": (f"import fastindex as fi; s = fi.Shape.parse({TEXT!r}); s.nbytes, s.padding_ratio", set()),
    "construct": (
        "import fastindex as fi; fi.Shape('bf16', (1024, 1000), fi.Layout((1, 0), tiles=((8, 128), (2, 1))))",
        set(),
    ),
    "explain": (f"import fastindex as fi; str(fi.explain({TEXT!r}))", {"rich"}),
    "draw": ("import fastindex as fi; p = fi.draw('f32[3,5]{1,0:T(2,2)}'); p.text(), p.svg()", {"rich"}),
    "report": (f"import fastindex as fi; fi.report({MODULE!r})", {"rich"}),
    "info": (
        f"from click.testing import CliRunner; from fastindex.cli import main; "
        f"r = CliRunner().invoke(main, ['info', {TEXT!r}]); assert r.exit_code == 0, r.output",
        {"rich", "click"},
    ),
    "show": (
        "from click.testing import CliRunner; from fastindex.cli import main; "
        "r = CliRunner().invoke(main, ['show', 'f32[3,5]{1,0:T(2,2)}']); assert r.exit_code == 0, r.output",
        {"rich", "click"},
    ),
}


@pytest.mark.parametrize("name", LIGHT)
def test_light_things_load_nothing_heavy(name: str) -> None:
    source, allowed = LIGHT[name]
    assert loaded_after(source) & HEAVY <= allowed


def test_import_loads_little() -> None:
    """``import fastindex`` loads none of its own modules but itself, and not even NumPy."""
    loaded = loaded_after("import fastindex")
    assert {name for name in loaded if name.startswith("fastindex.")} == set()
    assert "numpy" not in loaded


def test_a_heavy_import_shows() -> None:
    assert "numba" in loaded_after("import numba") & HEAVY


def test_every_public_name_resolves() -> None:
    """Each name that the package lists exists and has a docstring."""
    source = (
        "import fastindex as fi\n"
        "values = {name: getattr(fi, name) for name in fi.__all__}\n"
        "missing = [name for name, value in values.items() if not value.__doc__]\n"
        "assert not missing, missing"
    )
    loaded_after(source)
