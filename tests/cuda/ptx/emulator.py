"""Kernels loaded and launched in the emulator, on memory of its own: what tests ask that have no driver between."""

from __future__ import annotations

import ctypes
import mmap
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.cases.hangs import HANG_SECONDS
from tests.cuda.ptx.encoding import OPERATIONS, Encoded, Encoder
from tests.cuda.ptx.reading import read

HERE = Path(__file__).resolve().parent
SOURCES = ("interpreter.c", "memory.c")
FLAGS = ("-O3", "-g1", "-shared", "-fPIC", "-Wall", "-Wno-maybe-uninitialized")

#: Bytes on both sides of an array that belong to none.
FENCE_BYTES = 4096


class EmulatedError(Exception):
    """What a GPU would do wrong or refuse, or what nobody may rely on; the message names the line."""


#: `Instruction` in ``machine.h``: what is before its field of four numbers, what is behind it, and all of it as bytes.
_BEFORE = attrgetter("operation", "line", "guard", "negated", "bits", "is_signed", "from_bits", "from_signed")
_BEHIND = attrgetter("a", "b", "c", "e", "count", "space", "mode", "combined", "offset")
_ROW = struct.Struct("=20iq")


class _Program(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 64),
        ("text", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("count", "slots", "constants")),
        ("constant_values", ctypes.c_void_p),
        *(
            (name, ctypes.c_int)
            for name in ("special", "parameter_bytes", "shared_bytes", "most_threads", "most_dynamic")
        ),
        ("parameter_count", ctypes.c_int),
        ("parameters", ctypes.c_void_p),
        ("counts", ctypes.POINTER(ctypes.c_int64)),
        ("thread_instructions", ctypes.c_int64),
        ("warp_instructions", ctypes.c_int64),
        ("bytes_in_flight", ctypes.c_int64),
    ]


def compiler_flags() -> tuple[str, ...]:
    """Return the flags for the C compiler: vectors as wide as this processor has them."""
    return (*FLAGS, "-march=native")


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the emulator, compiled once for a process."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "ptx.so"
        sources = [HERE / name for name in SOURCES]
        subprocess.run(["gcc", *compiler_flags(), "-o", made, *sources], check=True, timeout=HANG_SECONDS)
        return declared(ctypes.CDLL(str(made)))


def declared(found: Any) -> Any:
    """Say which arguments the emulator's functions take, in a library that holds them."""
    size, pointer, count = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64
    found.ptx_program.restype = ctypes.POINTER(_Program)
    found.ptx_program.argtypes = [
        *[ctypes.c_char_p] * 2,
        *[pointer, ctypes.c_int] * 2,
        *[ctypes.c_int, pointer],
        *[ctypes.c_int] * 3,
    ]
    found.ptx_program_free.argtypes = [ctypes.POINTER(_Program)]
    found.ptx_memory_add.argtypes = found.ptx_memory_written.argtypes = [size, size]
    found.ptx_memory_remove.argtypes = found.ptx_memory_pattern.argtypes = [size]
    for name in ("ptx_memory_sectors", "ptx_memory_block_sectors"):
        getattr(found, name).argtypes, getattr(found, name).restype = [size, ctypes.c_int], count
    launch = [ctypes.POINTER(_Program), pointer, pointer, ctypes.c_uint, pointer, count, count, count, ctypes.c_int]
    found.ptx_launch.argtypes = launch
    found.ptx_message.restype = ctypes.c_char_p
    return found


class _Allocation(ctypes.Structure):
    _fields_ = [("base", ctypes.c_size_t), ("size", ctypes.c_size_t), ("written", ctypes.c_void_p)]


def begin_of(held: Any, address: int) -> int | None:
    """Return where the array begins that holds an address, or None where none does."""
    held.ptx_allocation_of.restype = ctypes.POINTER(_Allocation)
    held.ptx_allocation_of.argtypes = [ctypes.c_size_t]
    found = held.ptx_allocation_of(address) if address >= 0 else None
    return int(found.contents.base) if found else None


def written_bytes(held: Any, address: int) -> NDArray[np.int64]:
    """Return which bytes of the array at an address anybody ever wrote, counted from where it begins."""
    begin_of(held, address)
    one = held.ptx_allocation_of(address).contents
    # Of terabytes few pages are there; to look at the others takes longer than all else.
    pages = -(-(one.size // 8 + 9) // mmap.PAGESIZE)
    resident = (ctypes.c_uint8 * pages)()
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(one.written), ctypes.c_size_t(pages * mmap.PAGESIZE), resident):
        raise OSError("mincore failed")
    found = []
    for page in np.flatnonzero(np.ctypeslib.as_array(resident) & 1).tolist():
        bits = (ctypes.c_uint8 * mmap.PAGESIZE).from_address(one.written + page * mmap.PAGESIZE)
        places = np.flatnonzero(np.unpackbits(np.ctypeslib.as_array(bits), bitorder="little"))
        found.append(places + 8 * page * mmap.PAGESIZE)
    return np.concatenate([np.empty(0, np.int64), *found])


def encoded(ptx: str) -> tuple[Any, list[Encoded], list[int]]:
    """Return a kernel's entry, its instructions and its constants."""
    entry = read(ptx)
    code, constants = Encoder(entry).encode()
    return entry, code, constants


def name_of(ptx: str) -> str | None:
    """Return the module and the function that Numba made a kernel of, where it says so."""
    found = re.search(r"_ZN08NumbaEnv((?:\d+\D\w*)+)", ptx)
    if found is None:
        return None
    parts, rest = [], found[1]
    while length := re.match(r"\d{1,3}(?=\D)", rest):
        begin = length.end()
        parts.append(rest[begin : begin + int(length[0])])
        rest = rest[begin + int(length[0]) :]
    names = [part for part in parts if not part.startswith("_3c")]
    return ".".join(names[-3:])


def loaded(ptx: str, found: Any, name: str | None = None) -> Any:
    """Return the address of a kernel's program, made in a library that holds the emulator."""
    entry, code, constants = encoded(ptx)
    table = b"".join(_ROW.pack(*_BEFORE(one), *one.d, *_BEHIND(one)) for one in code)
    numbers = (ctypes.c_uint64 * max(len(constants), 1))(*constants)
    places = list(entry.parameters.values())
    parameters = (ctypes.c_int32 * 2 * max(len(places), 1))(*places)
    sizes = (len(entry.registers), parameters, len(places), entry.shared_bytes, entry.most_threads)
    shown = (name or name_of(ptx) or entry.name)[:63].encode()
    return found.ptx_program(shown, ptx.encode(), table, len(code), numbers, len(constants), *sizes)


@dataclass(frozen=True, slots=True)
class Access:
    """The counts of one instruction that touches memory.

    Attributes
    ----------
    line : int
    operation : str
        "LD", "ST", "ATOM" or "CP_ASYNC".
    space : int
    nbytes : int
        Of one lane.
    requests, lanes, moved_bytes, sectors : int
        Warps that asked, their lanes, bytes in all, and sectors of 32 bytes.
    wavefronts, least_wavefronts : int
        Of shared memory: how often its banks were asked, and how often they had to be.
    arrays : int
        A bit for each array of the launch that was touched, in the order of the parameters.
    """

    line: int
    operation: str
    space: int
    nbytes: int
    requests: int
    lanes: int
    moved_bytes: int
    sectors: int
    wavefronts: int
    least_wavefronts: int
    arrays: int


class Program:
    """A kernel of PTX in the emulator; `held` is a library that holds one and the memory that it sees."""

    def __init__(self, ptx: str, name: str | None = None, held: Any = None) -> None:
        self._library = library() if held is None else held
        self._entry, self._code, _ = encoded(ptx)
        self._program = loaded(ptx, self._library, name)

    def __del__(self) -> None:
        if hasattr(self, "_program"):
            self._library.ptx_program_free(self._program)

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
        shared_bytes: int = 0,
        counting: bool = False,
        blocks: tuple[int, int, int] | None = None,
    ) -> None:
        """Run a grid to its end, or the `blocks` (first, last, step) of it.

        Raises
        ------
        EmulatedError
        """
        shape = [(ctypes.c_uint * 3)(*([*_axes(sizes), 1, 1][:3])) for sizes in (grid, block)]
        given = bytearray(self._entry.parameter_bytes)
        for (offset, size), value in zip(self._entry.parameters.values(), arguments, strict=True):
            number = value.address if isinstance(value, Array) else int(value)
            given[offset : offset + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        whole = int(np.prod(np.array(list(shape[0]), dtype=np.int64)))
        first, last, step = blocks or (0, whole, 1)
        kept = (ctypes.c_uint8 * len(given)).from_buffer(given) if given else None
        failed = self._library.ptx_launch(
            self._program, shape[0], shape[1], shared_bytes, kept, first, last, step, int(counting)
        )
        if failed:
            raise EmulatedError(self._library.ptx_message().decode())

    @property
    def instructions(self) -> int:
        """How many instructions all threads ran in all launches."""
        return int(self._program.contents.thread_instructions)

    @property
    def bytes_in_flight(self) -> int:
        """The most bytes that a thread has asked global memory for before it uses any, in the order of the PTX."""
        return int(self._program.contents.bytes_in_flight)

    @property
    def accesses(self) -> list[Access]:
        """The counts of all launches that were counted, instruction by instruction."""
        counts = np.ctypeslib.as_array(self._program.contents.counts, (len(self._code), 7))
        found = []
        for one, row in zip(self._code, counts.tolist(), strict=True):
            name = OPERATIONS[one.operation]
            if row[0]:
                nbytes = one.mode if name == "CP_ASYNC" else one.bits // 8 * one.count
                found.append(Access(one.line, name, one.space, nbytes, *row))
        return found


def _axes(sizes: int | Sequence[int]) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(sizes)


class Array:
    """Memory of the emulator's GPU, between fences that belong to no array.

    Parameters
    ----------
    nbytes : int
    offset : int
        Bytes from a multiple of 256 to where it begins.
    """

    def __init__(self, nbytes: int, offset: int = 0) -> None:
        self._memory = np.full(nbytes + 2 * FENCE_BYTES + 512, 0xCB, np.uint8)
        begin = -(self._memory.ctypes.data + FENCE_BYTES) % 256 + FENCE_BYTES + offset
        self._fences = self._memory[:begin], self._memory[begin + nbytes :]
        self.bytes: NDArray[np.uint8] = self._memory[begin : begin + nbytes]
        self.address = int(self._memory.ctypes.data) + begin
        library().ptx_memory_add(self.address, nbytes)

    @classmethod
    def of(cls, values: NDArray[Any], offset: int = 0) -> Array:
        made = cls(values.nbytes, offset)
        made.bytes[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        library().ptx_memory_written(made.address, values.nbytes)
        return made

    @property
    def is_fenced(self) -> bool:
        """Whether nothing was written beside it."""
        return all(bool((fence == 0xCB).all()) for fence in self._fences)

    def sectors(self, kind: int = 3) -> int:
        """Return how many sectors the last counted launch read (1), wrote (2) or touched (3)."""
        return int(library().ptx_memory_sectors(self.address, kind))

    def free(self) -> None:
        library().ptx_memory_remove(self.address)


@contextmanager
def arrays(*given: NDArray[Any] | int) -> Iterator[list[Array]]:
    """Give arrays with these values, or of so many bytes that nobody has written, and free them."""
    made = [Array(one) if isinstance(one, int) else Array.of(one) for one in given]
    try:
        yield made
        assert all(array.is_fenced for array in made)
    finally:
        for array in made:
            array.free()
