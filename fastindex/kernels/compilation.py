"""One way to compile a kernel: without the GIL, once per machine, kept on disk where that is possible.

Numba's own disk cache misses three things that matter here. It does not see edits in the other modules a
kernel inlines, so its freshness stamp is extended by a digest of every source in this folder. It raises where
no cache folder can be written; here such a kernel is compiled anew in each process. And an unreadable or
half-written cache file, or a full disk, is an error there; here it costs time.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from numba import njit, types
from numba.core import sigutils
from numba.core.caching import FunctionCache, NullCache
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

_KERNELS: list[tuple[Any, str]] = []
_noticed = False


def kernel(signature: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator that turns a function into a Numba dispatcher, compiled at its first call.

    Parameters
    ----------
    signature : str, optional
        The types of its arguments, as Numba spells them. They let `compile_kernels` compile it ahead of its
        first call; a call with other types is compiled for those.
    **options
        More options of ``numba.njit``. ``nogil=True`` and ``error_model="numpy"`` are the defaults.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(**{"nogil": True, "error_model": "numpy", **options})(function)
        if hasattr(dispatcher, "_cache"):
            dispatcher._cache = _cache_of(function)
            if signature is not None:
                _KERNELS.append((dispatcher, signature))
        return dispatcher

    return decorate


def inlined(function: Function) -> Function:
    """Let kernels call `function`; it has no cache of its own, a caller's holds it."""
    return register_jitable(function)  # type: ignore[no-any-return]


def compile_kernels() -> int:
    """Compile every kernel that tells its signature, or load it from the cache; give how many there are."""
    for dispatcher, signature in _KERNELS:
        arguments, _ = sigutils.normalize_signature(signature)
        dispatcher.compile(arguments)
    return len(_KERNELS)


def kernel_signatures() -> dict[str, list[tuple[types.Type, ...]]]:
    """Give, for each kernel that tells its signature, the types it has been compiled for in this process."""
    return {dispatcher.__name__: list(dispatcher.signatures) for dispatcher, _ in _KERNELS}


@lru_cache(maxsize=1)
def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    try:
        folder = Path(__file__).parent
        for source in sorted(folder.rglob("*.py")):
            digest.update(str(source.relative_to(folder)).encode() + b"\0" + source.read_bytes())
    except OSError:
        # No sources to edit: the stamp of the kernel's own file has to do.
        return ""
    return digest.hexdigest()


class _Unkept(NullCache):  # type: ignore[misc]
    """Nowhere to keep compiled code."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        _notice("and cannot keep the result: no cache folder can be written; set NUMBA_CACHE_DIR to one")


class _Kept(FunctionCache):  # type: ignore[misc]
    """Numba's cache, stamped with all sources of this folder, whose failures cost only time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = (self._cache_file._source_stamp, _digest_of_sources())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            loaded = super().load_overload(sig, target_context)
        except Exception:  # whatever a damaged pickle raises
            loaded = None
        if loaded is None:
            _notice(f"once for this machine, kept in {self.cache_path}")
        return loaded

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception:  # a damaged index is read before it is written
            self._start_afresh(sig, data)

    def _start_afresh(self, sig: Any, data: Any) -> None:
        try:
            self.flush()
            super().save_overload(sig, data)
        except Exception:
            _notice("and cannot keep the result")


def _cache_of(function: Callable[..., Any]) -> Any:
    try:
        return _Kept(function)
    except (RuntimeError, OSError):
        return _Unkept()


def _notice(why: str) -> None:
    """Say, once and only to a person, why this call takes seconds."""
    global _noticed
    if not _noticed and sys.stderr is not None and sys.stderr.isatty():
        print(f"fastindex: compiling kernels ({why}) ...", file=sys.stderr)  # noqa: T201
    _noticed = True
