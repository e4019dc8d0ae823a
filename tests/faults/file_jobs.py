"""The file jobs of the command line, what each must write, and what its target may be after a fault.

Jobs run in forked children of a process that has loaded everything, so that a fault can hit any moment of the job a
hundred times a second; now and then one is a separate process, for the moments before.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastindex.cli.commands import main
from tests.oracles import reference, slot_owners
from tests.oracles.slot_owners import elements_of_slots, slots_of_elements

ROOT = Path(__file__).resolve().parents[2]
#: Names of files that SIGKILL may leave, which nothing can clean up.
LEFT_BY_KILL = re.compile(r"\..+\.[0-9a-f]{8}\.partial")
_HELD_BACK = (signal.SIGINT, signal.SIGTERM)
#: One line, with the command's name in front and no traceback.
ONE_LINE = re.compile(r"fastindex: [^\n]+\n?")


@dataclass(frozen=True)
class Job:
    """A command that writes a file.

    Attributes
    ----------
    name : str
    arguments : tuple of str
        ``{in}`` and ``{out}`` stand for the files.
    suffixes : (str, str)
        Of the two files.
    source, expected : bytes
        What the first holds, and the second has to.
    header : int
        Bytes in front of the array in `expected`, and of that in `source`.
    """

    name: str
    arguments: tuple[str, ...]
    suffixes: tuple[str, str]
    source: bytes
    expected: bytes

    def files(self, folder: Path) -> tuple[Path, Path]:
        """The paths of its files in a folder."""
        return folder / f"source{self.suffixes[0]}", folder / f"target{self.suffixes[1]}"

    def command(self, folder: Path) -> list[str]:
        """Its arguments for files in a folder."""
        source, target = map(str, self.files(folder))
        return [argument.replace("{in}", source).replace("{out}", target) for argument in self.arguments]


def file_jobs() -> list[Job]:
    """Every file job, on some mebibytes: quick, and long enough to be hit in the middle."""
    tiled, turned = "bf16[700,2001]{1,0:T(8,128)(2,1)}", "bf16[700,2001]{0,1:T(8,128)(2,1)}"
    wide = "f32[1500,1001]"
    packed = "s4[2000,1001]{1,0:T(8,128)(8,1)E(4)}"
    images = "f32[4,64,56,56]"
    return [
        _pack("pack .npy to raw", tiled, ".npy", ".bin"),
        _pack("pack raw to .npy", f"{wide}{{0,1:T(8,128)}}", ".bin", ".npy"),
        _pack("pack .npy of bytes to packed raw", packed, ".npy", ".bin"),
        _unpack("unpack raw to .npy", tiled, ".bin", ".npy"),
        _unpack("unpack .npy to raw", f"{wide}{{0,1:T(8,128)}}", ".npy", ".bin"),
        _relayout("relayout raw to raw", tiled, turned, ".bin", ".bin", 1),
        _relayout(
            "relayout raw to raw, block by block", f"{wide}{{1,0}}", f"{wide}{{0,1:T(8,128)}}", ".bin", ".bin", 3
        ),
        _relayout("relayout .npy to .npy", f"{images}{{3,2,1,0}}", f"{images}{{1,3,2,0}}", ".npy", ".npy", 1),
        *_index_jobs("f32[1500,401]{1,0:T(8,128)}"),
    ]


def small_jobs() -> list[Job]:
    """Every file job from each kind of file to each, as small as a job can be that writes a header and several parts.

    To be done hundreds of times.
    """
    tiled, left, right = "f32[60,301]{0,1:T(8,128)}", "f32[60,301]{1,0}", "f32[60,301]{0,1}"
    jobs = []
    for read in (".npy", ".bin"):
        for written in (".npy", ".bin"):
            files = f"{read} to {written}"
            jobs += [
                _pack(f"pack {files}", tiled, read, written),
                _unpack(f"unpack {files}", tiled, read, written),
                _relayout(f"relayout {files}", left, right, read, written, 1, ()),
            ]
    return [*jobs, *_index_jobs("f32[30,41]{1,0:T(8,128)}")]


def values_of(shape: reference.ReferenceShape) -> NDArray[np.uint8]:
    """Return random bit patterns of all elements, (elements, bytes)."""
    width = -(-reference.VALUE_BITS[shape.element_type] // 8)
    found = np.random.default_rng(7).integers(0, 256, (reference.element_count(shape), width), np.uint8)
    return found & 15 if shape.element_type == "s4" else found


def buffer_of(shape: reference.ReferenceShape, values: NDArray[np.uint8]) -> bytes:
    """Return the buffer that holds values in a layout, zero in its padding."""
    return slot_owners.buffer_of(shape, elements_of_slots(shape), values).tobytes()


_NPY = {"bf16": "<V2", "f32": "<f4", "s4": "|i1", "s64": "<i8"}


def _file(suffix: str, element_type: str, dimensions: Sequence[int], content: bytes) -> bytes:
    """What NumPy writes for this suffix."""
    if suffix != ".npy":
        return content
    fields = f"{{'descr': '{_NPY[element_type]}', 'fortran_order': False, 'shape': {tuple(dimensions)!r}, }}"
    length = 10 + len(fields) + 1
    header = fields + " " * (-length % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


def _pack(name: str, text: str, read: str, written: str) -> Job:
    shape = reference.parse(text)
    values = values_of(shape)
    stored = values.view(np.int8) << 4 >> 4 if shape.element_type == "s4" else values
    source = _file(read, shape.element_type, shape.dimensions, stored.tobytes())
    target = _file(written, shape.element_type, (reference.slot_count(shape),), buffer_of(shape, values))
    return Job(name, ("pack", "{in}", "{out}", "--shape", text), (read, written), source, target)


def _unpack(name: str, text: str, read: str, written: str) -> Job:
    shape = reference.parse(text)
    values = values_of(shape)
    source = _file(read, shape.element_type, (reference.slot_count(shape),), buffer_of(shape, values))
    target = _file(written, shape.element_type, shape.dimensions, values.tobytes())
    return Job(name, ("unpack", "{in}", "{out}", "--shape", text), (read, written), source, target)


def _relayout(
    name: str,
    left: str,
    right: str,
    read: str,
    written: str,
    times: int,
    options: tuple[str, ...] = ("--max-memory", "4GiB"),
) -> Job:
    """A relayout of an array; its first dimension is `times` times as large."""
    if times > 1:
        left, right = (
            text.replace("[", f"[{times},").replace("{1,0", "{2,1,0").replace("{0,1", "{0,1,2")
            for text in (left, right)
        )
        right = right.replace("{0,1,2", "{1,2,0")
    shapes = reference.parse(left), reference.parse(right)
    values = values_of(shapes[0])
    files = []
    for shape, suffix in zip(shapes, (read, written), strict=True):
        order = [shape.dimensions[d] for d in reversed(shape.minor_to_major)]
        files.append(_file(suffix, shape.element_type, order, buffer_of(shape, values)))
    arguments = ("relayout", "{in}", "{out}", "--from", left, "--to", right, *options)
    return Job(name, arguments, (read, written), files[0], files[1])


def _index_jobs(text: str) -> list[Job]:
    shape = reference.parse(text)
    slots = slots_of_elements(elements_of_slots(shape))
    coordinates = np.indices(shape.dimensions, np.int64).reshape(2, -1)
    files = (
        _file(".npy", "s64", coordinates.shape, coordinates.tobytes()),
        _file(".npy", "s64", slots.shape, slots.tobytes()),
    )
    ends = ("--input", "{in}", "--output", "{out}")
    return [
        Job("index of .npy", ("index", text, *ends), (".npy", ".npy"), *files),
        Job("index --linear of .npy", ("index", text, "--linear", *ends), (".npy", ".npy"), files[1], files[0]),
    ]


# Running one


@dataclass
class Started:
    """A job under way; `wait` ends it."""

    process: int
    message: Path
    popen: subprocess.Popen[bytes] | None = None

    def wait(self) -> tuple[int, str]:
        """Return the exit status, negative for a signal, and what was written to stderr."""
        if self.popen is not None:
            status = self.popen.wait()
        else:
            status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        return status, self.message.read_text(errors="replace")


def start(job: Job, folder: Path, prepare: Callable[[], None] | None = None, fresh: bool = False) -> Started:
    """Start a job on the files of a folder, in a fork of this process or a fresh one; `prepare` runs in the fork."""
    message = folder.parent / f"{folder.name}.stderr"
    if fresh:
        with open(message, "wb") as errors:
            command = [sys.executable, "-m", "fastindex", *job.command(folder)]
            popen = subprocess.Popen(command, stdout=errors, stderr=errors, stdin=subprocess.DEVNULL, cwd=ROOT)
        return Started(popen.pid, message, popen)
    # Before the command line is there, signals would end as Python has it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    child = os.fork()
    if child == 0:
        _run_in_child(job, folder, message, prepare)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
    return Started(child, message)


def _run_in_child(job: Job, folder: Path, message: Path, prepare: Callable[[], None] | None) -> None:
    status = 99
    try:
        errors = os.open(message, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        if prepare is not None:
            prepare()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        main(job.command(folder), prog_name="fastindex")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 98
    except KeyboardInterrupt:
        # Before the command line was there, or after its end.
        status = 130
    except BaseException as error:
        os.write(2, f"uncaught {type(error).__name__}: {error}".encode())
    finally:
        os._exit(status)


def load_kernels(jobs: list[Job], folders: list[Path]) -> None:
    """Run each job once in this process, in a separate folder: its forks then have everything."""
    for job, folder in zip(jobs, folders, strict=True):
        prepare_files(job, folder, None)
        main(job.command(folder), prog_name="fastindex", standalone_mode=False)


def seconds_of(job: Job, folder: Path, fresh: bool = False) -> float:
    """Run a job to its end; return its seconds."""
    prepare_files(job, folder, None)
    began = time.perf_counter()
    status, message = start(job, folder, fresh=fresh).wait()
    seconds = time.perf_counter() - began
    if status != 0 or job.files(folder)[1].read_bytes() != job.expected:
        raise AssertionError(f"{job.name} does not work: status {status}, {message}")
    return seconds


def prepare_files(job: Job, folder: Path, before: bytes | None) -> None:
    """Put the source into an empty folder, and what is under the target's name before, if anything."""
    folder.mkdir(exist_ok=True)
    source, target = job.files(folder)
    for path in folder.iterdir():
        if path != source:
            path.unlink()
    if not source.exists() or source.stat().st_size != len(job.source):
        source.write_bytes(job.source)
    if before is not None:
        target.write_bytes(before)


def what_is_wrong(
    job: Job, folder: Path, before: bytes | None, status: int, message: str, killed: bool = False, ended: bool = False
) -> str:
    """Return what is wrong after a job: with its target, its source, what it left, its status and its message.

    Parameters
    ----------
    killed : bool
        SIGKILL ended it: unfinished files may be there.
    ended : bool
        Another signal did: it may say so, or nothing.
    """
    source, target = job.files(folder)
    wrong = []
    found = target.read_bytes() if target.exists() else None
    if found != before and found != job.expected:
        kind = "absent" if found is None else f"{len(found)} bytes, neither the old ones nor the new ones"
        wrong.append(f"the target is {kind}")
    if status == 0 and found != job.expected:
        wrong.append("status 0 without a result")
    if source.read_bytes() != job.source:
        wrong.append("the source was written")
    others = {path.name for path in folder.iterdir()} - {source.name, target.name}
    if killed:
        others = {name for name in others if not LEFT_BY_KILL.fullmatch(name)}
    if others:
        wrong.append(f"left {sorted(others)}")
    if not killed and not ended and status != 0:
        if status != 1 or not ONE_LINE.fullmatch(message):
            wrong.append(f"status {status} and {message[:500]!r}")
        elif "internal error" in message:
            wrong.append(message)
    return "; ".join(wrong)
