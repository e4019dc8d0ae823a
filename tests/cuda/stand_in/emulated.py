"""A plugin of pytest: CUDA on the stand-in driver, whose kernels run in the emulator.

``python -m pytest -p tests.cuda.stand_in.emulated tests/test_gpu.py`` in the environment of `driver.environment`. What
the emulator finds fails the test that was running, with the line of the kernel. ``python -m
tests.cuda.stand_in.emulated SCRIPT ARGUMENTS`` runs a script there.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
import warnings
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.cuda.ptx.emulator import EmulatedError, declared, loaded
from tests.cuda.ptx.reading import PtxError

if os.environ.get("STAND_IN_COMPILER") == "numba-cuda-mlir":
    # It compiles where numba-cuda is not installed.
    sys.modules["numba_cuda"] = None  # type: ignore[assignment]

DRIVER = declared(ctypes.CDLL("libcuda.so.1"))
DRIVER.stand_in_failure.restype = ctypes.c_char_p

#: Kernels that could not be loaded.
_refused: list[PtxError] = []

_ASSEMBLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


@_ASSEMBLER
def _assembled(ptx: bytes) -> int:
    try:
        return ctypes.cast(loaded(ptx.decode(), DRIVER), ctypes.c_void_p).value or 0
    except PtxError as error:
        _refused.append(error)
        return 0


def link_with_the_driver() -> None:
    """Let cuda.core link PTX with the driver, as where nvJitLink is not installed; the stand-in gives back the PTX."""
    from cuda.bindings import driver
    from cuda.core import _linker

    _linker._use_nvjitlink_backend, _linker._driver = False, driver
    if find_spec("numba_cuda") is not None:
        with warnings.catch_warnings():
            # Its own, of the newest NumPy.
            warnings.simplefilter("ignore")
            from numba.cuda import decorators

        # Kernels of numba-cuda itself are then PTX too.
        decorators._have_nvjitlink = lambda: False


def start() -> None:
    DRIVER.stand_in_run(_assembled)
    link_with_the_driver()


def finish() -> None:
    """Let all work be done.

    Raises
    ------
    EmulatedError, PtxError
        Something in it is wrong, or was not understood.
    """
    found = DRIVER.stand_in_failure()
    refused = _refused[:1]
    _refused.clear()
    if refused:
        raise refused[0]
    if found:
        raise EmulatedError(found.decode())


start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    try:
        result = yield
    except Exception:
        # What the emulator found is why the test failed.
        finish()
        raise
    finish()
    return result


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        finish()
