"""Machine code of kernels: cached on disk and loaded by LLVM alone, without Numba.

A kernel is a function of integers: addresses and numbers. It is compiled once (`fastindex.runtime.kernels`, which
imports Numba) to an object file on disk: a process that finds the file loads it in milliseconds, and never waits for
Numba's import and its type registries.

A kernel has a file for each target: this processor, or a level of instructions whose kernels another machine has
compiled. It begins with a digest of all that the code depends on and of the code itself: a file that is damaged, or of
other sources or another compiler, is ignored and written again. Files are replaced as a whole, so any number of
processes may write them. Where none can be written, kernels are compiled in each process.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
from llvmlite import binding as llvm

from fastindex.errors import FastIndexError
from fastindex.first_use import PACKAGE_FOLDER, uninterrupted
from fastindex.runtime import first_answer
from fastindex.runtime.first_answer import KERNEL_SUFFIX, TO_LOAD_BYTES, check_address_space, kernel_folders
from fastindex.runtime.numbers import FOR_C, FOR_PYTHON, Kernel
from fastindex.terminal import is_terminal


def _of_module(module: str, *functions: str) -> dict[str, Kernel]:
    return {function: Kernel(f"fastindex.{module}", function) for function in functions}


#: The kernels that Python calls, by name.
CALLED = {
    **_of_module("index.kernels.programs", "run_program", "run_window"),
    **_of_module("moving.kernels.passes", "run_passes", "run_plain"),
    **_of_module("moving.kernels.passes", "serve", "lead", "lead_plain", "dismiss", "close"),
    **_of_module("moving.moves.nests.kernel", "gather_slots"),
    **_of_module("paged.kernel", "run_page_passes", "copy_page_pieces"),
    **_of_module("paged.kernel", "write_runs", "are_distinct", "order_blocks", "map_slots"),
}


class _Loaded(NamedTuple):
    """The code of a kernel, in memory."""

    address: int
    function: Callable[..., int]
    #: Kept alive: the owner of the code, and the method definition that Python's function points to.
    owners: tuple[Any, ...]


# Code is never unloaded: threads may be running it.
_loaded: dict[Kernel, _Loaded] = {}
_compiled: list[Kernel] = []


def address(kernel: Kernel) -> int:
    """Return the address of a kernel as a C function from int64 to int64."""
    return _code_of(kernel).address


@cache
def function(name: str) -> Callable[..., int]:
    """Return one of `CALLED` as a function of Python's integers, which releases the GIL."""
    return _code_of(CALLED[name]).function


def loaded_kernels() -> list[Kernel]:
    """Return the kernels that this process has loaded, in that order."""
    return list(_loaded)


def compiled_kernels() -> list[Kernel]:
    """Return the kernels that this process had to compile."""
    return list(_compiled)


def _code_of(kernel: Kernel) -> _Loaded:
    return _loaded.get(kernel) or uninterrupted(lambda: _load(kernel))


def _load(kernel: Kernel) -> _Loaded:
    if kernel not in _loaded:
        _loaded[kernel] = _in_memory(kept_code(kernel))
    return _loaded[kernel]


# In memory


class _Method(ctypes.Structure):
    """Python's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x80
#: Functions of Python's C API that `FOR_PYTHON` calls.
OF_PYTHON = (
    "PyErr_BadArgument",
    "PyErr_Occurred",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyLong_AsLongLong",
    "PyLong_FromLongLong",
)


@cache
def initialize() -> None:
    """Initialise LLVM for this processor, and register the functions of Python that the code calls."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name in OF_PYTHON:
        llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)


def _in_memory(code: bytes) -> _Loaded:
    initialize()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(codemodel="jitdefault", jit=True)
    # One engine per kernel: names of its subroutines are unique only within the process that compiled it.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    method = _Method(b"kernel", engine.get_function_address(FOR_PYTHON), _METH_FASTCALL, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    function = make(ctypes.addressof(method), None, None)
    return _Loaded(engine.get_function_address(FOR_C), function, (engine, method))


# On disk


def is_missing(kernel: Kernel) -> bool:
    """Whether the code of a kernel could be cached on disk and is not there yet."""
    return _kept(kernel) is None and cache_folder() is not None


def _kept(kernel: Kernel) -> bytes | None:
    """Return the code of a kernel from disk, None where there is none: of this processor, else of the best level."""
    for place in _targets():
        for folder in (*kernel_folders(), first_answer.COMPILED_FOLDER):
            with contextlib.suppress(OSError), open(folder / _file_of(kernel, place), "rb") as file:
                digest, code = file.read(hashlib.sha256().digest_size), file.read()
                if digest == _digest_of(kernel, code, place):
                    return code
    return None


def kept_code(kernel: Kernel) -> bytes:
    """Return the code of a kernel from disk; if it is missing, compile and cache it."""
    return _kept(kernel) or _compile(kernel)


def _compile(kernel: Kernel) -> bytes:
    folder = cache_folder()
    # Tell a person at a terminal, once, why this call takes seconds.
    if not _compiled and is_terminal(sys.stderr):
        why = f"once for this machine, kept in {folder}"
        if folder is None:
            why = "and cannot keep the result: no cache folder can be written; set NUMBA_CACHE_DIR to one"
        print(f"fastindex: compiling kernels ({why}) ...", file=sys.stderr)  # noqa: T201
    if "numba" not in sys.modules:
        check_address_space(TO_LOAD_BYTES)
    from fastindex.runtime.kernels import machine_code

    code = machine_code(kernel, target())
    _compiled.append(kernel)
    if folder is not None:
        with contextlib.suppress(OSError):  # a full disk
            write_kernel(folder, kernel, code, target())
    return code


def write_kernel(folder: Path, kernel: Kernel, code: bytes, place: tuple[str, str, str]) -> None:
    """Write the code of a kernel for a target: `target`, or that of a level.

    Raises
    ------
    OSError
    """
    write_whole(folder / _file_of(kernel, place), _digest_of(kernel, code, place) + code)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that other processes see whole or not at all.

    Raises
    ------
    OSError
    """
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = file.name
            file.write(content)
        os.replace(part, path)
    except OSError:
        if part is not None:
            with contextlib.suppress(OSError):
                os.unlink(part)
        raise


def _file_of(kernel: Kernel, place: tuple[str, str, str]) -> str:
    digest = hashlib.sha256(repr((kernel.module, place)).encode()).hexdigest()[:12]
    return f"{'-'.join(map(str, (kernel.function, *kernel.literals)))}.{digest}{KERNEL_SUFFIX}"


def _digest_of(kernel: Kernel, code: bytes, place: tuple[str, str, str]) -> bytes:
    # Code of a level comes from another machine, whose compiler may be of another version.
    compiler = _compiler() if place == target() else None
    return hashlib.sha256(repr((kernel, place, compiler, digest_of_sources())).encode() + b"\0" + code).digest()


@lru_cache(maxsize=1)
def _targets() -> tuple[tuple[str, str, str], ...]:
    """Return this processor's target, then those of the levels whose instructions it has, the best first."""
    architecture = target()[0].partition("-")[0].replace("arm64", "aarch64")
    return target(), *(level.target for level in LEVELS.values() if level.runs_on(architecture, features()))


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Return the first writable folder for files cached for this machine, or None."""
    for folder in kernel_folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return None


# Levels of instructions
#
# Many processors have the instructions of a level, by its name in the System V psABI: ``x86-64-v3`` (AVX2) and
# ``x86-64-v4`` (AVX-512), or ``aarch64`` (every 64-bit Arm processor). A kernel gives the same bytes on every level;
# its code depends on no version of Numba or Python, so any machine of the level loads what another one compiled.

_V3 = (
    *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf"),
    *("sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3"),
)


class Level(NamedTuple):
    """A set of instructions.

    Attributes
    ----------
    name : str
        As `fastindex warmup` takes it.
    architecture : str
        The first part of LLVM's triples.
    processor : str
        By LLVM's name.
    instructions : frozenset of str
        By LLVM's names.
    """

    name: str
    architecture: str
    processor: str
    instructions: frozenset[str]

    @property
    def features(self) -> str:
        """The instructions, as LLVM and Numba take them."""
        return ",".join(f"+{name}" for name in sorted(self.instructions))

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which Numba compiles for the level."""
        return {"NUMBA_CPU_NAME": self.processor, "NUMBA_CPU_FEATURES": self.features}

    @property
    def target(self) -> tuple[str, str, str]:
        """The key of cached kernels, in place of a triple, a processor and its features."""
        return f"{self.architecture}-{sys.platform}", self.name, self.features

    def on(self, triple: str) -> tuple[str, str, str]:
        """Return what kernels are compiled for, by LLVM's names: on the system of a triple.

        Examples
        --------
        >>> LEVELS["aarch64"].on("x86_64-unknown-linux-gnu")
        ('aarch64-unknown-linux-gnu', 'generic', '+neon')
        """
        return f"{self.architecture}-{triple.partition('-')[2]}", self.processor, self.features

    def runs_on(self, architecture: str, instructions: Iterable[str]) -> bool:
        """Whether a processor has all instructions.

        Examples
        --------
        >>> LEVELS["x86-64-v3"].runs_on("x86_64", LEVELS["x86-64-v4"].instructions)
        True
        >>> LEVELS["aarch64"].runs_on("x86_64", {"avx2"})
        False
        """
        return architecture == self.architecture and self.instructions <= set(instructions)


#: The levels by name, of one architecture the best first.
LEVELS = {
    level.name: level
    for level in (
        Level(
            "x86-64-v4",
            "x86_64",
            "x86-64-v4",
            frozenset([*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"]),
        ),
        Level("x86-64-v3", "x86_64", "x86-64-v3", frozenset(_V3)),
        Level("aarch64", "aarch64", "generic", frozenset(["neon"])),
    )
}


def level_of(name: str) -> Level:
    """Return the level of a name.

    Raises
    ------
    FastIndexError

    Examples
    --------
    >>> level_of("x86-64-v3").processor
    'x86-64-v3'
    """
    if name not in LEVELS:
        raise FastIndexError(f"no target is called {name!r}; kernels are compiled for {', '.join(sorted(LEVELS))}")
    return LEVELS[name]


# Dependencies of code

#: Paths within the package of the sources of compiled kernels, and of their bytecode.
KERNEL_SOURCES = re.compile(
    r"(runtime/(kernels|lowering|operations)|(.*/)?(kernels|lines)/[^/]*|.*(kernel|numbers)|moving/moves/\w+/__init__)\.pyc?"
)


def kernel_sources(with_gpu: bool) -> Iterator[str]:
    """Yield the paths of kernel sources within the package, the GPU's or not; none if it is in an archive."""
    for folder, folders, names in os.walk(PACKAGE_FOLDER):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        inside = folder[len(PACKAGE_FOLDER) + 1 :].replace(os.sep, "/")
        if with_gpu or inside.split("/")[0] != "cuda":
            yield from filter(KERNEL_SOURCES.fullmatch, (f"{inside}/{name}" for name in sorted(names)))


@lru_cache(maxsize=2)
def digest_of_sources(with_gpu: bool = False) -> str:
    """Return a digest of the sources of all kernels, their subroutines and their constants, or without the GPU's."""
    digest = hashlib.sha256()
    package = Path(PACKAGE_FOLDER)
    found = list(kernel_sources(with_gpu))
    for source in found:
        digest.update(source.encode() + b"\0" + (package / source).read_bytes())
    for archive in (path for path in package.parents if not found and path.is_file()):
        digest.update(repr((archive.stat().st_mtime_ns, archive.stat().st_size)).encode())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _compiler() -> tuple[str, str]:
    """Return the versions of llvmlite and Numba; importing Numba just to ask would take longer than all else."""
    found = find_spec("numba")
    version = b""
    for folder in [] if found is None else found.submodule_search_locations or ():
        with contextlib.suppress(OSError):
            version += Path(folder, "_version.py").read_bytes()
    return llvmlite.__version__, hashlib.sha256(version).hexdigest()


@lru_cache(maxsize=1)
def target() -> tuple[str, str, str]:
    """Return the system, the processor and its instructions, by LLVM's names, that kernels are compiled for.

    As in Numba, they come from its environment variables and from LLVM.
    """
    processor = os.environ.get("NUMBA_CPU_NAME")
    named = os.environ.get("NUMBA_CPU_FEATURES", "" if processor and processor.lower() == "generic" else None)
    if processor is None:
        processor = llvm.get_host_cpu_name()
    return llvm.get_process_triple(), processor, _known_features(processor) if named is None else named


#: Processors for which Numba disables AVX: the first ones that had it, and one that virtual machines wrongly report.
_WITHOUT_AVX = {"corei7-avx", "core-avx-i", "sandybridge", "ivybridge", "nocona"}


def _known_features(processor: str) -> str:
    try:
        found = llvm.get_host_cpu_features()
    except RuntimeError:
        return ""
    with_avx = os.environ.get("NUMBA_ENABLE_AVX", str(int(processor not in _WITHOUT_AVX)))
    for name in found if with_avx == "0" else ():
        found[name] = found[name] and not name.startswith("avx")
    return str(found.flatten())


@cache
def features() -> frozenset[str]:
    """Return the features of the processor that code is compiled for, by LLVM's names: "avx2", "f16c", "neon"."""
    found = {name[1:] for name in target()[2].split(",") if name.startswith("+")}
    # Every AArch64 processor has NEON, though not every system reports it.
    is_chosen = "NUMBA_CPU_FEATURES" in os.environ or os.environ.get("NUMBA_CPU_NAME", "").lower() == "generic"
    return frozenset(found | ({"neon"} if not is_chosen and platform.machine() in ("aarch64", "arm64") else set()))
