"""A plugin of pytest: CUDA on the stand-in driver, whose kernels run in the emulator.

``python -m pytest -p tests.cuda.stand_in.emulated tests/test_gpu.py`` in the environment of `driver.environment`. What
the emulator finds fails the test that was running, with the line of the kernel.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Generator
from typing import Any

import pytest

from tests.cuda.ptx.emulator import EmulatedError, declared, loaded

DRIVER = declared(ctypes.CDLL("libcuda.so.1"))
DRIVER.stand_in_failure.restype = ctypes.c_char_p

_ASSEMBLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


@_ASSEMBLER
def _assembled(ptx: bytes) -> int:
    try:
        return ctypes.cast(loaded(ptx.decode(), DRIVER), ctypes.c_void_p).value or 0
    except Exception:
        traceback.print_exc()
        return 0


def link_with_the_driver() -> None:
    """Let cuda.core link PTX with the driver, as where nvJitLink is not installed: the stand-in gives back what it gets."""
    from cuda.bindings import driver
    from cuda.core import _linker

    _linker._use_nvjitlink_backend, _linker._driver = False, driver


def start() -> None:
    DRIVER.stand_in_run(_assembled)
    link_with_the_driver()


def finish() -> None:
    """Let all work be done.

    Raises
    ------
    EmulatedError
        Something in it is wrong.
    """
    found = DRIVER.stand_in_failure()
    if found:
        raise EmulatedError(found.decode())


start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    try:
        result = yield
    except Exception as error:
        found = DRIVER.stand_in_failure()
        if found:
            raise EmulatedError(found.decode()) from error
        raise
    finish()
    return result
