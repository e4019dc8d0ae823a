"""The rules that hold the package together, read off the source by AST and off fresh processes."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fastindex"

MAY_PRINT = {"cli", "__main__"}

# In one process, which reads the sources once.
pytestmark = pytest.mark.xdist_group("sources")


def modules() -> dict[str, Path]:
    """Dotted name below the package -> file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every module."""
    return {name: ast.parse(path.read_text()) for name, path in modules().items()}


#: Modules that may name what is imported: one door to CUDA's compilers, and one to how MLIR is generated.
ONLY_IN = {"numba.cuda": ["device"], "numba_cuda_mlir": ["device", "mlir"]}


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Dotted name of everything that a module imports, wherever it stands in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offences(name: str, tree: ast.Module) -> list[str]:
    """Imports of one module that belong to another; what folders may import is in ``pyproject.toml``."""
    return [
        f"fastindex.{name} imports {imported}; only {', '.join(homes)} of cuda.kernels may"
        for imported in imported_names(tree)
        for library, homes in ONLY_IN.items()
        if imported.startswith(library) and name not in [f"cuda.kernels.{home}" for home in homes]
    ]


@pytest.mark.in_turn(seconds=3)
def test_one_module_imports_numba_cuda() -> None:
    assert [offence for name, tree in trees().items() for offence in offences(name, tree)] == []


@pytest.mark.parametrize("source", ["import numba.cuda", "from numba import cuda", "def f():\n    import numba.cuda"])
def test_another_import_of_numba_cuda_shows(source: str) -> None:
    assert offences("moving.moves.streams.kernel", ast.parse(source)) != []


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


@pytest.mark.in_turn(seconds=3)
def test_only_the_command_line_prints() -> None:
    found = {name: prints(tree) for name, tree in trees().items() if name.split(".")[0] not in MAY_PRINT}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_print_shows() -> None:
    assert prints(ast.parse("def f():\n    print(1)")) == [2]


@pytest.mark.in_turn(seconds=2)
def test_no_parallel_kernels() -> None:
    """Numba's threading layers end the process when called from several threads or after a fork."""
    for name, tree in trees().items():
        for node in ast.walk(tree):
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


@pytest.mark.in_turn(seconds=2)
def test_no_asserts_guard_input() -> None:
    """Asserts vanish under ``python -O``; input is checked by exceptions."""
    found = {name: guards(tree) for name, tree in trees().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_guarding_assert_shows() -> None:
    assert guards(ast.parse("assert x > 0\nassert x is not None")) == [1]


# A function fits a screen

MOST_LINES, MOST_PARAMETERS = 60, 8
#: What may be longer or take more, and why.
LARGER = {
    **dict.fromkeys(
        (
            "cuda.kernels.granules._deinterleaving",
            "cuda.kernels.granules._interleaving",
            "cuda.kernels.granules._shifting",
            "cuda.kernels.stages._staging",
            "cuda.kernels.tiles._transpose",
            "cuda.kernels.tiles.word_transpose_kernel",
        ),
        "a factory of CUDA kernels: the kernel is a closure over what is decided when it is made",
    ),
    "jobs.layout_jobs.relayout_file": "a file, two layouts, and what the command takes",
    "cli.moving.relayout": "a command: click hands its options over by name",
    "moving.relayout_calls.relayout": "public: a buffer, two layouts, and what all whole-array functions take",
    "moving.rearranged_arrays.rearrange": "public: an array, a pattern, its sizes, and what whole-array functions take",
    "weights.repacking.repack": "public: a buffer, two formats, and what each of them takes",
    "index.tiles.from_tile_index": "public: it takes both results of `tile_index`",
    "trials.try_layouts.try_layouts": "public: what `jax.jit` takes, and the limits",
    "paged.copies.copy": "public: two caches with their memory and blocks, and what all moves take",
    "paged.places.slot_mapping": "public: what the engines' functions take, and what all index functions take",
    "moving.kernels.passes.lead": "a kernel: what `run_passes` takes, and whose call it is",
    "moving.kernels.passes._lead": "the same",
    "runtime.lines.lines.transpose_rows": "instructions: its first parameter is the builder",
    "moving.moves.column_gather.kernel.transpose_in_lanes": "instructions: its first parameter is the builder",
}


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function below a node, with its name within the module; what stands in a function counts with it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def too_large(tree: ast.Module) -> set[str]:
    """Functions longer than a screen, without their docstring, or with too many parameters to remember."""
    found = set()
    for name, node in functions(tree):
        lines = node.end_lineno - node.lineno + 1
        if ast.get_docstring(node) is not None:
            lines -= node.body[0].end_lineno - node.body[0].lineno + 1
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        parameters = len([argument for argument in arguments if argument.arg not in ("self", "cls")])
        parameters += (node.args.vararg is not None) + (node.args.kwarg is not None)
        if lines > MOST_LINES or parameters > MOST_PARAMETERS:
            found.add(name)
    return found


@pytest.mark.in_turn(seconds=2)
def test_functions_fit_a_screen() -> None:
    found = {f"{name}.{large}" for name, tree in trees().items() for large in too_large(tree)}
    assert found - set(LARGER) == set(), "make them smaller, or list them with a reason"
    assert set(LARGER) - found == set(), "no longer too large: take them off the list"


def test_a_large_function_shows() -> None:
    lines = "\n".join(["    x = 1"] * 60)
    assert too_large(ast.parse(f"def f():\n{lines}")) == {"f"}
    assert (
        too_large(
            ast.parse(f"class C:\n    def f(self, a, b, c, d, e, f, g, *, h): ...\n    def g(a, *b, {'c' * 3}): ...")
        )
        == set()
    )
    assert too_large(ast.parse("class C:\n    def f(self, a, b, c, d, e, f, g, h, **i): ...")) == {"C.f"}


# Where the tests of a module are


def named_in_tests() -> dict[str, list[Path]]:
    """Module -> the test files whose docstring says "Tests of: " and its name, among others."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        for names in re.findall(r"^Tests of: ([\w., \n]+)\.$", docstring, re.MULTILINE):
            for name in re.split(r",\s+", names):
                found.setdefault(name, []).append(path)
    return found


@pytest.mark.in_turn(seconds=2)
def test_the_picture_of_the_folders_is_the_contract() -> None:
    picture = (ROOT / "ARCHITECTURE.md").read_text().split("```text\n")[1].split("```")[0]
    drawn = [name for line in picture.splitlines() for name in line.strip().partition("   ")[0].split()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["id"] == "layers")
    assert drawn == " ".join(layers).replace("|", "").split()


def test_every_module_has_its_tests() -> None:
    """``tests/FOLDER/test_MODULE.py``, or a test file whose docstring has a line "Tests of: FOLDER.MODULE, ."."""
    elsewhere = named_in_tests()
    missing = []
    for name, path in modules().items():
        folder, _, module = name.partition(".")
        own = (
            ROOT / "tests" / folder / f"test_{module.rpartition('.')[2]}.py"
            if module
            else ROOT / f"tests/test_{name}.py"
        )
        if path.name != "__init__.py" and not own.exists() and name not in elsewhere:
            missing.append(name)
    how = 'write tests/FOLDER/test_MODULE.py, or name them in the docstring of a test file: "Tests of: FOLDER.MODULE."'
    assert missing == [], how
    assert set(elsewhere) - set(modules()) == set(), "there are no such modules"


# Fresh processes


def loaded_after(source: str) -> set[str]:
    """The top-level modules that are loaded after some code has run in a fresh process."""
    program = f"{source}\nimport sys\nsys.stderr.write(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )
    return set(result.stderr.split()) | {name.split(".")[0] for name in result.stderr.split()}


HEAVY = {"numba", "llvmlite", "jax", "jaxlib", "torch", "scipy", "rich", "click", "google.protobuf"}
MODULE = "HloModule m\n\nENTRY e {\n  ROOT p = f32[3,5]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}\n}\n"
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
    "report": (f"import fastindex as fi; fi.hlo.report({MODULE!r})", {"rich"}),
    "plan a reshard": (
        "import fastindex as fi; a, b = '{devices=[8,1]<=[8]}', '{devices=[2,4]<=[8]}'; "
        "fi.sharding.shards('f32[64,64]', a); "
        "p = fi.sharding.plan_reshard('f32[64,64]', a, b); p.transfers; p.describe(); fi.explain('f32[64,64]', a)",
        {"rich"},
    ),
    "info": (
        f"from click.testing import CliRunner; from fastindex.cli.commands import main; "
        f"r = CliRunner().invoke(main, ['info', {TEXT!r}]); assert r.exit_code == 0, r.output",
        {"rich", "click"},
    ),
    "show": (
        "from click.testing import CliRunner; from fastindex.cli.commands import main; "
        "r = CliRunner().invoke(main, ['show', 'f32[3,5]{1,0:T(2,2)}']); assert r.exit_code == 0, r.output",
        {"rich", "click"},
    ),
}


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("name", LIGHT)
def test_light_things_load_nothing_heavy(name: str) -> None:
    source, allowed = LIGHT[name]
    assert loaded_after(source) & HEAVY <= allowed


def test_import_loads_little() -> None:
    """``import fastindex`` loads no modules of the package but what loads the others, and not even NumPy."""
    loaded = loaded_after("import fastindex")
    assert {name for name in loaded if name.startswith("fastindex.")} == {"fastindex.first_use", "fastindex.lazy"}
    assert "numpy" not in loaded
    assert "numpy" not in loaded_after(LIGHT["report"][0])


def test_a_heavy_import_shows() -> None:
    assert "numba" in loaded_after("import numba") & HEAVY
