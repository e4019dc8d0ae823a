"""Machine code for kernels alone: a function that they call is linked into them, and never runs by itself.

Numba makes machine code of every function that a kernel calls, and of all that this one calls, for callers from Python
that there are not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _WithoutEnvironments:
    """A code generator for code that no function of Python's begins, so that it needs none of their environments."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: a kernel that is loaded from disk has no environments of what it calls either."""


class LinkedCode(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function, for kernels to be linked with."""

    @property
    def codegen(self) -> Any:
        """What made it."""
        return _WithoutEnvironments(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:
        """Return what raises a TypeError, should Python call the function after all."""
        self._ensure_finalized()
        found = ctypes.cast(ctypes.pythonapi.PyErr_BadArgument, ctypes.c_void_p).value
        assert found is not None
        return found

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class KernelCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, which makes machine code of a kernel, and none of what it calls."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *others: Any) -> None:
        if library is None:
            library = JITCodeLibrary(target_context.codegen(), "kernel")
            # Only what it keeps from the beginning can be written to disk.
            library.enable_object_caching()
        super().__init__(typing_context, target_context, library, *others)

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Compile a function, as `numba.core.compiler.CompilerBase` does."""
        with _libraries_of(self.state.targetctx.codegen(), LinkedCode):
            return super().compile_extra(func)


@contextmanager
def with_machine_code(codegen: Any) -> Iterator[None]:
    """Make machine code of what is loaded within this context, also where a kernel that calls it is compiled."""
    with _libraries_of(codegen, JITCodeLibrary):
        yield


@contextmanager
def _libraries_of(codegen: Any, kind: type) -> Iterator[None]:
    """Let `codegen` make libraries of a kind; Numba's lock keeps other threads from compiling."""
    before = codegen._library_class
    codegen._library_class = kind
    try:
        yield
    finally:
        codegen._library_class = before
