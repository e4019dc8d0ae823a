"""Kernels: compiled without the GIL, once per machine, kept on disk where that is possible.

Numba makes machine code of every function that a kernel calls, and of all that this one calls, for callers from Python
that there are not.

Numba's own disk cache misses four things that matter here. It does not see edits in the other modules a kernel
inlines or takes constants from, so its freshness stamp is extended by a digest of their sources. It keeps an index of
its files, which two processes that save at once overwrite for each other; here every compiled signature has a file of
its own, replaced as a whole. It raises where no cache folder can be written; here such a kernel is compiled anew in
each process. And an unreadable or half-written cache file, or a full disk, is an error there; here it costs time.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import pickle
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from numba import njit, types
from numba.core import config, sigutils
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.codegen import JITCodeLibrary, get_host_cpu_features
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic, register_jitable

from fastindex.first_use import PACKAGE_FOLDER, uninterrupted
from fastindex.terminal import is_terminal


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


Function = TypeVar("Function", bound=Callable[..., Any])

#: The sources that compiled kernels are made of, by their paths in the package.
KERNEL_SOURCES = (
    "runtime/kernels.py",
    "**/*kernel.py",
    "**/*numbers.py",
    "**/kernels/*.py",
    "**/lines/*.py",
)

_KERNELS: list[tuple[Any, str]] = []
_noticed = False


def kernel(signature: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator that turns a function into a Numba dispatcher, compiled at its first call.

    Parameters
    ----------
    signature : str, optional
        The types of its arguments, as Numba spells them. They let `registered_kernels` list it for
        compilation ahead of its first call; a call with other types is compiled for those.
    **options
        More options of ``numba.njit``. ``nogil=True`` and ``error_model="numpy"`` are the defaults.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        defaults = {"nogil": True, "error_model": "numpy", "pipeline_class": KernelCompiler}
        dispatcher = njit(**{**defaults, **options})(function)
        if hasattr(dispatcher, "_cache"):
            dispatcher._cache = _cache_of(function)
            dispatcher.compile = _uninterrupted_compile(dispatcher.compile)
            if signature is not None:
                _KERNELS.append((dispatcher, signature))
        return dispatcher

    return decorate


def _uninterrupted_compile(compile_now: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def compile_apart(signature: Any) -> Any:
        # Within a compilation, also of other kernels than these, its own thread goes on.
        if global_compiler_lock.is_locked():
            return compile_now(signature)
        return uninterrupted(lambda: compile_now(signature))

    return compile_apart


def subroutine(*literals: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator for a function that kernels call, compiled for the types of its arguments.

    Numba compiles a function anew for every constant that is handed to it: parts of a transpose were compiled six times
    in one kernel. Here only `literals`, names of parameters, are what they are; other constants are numbers.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
        if not hasattr(dispatcher, "get_call_template"):
            return dispatcher
        are_kept = [name in literals for name in inspect.signature(function).parameters]
        template_of = dispatcher.get_call_template

        def get_call_template(arguments: Sequence[types.Type], named: dict[str, types.Type]) -> Any:
            pairs = zip(are_kept, arguments, strict=True)
            return template_of([given if is_kept else types.unliteral(given) for is_kept, given in pairs], named)

        dispatcher.get_call_template = get_call_template
        return dispatcher

    return decorate


def instructions(*literals: str, result: types.Type = types.void) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator for a function that writes LLVM's instructions for a call of its name in a kernel.

    It gets LLVM's builder, then an LLVM value for each argument: an int64, a pointer, a tuple of int64. Of `literals`,
    names of parameters, it gets the number where the caller has a constant. It returns a value of the type `result`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        names = list(inspect.signature(function).parameters)[1:]

        @wraps(function)
        def define(typing_context: Any, *arguments: types.Type) -> Any:
            pairs = zip(names, arguments, strict=True)
            kinds = [kind if name in literals else _type_in_registers(kind) for name, kind in pairs]

            def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
                pairs = zip(kinds, values, strict=True)
                given = (kind.literal_value if isinstance(kind, types.Literal) else value for kind, value in pairs)
                found = function(builder, *given)
                return context.get_dummy_value() if found is None else found

            return result(*kinds), generate

        return intrinsic(prefer_literal=True)(define)

    return decorate


def _type_in_registers(kind: types.Type) -> types.Type:
    if isinstance(kind, types.BaseTuple):
        return types.UniTuple(types.int64, kind.count)
    return kind if isinstance(kind, types.CPointer) else types.int64


def inlined(function: Function) -> Function:
    """Let kernels call `function`; it has no cache of its own, a caller's holds it."""
    return register_jitable(no_cfunc_wrapper=True)(function)  # type: ignore[no-any-return]


def registered_kernels() -> list[tuple[Any, tuple[types.Type, ...]]]:
    """Return the dispatcher of every kernel that tells its signature, with the types of its arguments."""
    return [(dispatcher, sigutils.normalize_signature(signature)[0]) for dispatcher, signature in _KERNELS]


def is_missing(dispatcher: Any, arguments: tuple[types.Type, ...]) -> bool:
    """Whether code for these types can be kept on disk and is not there yet."""
    return isinstance(dispatcher._cache, _Kept) and not dispatcher._cache.holds(arguments, dispatcher.targetctx)


def kernel_signatures() -> dict[str, list[tuple[types.Type, ...]]]:
    """Give, for each kernel that tells its signature, the types it has been compiled for in this process."""
    return {dispatcher.__name__: list(dispatcher.signatures) for dispatcher, _ in _KERNELS}


@cache
def features() -> frozenset[str]:
    """Return what the processor that code is compiled for can do, by LLVM's names: "avx2", "f16c", "neon"."""
    known = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    found = {name[1:] for name in known.split(",") if name.startswith("+")}
    # Every AArch64 processor has NEON, though not every system reports it.
    always = {"neon"} if config.CPU_FEATURES is None and platform.machine() in ("aarch64", "arm64") else set()
    return frozenset(found | always)


@lru_cache(maxsize=1)
def digest_of_sources() -> str:
    """Return a digest of all kernels, and of the subroutines and the numbers that they take."""
    digest = hashlib.sha256()
    package = Path(PACKAGE_FOLDER)
    try:
        for source in sorted({path for pattern in KERNEL_SOURCES for path in package.glob(pattern)}):
            digest.update(str(source.relative_to(package)).encode() + b"\0" + source.read_bytes())
    except OSError:
        # No sources to edit: the stamp of the kernel's own file has to do.
        return ""
    return digest.hexdigest()


class _Unkept(NullCache):  # type: ignore[misc]
    """Nowhere to keep compiled code."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        _notice("and cannot keep the result: no cache folder can be written; set NUMBA_CACHE_DIR to one")


class _FileEach(IndexDataCacheFile):  # type: ignore[misc]
    """Cache files of one kernel: one a signature, named after it, that says at its beginning what it was made from."""

    def save(self, key: Any, data: Any) -> None:
        with self._open_for_write(self._path(key)) as file:
            pickle.dump((self._version, self._source_stamp), file)
            file.write(self._dump(data))

    def load(self, key: Any) -> Any:
        try:
            with open(self._path(key), "rb") as file:
                return pickle.load(file) if self._is_fresh(file) else None
        except FileNotFoundError:
            return None

    def holds(self, key: Any) -> bool:
        try:
            with open(self._path(key), "rb") as file:
                return self._is_fresh(file)
        except Exception:  # no file, or a damaged one
            return False

    def _is_fresh(self, file: BinaryIO) -> bool:
        return bool(pickle.load(file) == (self._version, self._source_stamp))

    def _path(self, key: Any) -> str:
        name = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
        return str(self._data_path(self._data_name_pattern.replace("{number:d}", name)))


class _Kept(FunctionCache):  # type: ignore[misc]
    """Numba's cache, safe to write from several processes, whose failures cost only time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), digest_of_sources()
        self._cache_file: _FileEach = _FileEach(self._cache_path, self._impl.filename_base, stamp)

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether there is a file for this signature, from these sources."""
        return self._cache_file.holds(self._index_key(sig, target_context.codegen()))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            with with_machine_code(target_context.codegen()):
                loaded = super().load_overload(sig, target_context)
        except Exception:  # whatever a damaged pickle raises
            loaded = None
        if loaded is None:
            _notice(f"once for this machine, kept in {self.cache_path}")
        return loaded

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception:  # a full disk, a folder that has become read-only
            _notice("and cannot keep the result")


def _cache_of(function: Callable[..., Any]) -> Any:
    try:
        return _Kept(function)
    except (RuntimeError, OSError):
        return _Unkept()


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Return the folder in which what is kept for this machine may be written, None where there is none."""
    cache = _cache_of(kernel)
    return Path(cache.cache_path) if isinstance(cache, _Kept) else None


def has_compiled() -> bool:
    """Whether this process had to compile a kernel, and did not find it kept."""
    return _noticed


def _notice(why: str) -> None:
    """Say, once and only to a person, why this call takes seconds."""
    global _noticed
    if not _noticed and is_terminal(sys.stderr):
        print(f"fastindex: compiling kernels ({why}) ...", file=sys.stderr)  # noqa: T201
    _noticed = True
