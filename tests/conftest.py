"""What every test shares: how much of the random tests runs, and in which processes.

Random tests take their seeds from `strategies.seeds(count)`, and where these take a second or more together from
`strategies.rotating_seeds(count)`: in a plain run a twelfth of them, the same each day. ``FASTINDEX_TEST_PART=3/12``
runs another twelfth, ``2/6`` a sixth, as ``.ci/run`` does with another one each day, and ``all`` all. The first lines
of a run say which, and how to repeat them. A test that asserts what its seeds reach together takes `seeds`, and asserts
it of a plain run's seeds only, as `strategies.OTHER_SEEDS` says.

A test that is too long for a plain run, such as a sweep over all sizes, is marked ``@pytest.mark.sweep``. A plain
run leaves it out, and a run of the whole suite with a part that is named takes that part of them;
``FASTINDEX_TEST_PART=all`` and ``-m sweep`` run all. It never is the only test of something: beside it stands one that
takes a part of the sweep, with `rotating_seeds` or the few cases that matter most::

    @pytest.mark.parametrize("seed", strategies.rotating_seeds(600))
    def test_random_widths(seed): ...               # by default a twelfth: 50 seeds

    @pytest.mark.sweep
    @pytest.mark.parametrize("width", range(1, 500))
    def test_every_width(width): ...                # in `.ci/run` only

A test of seconds that has no seeds to leave out, such as one that starts many processes, is marked with how many it
takes: ``@pytest.mark.in_turn(seconds=8)``, of each of its cases where it has several. A plain run of the whole suite
leaves these out too, one with a part takes its part; files and tests that are named run whole. What is marked should
not rotate within: it would run the same part each time. The simulator and the fenced relayouts do, since they take half
a minute; `.ci/run` names them, for the part of each day.

The whole suite is shared out over the processors by pytest-xdist, where it is installed, and over twice as many
processes where the processors are busy with other work. Files and tests that are named, ``-k``, ``-m`` and ``-n 0`` run
in this process. The cases of one test function stay together, in one process. Two marks say more: ``xdist_group(name)``
keeps several functions together, for an expensive fixture; ``long`` lets a test of many seconds begin first. Before
they are shared out, all kernels are compiled, as ``fastindex warmup`` does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastindex.runtime.machine_code  # noqa: F401  (small questions go to kernels too, but for `test_first_answer`)
from fastindex.runtime import machine as this_machine
from fastindex.runtime.threads import THREADS_VARIABLE, thread_count
from tests.cases import strategies
from tests.cases.machines import CACHES_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if CACHES_VARIABLE in os.environ:
    this_machine._CACHES = Path(os.environ[CACHES_VARIABLE])

#: A process holds some hundred mebibytes; more of them do not make the suite faster.
MOST_PROCESSES = 8
#: How many processes, on average of the last minute, want each processor of a machine that is busy.
BUSY = 1.25

#: Whether the whole suite runs, and whether this process has others run it.
WHOLE = pytest.StashKey[bool]()
SHARES_OUT = pytest.StashKey[bool]()
#: By which name a process that runs a share of the tests knows the first.
WHOLE_HERE = "whole"

#: Run by `test_interop`, `test_cuda_simulator` and `test_stand_in`, each in a separate process.
collect_ignore_glob = [
    "core/interop_with_*.py",
    "kernels/simulated_cuda.py",
    "kernels/cuda_kernel_count.py",
    "kernels/simulator.py",
    "cuda/stand_in/*.py",
]

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    # A machine with a GPU may lack it; `test_gpu` does without.
    pass
else:
    settings.register_profile(
        "deterministic",
        derandomize=True,
        print_blob=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile("deterministic")


def which_seeds() -> str:
    if strategies.PART is None:
        return f"random tests: all seeds from {strategies.FIRST_SEED}, and all sweeps"
    part = f"{strategies.PART + 1}/{strategies.PARTS}"
    rest = "rotates, nothing that runs in turn, no sweeps" if strategies.PLAIN else "rotates, runs in turn or sweeps"
    again = f"FASTINDEX_TEST_PART={'plain' if strategies.PLAIN else part} FASTINDEX_TEST_SEED={strategies.FIRST_SEED}"
    return (
        f"random tests: seeds from {strategies.FIRST_SEED}, part {part} of what {rest}; "
        f"{again} repeats them, FASTINDEX_TEST_PART=all runs all"
    )


def pytest_report_header() -> str:
    return which_seeds()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say it again where something failed: ``-q`` shows no header."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(which_seeds())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no cycles while ten thousand tests are made, nor among them later: that took a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole = config.stash.get(WHOLE, False)
    sweeps = {item: 1.0 for item in items if item.get_closest_marker("sweep")}
    left_out = set()
    if strategies.PART is not None and not config.option.markexpr:
        left_out = out_of_turn(sweeps) if whole and not strategies.PLAIN else {*sweeps}
    if whole:
        marks = {item: mark for item in items if (mark := item.get_closest_marker("in_turn")) and item not in sweeps}
        slow = {item: mark.kwargs["seconds"] for item, mark in marks.items()}
        left_out |= {*slow} if strategies.PLAIN else out_of_turn(slow)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if is_shared_out(config):
        items.sort(key=lambda item: item.get_closest_marker("long") is None)


def out_of_turn(seconds: dict[pytest.Item, float]) -> set[pytest.Item]:
    """Those tests, of some that take many seconds, that belong to other parts."""
    taken = strategies.dealt({item.nodeid: each for item, each in seconds.items()})
    return {item for item in seconds if item.nodeid not in taken}


# Processes


def process_count() -> int:
    """How many processes share the tests: one for each processor, two where other work would take most of its time."""
    processors = thread_count()
    with contextlib.suppress(OSError):
        if os.getloadavg()[0] > BUSY * processors:
            processors *= 2
    return min(processors, MOST_PROCESSES)


def is_shared_out(config: pytest.Config) -> bool:
    """Whether this is one of several processes that run tests."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share the whole suite out over the processors that this process may use."""
    option = config.option
    if is_shared_out(config):
        config.stash[WHOLE] = config.workerinput[WHOLE_HERE]
        return
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not (option.keyword or option.markexpr)
    config.stash[WHOLE] = whole
    if not whole or option.collectonly or option.usepdb:
        return
    processes = process_count()
    if getattr(option, "numprocesses", 0) is None and option.dist == "no" and not option.tx and processes > 1:
        option.numprocesses, option.dist, option.loadscopereorder = processes, "loadgroup", False
        config.stash[SHARES_OUT] = True


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process that tests are shared out to whether the whole suite runs."""
    node.workerinput[WHOLE_HERE] = node.config.stash[WHOLE]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the cases of a function together, and with the functions of its group."""
    if config.option.dist != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Functions(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return str(super()._split_scope(nodeid)).split("[")[0]

    return Functions(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Hear Ctrl-C, which a shell's background job ignores and its children would; compile all kernels once."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if session.config.stash.get(SHARES_OUT, False):
        terminal = session.config.pluginmanager.getplugin("terminalreporter")
        terminal.write_line("compiling kernels, or loading them ...")
        # What fails here fails again in a test.
        environment = {**os.environ, THREADS_VARIABLE: str(session.config.option.numprocesses)}
        subprocess.run([sys.executable, "-m", "fastindex", "warmup"], cwd=ROOT, env=environment, check=False)
