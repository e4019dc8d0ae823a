"""First calls that are interrupted, and children that are forked during first calls.

Tests of: first_use, lazy.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from random import Random

import pytest

from fastindex.first_use import uninterrupted
from fastindex.lazy import lazy_property
from tests.cases.hangs import HANG_SECONDS
from tests.faults.forks import wrong_in_first_use
from tests.faults.interrupts import wrong_after_interrupts


@pytest.mark.in_turn(seconds=1.5)
@pytest.mark.parametrize("first", [0.02, 0.2])
def test_a_call_works_after_interrupted_first_ones(first: float) -> None:
    random = Random(int(1000 * first))
    assert wrong_after_interrupts([first + 0.1 * random.random(), 0.3 * random.random() + 1e-3])[0] == ""


@pytest.mark.in_turn(seconds=4)
@pytest.mark.parametrize("seed", [1, 2])
def test_children_forked_during_first_calls_and_new_plans(seed: int) -> None:
    assert wrong_in_first_use(seed, 2, 0.4) == ""


_EXAMPLES = """
import contextlib, doctest, io, os, sys
import fastindex as fi
from fastindex import first_use
package, unguarded = os.path.dirname(fi.__file__), []
class Finder:
    def find_spec(name, path=None, target=None):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            if frame.f_code.co_name == "find_spec":
                # It is only asked for.
                return
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(package) and not first_use._is_held():
            unguarded.append(f"{name} by {frame.f_code.co_filename}:{frame.f_lineno}")
sys.meta_path.insert(0, Finder)
ran = 0
# Those of fastindex.dask need Dask.
for module in (fi, fi.cuda, fi.hlo, fi.layouts, fi.numpy, fi.sharding, fi.weights, fi.xla):
    for name in module.__all__:
        public = getattr(module, name)
        for test in doctest.DocTestFinder().find(public, name, module=sys.modules[public.__module__]):
            with contextlib.redirect_stdout(io.StringIO()):
                ran += doctest.DocTestRunner().run(test).attempted
print(ran, *unguarded, sep="\\n")
"""


@pytest.mark.in_turn(seconds=5)
def test_what_calls_import_no_fork_cuts_off() -> None:
    """A child that is forked while another thread imports a module waits for that module's lock for ever."""
    done = subprocess.run([sys.executable, "-c", _EXAMPLES], capture_output=True, text=True, check=True)
    ran, *unguarded = done.stdout.split("\n")[:-1]
    assert int(ran) > 200
    assert unguarded == []


def test_an_interrupt_ends_the_wait_alone() -> None:
    program = """
import signal, threading
from fastindex.first_use import uninterrupted
ended, done = threading.Event(), threading.Event()
def work():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    ended.wait()
    done.set()
    return 1
try:
    uninterrupted(work)
except KeyboardInterrupt:
    print("interrupted", done.is_set())
ended.set()
print(uninterrupted(lambda: done.is_set()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )
    assert done.stdout == "interrupted False\nTrue\n"


def test_errors_arrive_and_calls_within_are_plain() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        uninterrupted(fails)
    idents = uninterrupted(lambda: (threading.get_ident(), uninterrupted(threading.get_ident)))
    assert idents[0] == idents[1] != threading.get_ident()


def test_two_threads_may_compute_an_attribute() -> None:
    """With the lock of Python 3.11 the second would wait for the first, which waits for the second."""
    both = threading.Barrier(2, timeout=HANG_SECONDS)

    class Owner:
        @lazy_property
        def number(self) -> int:
            both.wait()
            return 7

    owner, found = Owner(), []
    threads = [threading.Thread(target=lambda: found.append(owner.number)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7, 7]
    assert owner.__dict__ == {"number": 7}
