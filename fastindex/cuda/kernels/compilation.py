"""GPU kernels: compiled once for each architecture, cached on disk, launched through cuda.core."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastindex.cuda.kernels.device import COMPILER, THREADS, compute_capability, ptx_of
from fastindex.runtime.machine_code import digest_of_sources

#: Packages that the machine code of a kernel depends on, besides its source.
_PACKAGES = (
    "numba",
    "numba-cuda",
    "numba-cuda-mlir",
    "llvmlite",
    "nvidia-nvvm",
    "nvidia-nvvm-cu12",
    "nvidia-nvjitlink",
    "cuda-core",
)


class Kernel:
    """A kernel with int64 parameters: addresses and numbers; compiled at its first launch on a device.

    Parameters
    ----------
    function : callable
    name : str
        Unique; part of its key in the cache on disk.
    resident : int
        Blocks that must be resident on a multiprocessor at once.
    units : int
        What a block moves: units, elements or tiles.
    """

    def __init__(self, function: Callable[..., Any], name: str, resident: int = 2, units: int = 4 * THREADS) -> None:
        self.function = function
        self.name = name
        self.resident = resident
        self.units = units
        self._loaded: dict[int, Any] = {}
        self._lock = threading.Lock()

    def blocks(self, units: int) -> int:
        """Return the number of blocks that move this number of units."""
        return -(-units // self.units)

    def launch(self, blocks: int, device: int, stream: Any, *arguments: int) -> None:
        """Launch `blocks` blocks of `THREADS` threads on a stream of cuda.core, without waiting for them."""
        found = self._loaded.get(device)
        if found is None:
            found = self._load(device)
        _launcher()(stream, _grid(blocks), found, *arguments)

    def _load(self, device: int) -> Any:
        with self._lock:
            if device not in self._loaded:
                capability = compute_capability(device)
                try:
                    found = _loaded(self.cubin(capability))
                except Exception:  # the cached code may be damaged
                    found = _loaded(self.cubin(capability, afresh=True))
                self._loaded[device] = found
            return self._loaded[device]

    def ptx(self, capability: tuple[int, int]) -> str:
        """Return the kernel as PTX, its entry named `_ENTRY`."""
        text = ptx_of(self.function, capability, self.resident)
        (entry,) = re.findall(r"\.visible\s+\.entry\s+([\w$]+)", text)
        return text.replace(entry, _ENTRY)

    def cubin(self, capability: tuple[int, int], afresh: bool = False) -> bytes:
        """Return the machine code of the kernel, cached on disk; with `afresh`, compile it again."""
        kept, key = _kept(), self._key(capability)
        if kept is not None and not afresh:
            with contextlib.suppress(OSError):
                code = kept.get(key)
                if code:
                    return bytes(code)
        core = _core()
        # nvJitLink where it is installed, else the driver.
        options = core.LinkerOptions(arch=f"sm_{capability[0]}{capability[1]}")
        linker = core.Linker(core.ObjectCode.from_ptx(self.ptx(capability).encode()), options=options)
        code = bytes(linker.link("cubin").code)
        if kept is not None:
            with contextlib.suppress(OSError):
                kept[key] = code
        return code

    def _key(self, capability: tuple[int, int]) -> str:
        digest = hashlib.sha256()
        for part in (self.name, self.resident, THREADS, capability, _stamp()):
            digest.update(repr(part).encode() + b"\0")
        return digest.hexdigest()


_ENTRY = "fastindex_kernel"


def _loaded(code: bytes) -> Any:
    return _core().ObjectCode.from_cubin(code).get_kernel(_ENTRY)


@lru_cache(maxsize=1)
def _core() -> Any:
    from cuda import core  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return core


@lru_cache(maxsize=1)
def _launcher() -> Any:
    return _core().launch


@lru_cache(maxsize=1024)
def _grid(blocks: int) -> Any:
    return _core().LaunchConfig(grid=blocks, block=THREADS)


@lru_cache(maxsize=1)
def _stamp() -> tuple[str, ...]:
    """Return what machine code depends on: a digest of our sources, the compiler, and the versions of its packages."""
    versions = []
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{package} {version(package)}")
    return (digest_of_sources(with_gpu=True), COMPILER, *versions)


@lru_cache(maxsize=1)
def _kept() -> Any:
    """Return the cache on disk, or None if it cannot be written or cuda.core is too old to have one."""
    try:
        from cuda.core.utils import FileStreamProgramCache  # type: ignore[import-not-found, import-untyped, unused-ignore]

        folder = os.environ.get("NUMBA_CACHE_DIR")
        return FileStreamProgramCache(Path(folder) / "cuda") if folder else FileStreamProgramCache()
    except Exception:  # an older cuda.core, or a home that cannot be written
        return None
