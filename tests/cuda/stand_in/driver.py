"""Compiles the stand-in driver, and makes the environment of a process that loads it as ``libcuda.so.1``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from tests.cases.hangs import HANG_SECONDS
from tests.cuda.ptx.emulator import SOURCES, compiler_flags

HERE = Path(__file__).resolve().parent


def missing() -> str | None:
    """Return what is needed and not there."""
    packages = Path(sysconfig.get_path("purelib"))
    wanted = {"numba-cuda": "numba_cuda", "nvidia-nvvm": "nvidia/cu13/**/libnvvm.so*"}
    wanted |= {
        "nvidia-cuda-nvrtc": "nvidia/cu13/**/libnvrtc.so*",
        "nvidia-nvjitlink": "nvidia/cu13/**/libnvJitLink.so*",
    }
    absent = [name for name, pattern in wanted.items() if not any(packages.glob(pattern))]
    if shutil.which("gcc") is None:
        absent.append("gcc")
    return f"not installed: {', '.join(absent)}; pip install -e '.[test-cuda]'" if absent else None


def build(folder: Path, *flags: str) -> Path:
    """Compile the driver into a folder for ``LD_LIBRARY_PATH``."""
    library = folder / "libcuda.so.1"
    emulator = HERE.parent / "ptx"
    sources = [HERE / "libcuda.c", HERE / "work.c", *(emulator / name for name in SOURCES)]
    # Nobody else's symbols take the place of its own.
    command = ["gcc", "-w", *compiler_flags(), *flags, "-Wl,-Bsymbolic", "-o", library, *sources, "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=HANG_SECONDS)
    (folder / "libcuda.so").symlink_to(library.name)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process that sees the driver in `folder`; what it is asked goes to ``log`` there."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))
    return {
        **kept,
        "LD_LIBRARY_PATH": path,
        "STAND_IN_LOG": str(folder / "log"),
        "NUMBA_CACHE_DIR": str(folder / "kept"),
        # Memory is freed at once: what is read later is not there.
        "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT": "0",
    }
