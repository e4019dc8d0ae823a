"""Layouts that are tried: what is found, what is refused and why; against what libtpu answered, and libtpu itself.

Tests of: trials.try_layouts, trials.compilers, trials.results,
trials.jax_programs.
"""

from __future__ import annotations

import functools
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import fastindex as fi
from tests.cases.hangs import HANG_SECONDS

pytest.importorskip("jax")

from fastindex.core.foreign_arrays import JaxLayout
from fastindex.trials import compilers
from fastindex.trials import try_layouts as module
from fastindex.trials.compilers import CompileError
from fastindex.trials.jax_programs import AUTO, CompiledProgram, flat_program, named_spec
from fastindex.trials.results import Limits, Trial, Variant, _structure
from tests.data.hlo.trial_programs import key_of, programs
from tests.hlo.copies.recorded import recorded

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]
TRIALS = ROOT / "tests" / "data" / "hlo" / "trials"
needs_libtpu = pytest.mark.skipif(
    find_spec("libtpu") is None or find_spec("flatbuffers") is None, reason="the extra tpu is not installed"
)


class Recorded:
    """Answers as libtpu did."""

    def __init__(self, name: str) -> None:
        self._answers = json.loads(lzma.decompress((TRIALS / f"{name}.json.xz").read_bytes()))
        self.asked = 0

    def __enter__(self) -> Recorded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def compile(self, inputs: Any, outputs: Any, constraints: Any) -> CompiledProgram:
        self.asked += 1
        answer = self._answers[key_of(inputs, outputs, constraints)]
        if isinstance(answer, str):
            raise CompileError(answer)
        text, memory, of_inputs, of_outputs = answer
        return CompiledProgram(text, memory, [plain(item) for item in of_inputs], [plain(item) for item in of_outputs])


def plain(item: Any) -> JaxLayout | None:
    return None if item is None else JaxLayout(tuple(item[0]), tuple(map(tuple, item[1])), item[2])


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(name: str, **options: Any) -> Any:
        program = programs()[name]
        monkeypatch.setattr(module, "TopologyCompiler", lambda *arguments: Recorded(name))
        return fi.hlo.try_layouts(
            program.function, *program.arguments, topology=program.topology, donate_argnums=program.donated, **options
        )

    return run


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (lambda x: (x.T.reshape(-1), x.T + 1), (64, 600)),
        (lambda x: x.transpose(0, 2, 3, 1), (2, 3, 8, 9)),
        (lambda x: x @ x.T, (40, 50)),
        (lambda x: x + 1, (4, 5)),
        (lambda x: (x @ x).T @ x.T + x.T, (30, 30)),
    ],
)
def test_the_copies_of_a_program_are_those_of_the_table(program: Any, sizes: tuple[int, ...]) -> None:
    """One definition of a copy that layouts can avoid, on the CPU too, where XLA wraps each in a fusion."""
    import jax

    x = jax.ShapeDtypeStruct(sizes, "float32")
    table = fi.hlo.layout_copies(jax.jit(program).lower(x).compile())
    tried = fi.hlo.try_layouts(program, x)
    assert tried.base.copy_count == len(table.avoidable) == table.totals.avoidable.count
    assert tried.base.moved_nbytes == table.totals.avoidable.moved_nbytes
    assert ("no copies that another layout could avoid" in str(tried)) == (not table.avoidable)


def test_a_cache_in_a_loop_is_kept_in_its_order(tried: Any) -> None:
    """Both copies of the cache go, for less fast memory; AUTO needs nearly twice the arguments."""
    found = tried("decoder_cache_v5e")
    base, best = found.base, found.best.trial
    cache = [row for row in base.rows if row.source.dimensions == (2, 8, 16, 640, 64)]
    assert len(cache) == 2
    assert [row for row in best.rows if row.source.dimensions == (2, 8, 16, 640, 64)] == []
    assert best.argument_nbytes == base.argument_nbytes
    assert best.peak_nbytes <= base.peak_nbytes * 1.01
    assert dict(best.space_peaks)[1] < dict(base.space_peaks)[1] / 3
    assert found.best.code == (
        "from jax.experimental.layout import Layout, with_layout_constraint\n"
        "# at the beginning of the body of loop 0, on element 1 of what it carries:\n"
        "x = with_layout_constraint(x, Layout((0, 1, 2, 4, 3)))"
    )
    refused = {trial.name: trial.refused for trial in found.refused}
    assert refused["AUTO for all"] == (
        "the arguments would grow from 24.0 MiB to 44.0 MiB, 1.83 times; "
        "device memory would grow from 24.1 MiB to 44.1 MiB, 1.83 times"
    )


def test_a_scan_gets_its_weights_in_the_order_in_which_its_steps_read_them(tried: Any) -> None:
    """Three copies in each of twelve trips become none, for nothing: other orders of q, k and v."""
    found = tried("scanned_weights_v5e")
    base, best = found.base, found.best.trial
    assert [(row.opcode, row.trips) for row in base.rows] == [("copy", 12)] * 3
    # Each reads and writes a matrix; the how-to page has the sum, and the words.
    assert base.moved_nbytes == 12 * 3 * 2 * 384 * 384 * 2
    page = " ".join((ROOT / "docs" / "how-to" / "copies.md").read_text().split())
    assert f"{base.moved_nbytes / 2**20:.1f} MiB in all" in page
    assert fi.hlo.layout_copies(recorded("scanned_weights_v5e")).copies[1].origin in page
    names = ["weights['k']", "weights['q']", "weights['v']"]
    assert sorted(row.argument_path for row in base.rows) == names
    assert best.rows == ()
    assert (best.argument_nbytes, best.peak_nbytes) == (base.argument_nbytes, base.peak_nbytes)
    layouts, _ = found.best.layouts
    assert {name: None if layout is None else layout.minor_to_major for name, layout in layouts.items()} == {
        "k": (1, 2, 0), "q": (1, 2, 0), "v": (1, 2, 0), "o": None,
    }  # fmt: skip


def test_a_cache_that_is_updated_in_place_loses_both_copies(tried: Any) -> None:
    """No layout copy is left, the arguments take as many bytes, and the fast memory falls to a third."""
    found = tried("decoder_updates_v5e")
    base, best = found.base, found.best.trial
    assert (base.layout_copy_count, best.layout_copy_count) == (2, 0)
    assert sum(row.nbytes_read + row.nbytes_written for row in base.rows if row.opcode == "copy") == 2 * 3 * 2**25
    assert best.argument_nbytes == base.argument_nbytes
    assert best.peak_nbytes <= base.peak_nbytes * 1.01
    assert dict(best.space_peaks)[1] < dict(base.space_peaks)[1] / 3


def test_the_page_shows_this_table(tried: Any) -> None:
    """Every figure of the how-to page is what the compiler said."""
    page = (ROOT / "docs" / "how-to" / "copies.md").read_text()
    found = tried("decoder_cache_v5e")
    assert found.text(width=98).strip("\n") in page
    for trial in (found.base, found.best.trial):
        assert f"{dict(trial.space_peaks)[1] / 2**20:.1f} MiB" in page.split("`Layout.AUTO` removes")[1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("embedding_v4", "the arguments would grow from 1.6 MiB to 50.8 MiB, 31.7 times; device memory would grow"),
        ("points_v5e", "the arguments would grow from 66.0 KiB to 2.0 MiB, 30.3 times; device memory would grow"),
        ("nchw_v5e", "the arguments would grow"),
    ],
)
def test_what_costs_more_memory_is_refused_with_the_reason(tried: Any, name: str, reason: str) -> None:
    found = tried(name)
    assert not found.best.is_changed
    assert found.best.code == ""
    auto = found.trials[1]
    assert auto.name == "AUTO for all"
    assert auto.moved_nbytes < found.base.moved_nbytes
    assert auto.refused.startswith(reason)
    assert "best: no change" in found.text()
    assert reason.split(" from ")[0] in " ".join(found.text(width=1000).split())


def test_limits_are_arguments(tried: Any) -> None:
    found = tried("embedding_v4", argument_growth=40.0, peak_growth=40.0, most_compilations=2)
    assert found.best.name == "AUTO for all"
    assert found.best.trial.argument_nbytes > found.base.argument_nbytes


def test_the_code_asks_for_what_was_compiled(tried: Any) -> None:
    """Layouts that the compiler chose may give other numbers when they are written down, so AUTO is."""
    found = tried("embedding_v4", argument_growth=40.0, peak_growth=40.0, most_compilations=2)
    auto = "Format(Layout.AUTO, sharding)"
    assert found.best.code.splitlines()[-1] == (
        f"jax.jit(embedding, in_shardings=({auto}, {auto}, {auto}), out_shardings=({auto}, {auto}))"
    )
    assert not any(hasattr(each.layout, "major_to_minor") for each in found.best.formats)


def test_copies_of_the_parts_of_one_product_are_advised_on(tried: Any) -> None:
    found = tried("attention_v5e")
    assert found.best.trial.copy_count == 3
    (advice,) = found.advice
    assert advice.endswith("(split): if it is a product, give each part its own weights")
    assert found.best.name.startswith("result 0")


def test_formats_have_the_structure_of_the_arguments(tried: Any) -> None:
    found = tried("scanned_weights_v5e")
    weights, x = found.best.formats
    layouts, _ = found.best.layouts
    assert x is None
    assert weights.keys() == layouts.keys()
    for name, layout in layouts.items():
        if layout is None:
            assert weights[name] is None
        else:
            assert tuple(weights[name].layout.major_to_minor) == layout.minor_to_major[::-1]


def test_compilations_are_bounded(tried: Any) -> None:
    found = tried("embedding_v4", most_compilations=3)
    assert len(found.trials) == 3
    assert found.ran_out
    assert "not all variants were compiled: 3 are the most allowed" in found.text()
    with pytest.raises(fi.FastIndexError, match="most_compilations must be at least 1"):
        tried("embedding_v4", most_compilations=0)


def test_json_and_notebooks(tried: Any) -> None:
    found = tried("embedding_v4")
    assert json.loads(json.dumps(found.to_json()))["best"] == "as it is"
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize("argument", ["donate_argnums", "static_argnums"])
def test_arguments_that_are_not_there(argument: str) -> None:
    with pytest.raises(fi.FastIndexError, match=f"{argument} has 2, and there are 1 arguments"):
        fi.hlo.try_layouts(lambda x: x, 1.0, **{argument: 2})


LOCAL = """
import jax, jax.numpy as jnp, fastindex as fi

def f(params, x, power):
    return jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ params["w"]), x) ** power, params["b"].T

parameters = {"w": jnp.ones((64, 64)), "b": jnp.ones((30, 70))}
tried = fi.hlo.try_layouts(f, parameters, jnp.ones((8, 64)), 2, static_argnums=2, donate_argnums=1)
print(tried)
best = jax.jit(f, static_argnums=2, in_shardings=tried.best.formats, out_shardings=tried.best.result_formats)
print(tried.base.copy_count, len(tried.trials), tried._asked.program.paths)
try:
    fi.hlo.try_layouts(lambda x: x.no_such_attribute, jnp.ones(3))
except AttributeError as error:
    print("raised", error)
"""


@pytest.mark.in_turn(seconds=2)
def test_on_the_devices_that_are_there() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LOCAL], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )
    assert "[\"params['b']\", \"params['w']\", 'x']" in run.stdout
    assert "raised" in run.stdout


TINY = """
import jax, jax.numpy as jnp, numpy as np, fastindex as fi
jax.devices()  # libtpu is asked in a separate process, whatever this one has begun

def f(params, x):
    return jnp.cumsum(params["w"].T, 0), x + 1

x = jax.ShapeDtypeStruct((1000, 3), jnp.bfloat16)
tried = fi.hlo.try_layouts(f, {"w": jnp.ones((300, 40))}, x, topology="TOPOLOGY")
print(len(tried.trials), tried.base.table.modules, tried.base.argument_nbytes)
print([None if item is None else item.tiles for item in tried.base.inputs])
"""


@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e:2x2"])
def test_a_tpu_that_is_not_there(topology: str) -> None:
    """In a fresh process, with JAX begun for the CPU before."""
    command = [sys.executable, "-c", TINY.replace("TOPOLOGY", topology)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert run.returncode == 0, run.stderr
    assert "((8, 128),)" in run.stdout


def test_the_code_gives_the_width_of_packed_elements() -> None:
    """Without it, JAX refuses the layout that the compiler gives (libtpu 0.0.52)."""
    wanted = [JaxLayout((0, 1), ((64, 128), (8, 1)), 4), JaxLayout((0, 1), ((8, 128),), 0)]
    code = _structure(tuple, wanted, [None, None])
    assert "Layout((1, 0), ((64, 128), (8, 1)), sub_byte_element_size_in_bits=4)" in code
    assert "Layout((1, 0), ((8, 128),))" in code


def test_the_code_keeps_shardings() -> None:
    """Those of arguments that do not change too, the kind of memory where it is not the device's."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.sharding.AbstractMesh((4, 2), ("a", "b"))
    shardings = [
        NamedSharding(mesh, PartitionSpec("a", None)),
        NamedSharding(mesh, PartitionSpec(("a", "b")), memory_kind="pinned_host"),
        NamedSharding(mesh, PartitionSpec(), memory_kind="device"),
    ]
    code = _structure(tuple, [JaxLayout((0, 1), ((8, 128),), 0), None, AUTO], shardings)
    assert code == (
        "(Format(Layout((1, 0), ((8, 128),)), NamedSharding(mesh, PartitionSpec('a', None))), "
        "NamedSharding(mesh, PartitionSpec(('a', 'b')), memory_kind='pinned_host'), "
        "Format(Layout.AUTO, NamedSharding(mesh, PartitionSpec())))"
    )
    assert [named_spec(sharding) for sharding in shardings] == [
        (("a", "b"), (4, 2), ("a", None), None),
        (("a", "b"), (4, 2), (("a", "b"),), "pinned_host"),
        (("a", "b"), (4, 2), (), None),
    ]


def decorated(function: Any) -> Any:
    return functools.wraps(function)(lambda x: function(x))


@decorated
def doubled(x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (doubled, "doubled"), (decorated(doubled), "function"), (lambda x: x, "function"),
        (functools.partial(doubled), "function"),
    ],
)  # fmt: skip
def test_the_code_names_the_function_that_was_given(function: Any, name: str) -> None:
    """Not another one, of which it has the name."""
    assert flat_program(function, [1.0], ()).function.__name__ == name


BASE = Trial("base", Variant((), ()), argument_nbytes=MIB, peak_nbytes=4 * MIB, space_peaks=((0, 4 * MIB), (3, MIB)))


@pytest.mark.parametrize(
    ("peak", "spaces", "refused", "remark"),
    [
        (4 * MIB, ((0, 4 * MIB), (3, MIB)), "", ""),
        # Two tables of tuples are no reason, and 1% is allowed.
        (4 * MIB + 70_000, ((0, 4 * MIB), (3, MIB)), "", ""),
        (5 * MIB, ((0, 5 * MIB), (3, MIB)), "device memory would grow from 4.0 MiB to 5.0 MiB, 1.25 times", ""),
        (4 * MIB, ((0, 4 * MIB), (3, 2 * MIB)), "", "S(3) grows from 1.0 MiB to 2.0 MiB"),
        (4 * MIB, ((0, 4 * MIB), (5, MIB)), "", "S(5), the host's memory, grows from 0 B to 1.0 MiB"),
        (4 * MIB, ((0, 4 * MIB), (2, 60_000)), "", ""),
    ],
)
def test_only_device_memory_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, peak: int, spaces: Any, refused: str, remark: str
) -> None:
    monkeypatch.setattr(Trial, "moved_nbytes", property(lambda trial: trial.name == "base"))
    trial = Trial("other", BASE.variant, argument_nbytes=MIB, peak_nbytes=peak, space_peaks=spaces)
    limits = Limits(0.05, 0.01)
    assert (limits.refusal(trial, BASE), limits.remark(trial, BASE)) == (refused, remark)


class _Silent:
    """A pipe from which nothing comes."""

    def send(self, request: object) -> None:
        pass

    def poll(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def close(self) -> None:
        pass


def test_a_compilation_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    compiler = compilers.TopologyCompiler(None, "v5e:2x2", ((), ()), (), time_limit=0.2)  # type: ignore[arg-type]
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    compiler._child, compiler._pipe = child, _Silent()  # type: ignore[assignment]
    assert compiler._ask(()) == "it took more than 0.2 seconds, the most allowed"
    assert child.returncode == -signal.SIGKILL
    assert compiler._pipe is None
    with pytest.raises(fi.FastIndexError, match="time_limit must be above 0 seconds, got 0"):
        fi.hlo.try_layouts(lambda x: x, 1.0, time_limit=0)


PACKED = """
import jax, jax.numpy as jnp, numpy as np, fastindex as fi
from jax.experimental import topologies
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec

def q(x, w, scale):
    k, n = w.shape
    return x @ (w.astype(jnp.bfloat16).reshape(-1, 32, n) * scale[:, None]).reshape(k, n)

def shape(dtype, *dimensions):
    return jax.ShapeDtypeStruct(dimensions, dtype)

arguments = shape(jnp.bfloat16, 48, 320), shape(jnp.int4, 320, 272), shape(jnp.bfloat16, 10, 272)
tried = fi.hlo.try_layouts(q, *arguments, topology="tpu7x:2x2x1", argument_growth=0.2)
print(tried.best.code)
# The code as printed, compiled for the same TPU.
devices = topologies.get_topology_desc("tpu7x:2x2x1", "tpu").devices[:1]
sharding = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())
layout = eval(tried.best.code.split("\\n")[-1]).lower(*arguments).compile().input_formats[0][1].layout
print(fi.Shape.from_jax(layout, (320, 272), "s4").layout == fi.Layout.parse("{1,0:T(64,128)(8,1)E(4)}"))
"""


@needs_libtpu
@pytest.mark.in_turn(seconds=10)
def test_the_code_for_packed_elements_compiles() -> None:
    """It gives their width: the compiler's layout has it, and JAX compares the two."""
    environment = {**os.environ, **compilers._ENVIRONMENT}
    command = [sys.executable, "-c", PACKED]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert run.returncode == 0, run.stderr
    assert "sub_byte_element_size_in_bits=4" in run.stdout
    assert run.stdout.endswith("True\n")


@needs_libtpu
def test_a_topology_that_there_is_not() -> None:
    with pytest.raises(fi.FastIndexError, match=r"(?i)topolog|v99"):
        fi.hlo.try_layouts(lambda x: x + 1, 1.0, topology="v99:2x2")


def test_without_libtpu_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(fi.FastIndexError, match=r"pip install 'fastindex\[tpu\]'"):
        fi.hlo.try_layouts(lambda x: x + 1, 1.0, topology="v5e:2x2")


INTERRUPTED = """
import jax, jax.numpy as jnp, fastindex as fi

def f(x, w):
    step = lambda i, c: jnp.cumsum(jnp.sort(c.T, 0) @ w, 0).T
    return jax.lax.fori_loop(0, 9, step, x), [jnp.fft.fft(x * i).real for i in range(40)]

fi.hlo.try_layouts(f, jnp.ones((300, 200)), jnp.ones((300, 300)), topology="v5e:2x2")
print("came to its end")
"""


def children_of(process: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_compiling(process: int) -> bool:
    """Whether a process has loaded libtpu."""
    try:
        return "libtpu" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


@needs_libtpu
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="processes are looked at in /proc")
def test_an_interrupt_ends_the_child() -> None:
    """As a terminal sends it, to all processes of the group; the child leaves it to its parent."""
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as run:
        while run.poll() is None and not any(map(is_compiling, children_of(run.pid))):
            time.sleep(0.05)
        children = children_of(run.pid)
        os.killpg(run.pid, signal.SIGINT)
        out, error = run.communicate(timeout=HANG_SECONDS)
    assert run.returncode == -signal.SIGINT, error
    assert out == b""
    assert error.rstrip().endswith(b"KeyboardInterrupt")
    assert len(children) == 1
    assert not Path(f"/proc/{children[0]}").exists()
