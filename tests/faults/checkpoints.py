"""SIGKILL and full disks at random calls of jobs on checkpoints; headers and indices of checkpoints, damaged at random.

A job that is killed or finds its disk full, again and again, ends as if it had not been: nothing half is under a name,
nothing is written twice, and the output is what the definition says. Headers are read, or refused with a reason; what
is read lies within its file, does not overlap, and is what the format's own library reads, where that is installed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

import fastindex as fi
from fastindex.weights.converting import ConvertedCheckpoint
from fastindex.weights.gguf_files import read_gguf
from fastindex.weights.safetensors_files import TensorFiles, tensors_of
from tests.cases.damage import damaged, damaged_bytes
from tests.faults.file_jobs import LEFT_BY_KILL, buffer_of
from tests.faults.tally import Tally
from tests.oracles import reference

#: What changes files: a job is killed at one of these.
_CALLS = ("posix_fallocate", "pwritev", "fsync", "link", "replace", "unlink", "mkdir", "rename")
#: Those that fail on a full disk.
_NEED_ROOM = ("posix_fallocate", "pwritev", "fsync", "link", "mkdir")
_KILLS, _FULL, _HEADERS, _INDICES, _GGUF = (
    "SIGKILL at calls of checkpoint jobs",
    "full disks under checkpoint jobs",
    "headers of checkpoints, damaged",
    "indices of checkpoints, damaged",
    "headers of GGUF files, damaged",
)
_LAYERS, _OTHERS = 5, 7
_STACKED, _TILED = "bf16[5,300,64]{2,1,0:T(8,128)(2,1)}", "f32[100,130]{1,0:T(8,128)}"
_RULES = [
    {
        "names": "l.*",
        "stack": "l",
        "transpose": "a b -> b a",
        "dtype": "bf16",
        "layout": _STACKED[_STACKED.index("{") :],
    },
    {"names": "m*", "layout": _TILED[_TILED.index("{") :]},
]
#: For conversion, to files of one tensor each.
_CONVERSION = [{"names": "l.{i}", "name": "t.{i}", "transpose": "a b -> b a", "dtype": "bf16"}]
_SHARD_BYTES = 60_000


@dataclass(frozen=True)
class Case:
    """A checkpoint, and what its arrays have to be.

    Attributes
    ----------
    source : Path
    expected : dict of str to bytes
        By the names of files.
    is_conversion : bool
        Whether the job is `convert_checkpoint`, whose folder is there once it is complete; else `pack_checkpoint`.
    """

    source: Path
    expected: dict[str, bytes]
    is_conversion: bool = False

    def run(self, out: Path) -> None:
        """Do the job."""
        if self.is_conversion:
            fi.weights.convert_checkpoint(self.source, out, _CONVERSION, max_shard_bytes=_SHARD_BYTES)
        else:
            fi.weights.pack_checkpoint(self.source, out, _RULES)


def made_case(folder: Path) -> Case:
    """Write a checkpoint by hand."""
    rng = np.random.default_rng(8)
    tensors = {f"l.{i}": rng.standard_normal((64, 300)).astype(np.float32) for i in range(_LAYERS)}
    tensors |= {f"m{i}": rng.standard_normal((100, 130)).astype(np.float32) for i in range(_OTHERS)}
    header, data = {}, b""
    for name, tensor in tensors.items():
        offsets = [len(data), len(data) + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    source = folder / "model.safetensors"
    source.write_bytes(len(text).to_bytes(8, "little") + text + data)
    expected = {}
    for i in range(_OTHERS):
        expected[f"{i:05}.bin"] = _buffer(_TILED, tensors[f"m{i}"])
    stack = np.stack([tensors[f"l.{i}"].T for i in range(_LAYERS)]).astype(ml_dtypes.bfloat16)
    expected[f"{_OTHERS:05}.bin"] = _buffer(_STACKED, stack)
    return Case(source, expected)


def made_conversion(case: Case) -> Case:
    """Return the conversion of the same checkpoint, with its files by hand."""
    content = case.source.read_bytes()
    length = int.from_bytes(content[:8], "little")
    entries, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    expected: dict[str, bytes] = {}
    places: dict[str, str] = {}
    for number, (name, entry) in enumerate(entries.items(), 1):
        array = np.frombuffer(data[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
        own, dtype = name, "F32"
        if name[0] == "l":
            array, own, dtype = array.T.astype(ml_dtypes.bfloat16), name.replace("l", "t"), "BF16"
        header = {own: {"dtype": dtype, "shape": list(array.shape), "data_offsets": [0, array.nbytes]}}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        places[own] = f"model-{number:05}-of-{len(entries):05}.safetensors"
        expected[places[own]] = len(text).to_bytes(8, "little") + text + array.tobytes()
    total = sum(map(len, expected.values())) - sum(8 + int.from_bytes(one[:8], "little") for one in expected.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    expected["model.safetensors.index.json"] = json.dumps(index, indent=2).encode() + b"\n"
    return Case(case.source, expected, is_conversion=True)


def _buffer(text: str, array: Any) -> bytes:
    values = np.ascontiguousarray(array).view(np.uint8).reshape(array.size, array.itemsize)
    return buffer_of(reference.parse(text), values)


def run(tally: Tally) -> None:
    """Kill jobs, and damage headers, until the time is over."""
    with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as name:
        folder = Path(name)
        packed = made_case(folder)
        cases = (packed, made_conversion(packed))
        # The first run loads what forks then have; it also counts the calls.
        calls = [_calls_of(case, folder / "first") for case in cases]
        while tally.going():
            for case, count in zip(cases, calls, strict=True):
                for is_full in (False, True):
                    stop_until_whole(tally, case, folder / "out", count, is_full)
            for _ in range(200):
                _try_header(tally, folder / "x.safetensors")
                _try_gguf(tally, folder / "x.gguf")
            for _ in range(20):
                _try_index(tally, folder / "shards")
            tally.save()


def _calls_of(case: Case, out: Path) -> int:
    case.run(out)
    wrong = what_is_wrong(case, out)
    if wrong:
        raise AssertionError(f"the job does not work: {wrong}")
    shutil.rmtree(out)
    count = 0

    def note(call: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        count += 1

    before = {call: getattr(os, call) for call in _CALLS}
    _watch_calls(note)
    try:
        case.run(out)
    finally:
        for call, original in before.items():
            setattr(os, call, original)
    shutil.rmtree(out)
    return count


def _watch_calls(note: Callable[[str, tuple[Any, ...]], None]) -> None:
    for call in _CALLS:
        original = getattr(os, call)

        def watched(*arguments: Any, original: Any = original, call: str = call, **options: Any) -> Any:
            note(call, arguments)
            return original(*arguments, **options)

        setattr(os, call, watched)


def stop_until_whole(tally: Tally, case: Case, out: Path, calls: int, is_full: bool) -> None:
    """Start a job until it ends, and stop it at random calls; a write that is cut off leaves half of its bytes.

    Parameters
    ----------
    tally : Tally
    case : Case
    out : Path
    calls : int
        How many there are.
    is_full : bool
        Whether the disk is full from that call on, which the job reports; otherwise it is killed.
    """
    row = _FULL if is_full else _KILLS
    kept: dict[str, int] = {}
    begun = out.with_name("out.partial") if case.is_conversion else out
    for attempt in range(1000):
        at = tally.random.randrange(calls + 2) if attempt < 5 else tally.random.randrange(3 * calls)
        tally.begin(f"{row}: attempt {attempt}, call {at}")
        child = os.fork()
        if child == 0:
            _run_and_die(case, out, at, is_full)
        _, status = os.waitpid(child, 0)
        is_stopped = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if is_full:
            is_stopped = os.WIFEXITED(status) and os.WEXITSTATUS(status) == errno.ENOSPC
        tally.count(row, int(is_stopped))
        wrong = what_is_wrong(case, out, kept)
        if not is_stopped and os.waitstatus_to_exitcode(status):
            wrong += f"; status {os.waitstatus_to_exitcode(status)}"
        if not is_stopped and not (out / "manifest.json").exists():
            wrong += "; it ended without a manifest"
        if wrong:
            tally.find(row, f"{wrong} in attempt {attempt}, stopped at call {at} of {calls}")
        if wrong or (out / "manifest.json").exists():
            break
        kept = {path.name: path.stat().st_ino for path in begun.glob("*[.-]*") if _is_listed(begun, path.name)}
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(begun, ignore_errors=True)


def _run_and_die(case: Case, out: Path, at: int, is_full: bool) -> None:
    count = 0

    def note(call: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        count += 1
        if count > at and (call in _NEED_ROOM or not is_full):
            if call == "pwritev":
                file, (content,), position = arguments
                os.pwrite(file, content[: len(content) // 2], position)
            if is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.kill(os.getpid(), signal.SIGKILL)

    status = 99
    try:
        _watch_calls(note)
        case.run(out)
        status = 0
    except OSError as error:
        status = error.errno or status
    finally:
        os._exit(status)


def _is_listed(out: Path, name: str) -> bool:
    """Whether the journal has a whole line about a file."""
    *lines, _ = (out / "manifest.partial").read_bytes().split(b"\n")
    return any(name in json.loads(line)["array"].values() for line in lines)


def what_is_wrong(case: Case, out: Path, kept: dict[str, int] | None = None) -> str:
    """Return what is wrong with a folder at any moment; files in `kept` may not have been written again."""
    begun = out.with_name(f"{out.name}.partial")
    if case.is_conversion and out.exists():
        wrong = "begun and complete at once; " if begun.exists() else ""
        return wrong + "lacks files" * (not set(case.expected) <= set(os.listdir(out))) + _wrong_files(case, out, kept)
    return _wrong_files(case, begun if case.is_conversion else out, kept)


def _wrong_files(case: Case, out: Path, kept: dict[str, int] | None) -> str:
    if not out.exists():
        return ""
    names = {path.name for path in out.iterdir()}
    wrong = [
        f"{name} is half, or something else"
        for name in sorted(names & set(case.expected))
        if (out / name).read_bytes() != case.expected[name]
    ]
    for name, number in (kept or {}).items():
        if name not in names or (out / name).stat().st_ino != number:
            wrong.append(f"{name} was complete, and was written again")
    known = {*case.expected, "manifest.json", "manifest.partial"}
    litter = {name for name in names - known if not LEFT_BY_KILL.fullmatch(name)}
    if litter:
        wrong.append(f"it holds {sorted(litter)}")
    try:
        if case.is_conversion:
            ConvertedCheckpoint(str(out)).verify()
        else:
            fi.weights.open_checkpoint(out).verify()
        if not set(case.expected) <= names:
            wrong.append("it counts as complete, and lacks files")
    except fi.FastIndexError:
        if "manifest.json" in names:
            wrong.append("it has a manifest that is refused")
    return "; ".join(wrong)


def _header(random: Random) -> dict[str, Any]:
    """Return a header, right or with a hole, an overlap or a wrong length."""
    header: dict[str, Any] = {}
    at = 0
    for number in range(random.randrange(5)):
        dtype, bits = random.choice((("F32", 32), ("BF16", 16), ("F4", 4), ("F6_E2M3", 6), ("BOOL", 8), ("F8_E8M0", 8)))
        sizes = [random.choice((0, 1, 2, 4, 8)) for _ in range(random.randrange(4))]
        elements = 1
        for size in sizes:
            elements *= size
        nbytes = elements * bits // 8
        first = at + (random.choice((-4, -1, 1, 8)) if random.random() < 0.1 else 0)
        behind = first + nbytes + (random.choice((-1, 1, 1 << 40)) if random.random() < 0.05 else 0)
        header[f"t{number}"] = {"dtype": dtype, "shape": sizes, "data_offsets": [first, behind]}
        at = behind
    if random.random() < 0.3:
        header["__metadata__"] = {"format": "pt"} if random.random() < 0.8 else {"format": 1}
    return header


def _try_header(tally: Tally, path: Path) -> None:
    random = tally.random
    header = _header(random)
    text = json.dumps(header)
    if random.random() < 0.3:
        text = damaged(random, text)
    elif random.random() < 0.2:
        # The same name twice.
        text = re.sub("t1", "t0", text)
    content = text.encode("utf-8", "surrogatepass")
    length = len(content)
    if random.random() < 0.1:
        length = random.choice((0, length - 1, length + 1, 100_000_000, 100_000_001, (1 << 63) - 8, (1 << 64) - 1))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    nbytes = max(ends, default=0) + (random.choice((-1, 1)) if random.random() < 0.05 else 0)
    # One less than nothing is the largest there is.
    begin = (length % (1 << 64)).to_bytes(8, "little") + content
    path.write_bytes(begin)
    os.truncate(path, min(max(len(begin) + nbytes, 0), 1 << 30))
    found = _try(tally, _HEADERS, path, tensors_of, repr(begin))
    if found is not None and find_spec("safetensors") is not None:
        _compare_with_library(tally, path, found, repr(begin))


def _compare_with_library(tally: Tally, path: Path, found: TensorFiles, case: str) -> None:
    import safetensors

    try:
        theirs = {name: (one["dtype"], tuple(one["shape"])) for name, one in safetensors.deserialize(path.read_bytes())}
    except Exception as error:
        tally.find(_HEADERS, f"read, but the library says {error}: {case}")
        return
    ours = {name: (tensor.dtype, tensor.sizes) for name, tensor in found.tensors.items()}
    if ours != theirs:
        tally.find(_HEADERS, f"{ours} here, {theirs} there: {case}")


def _try_gguf(tally: Tally, path: Path) -> None:
    if find_spec("gguf") is None:
        return
    name = b"\x01\0\0\0\0\0\0\0"
    key = name + b"k" + b"\x09\0\0\0\x08\0\0\0" + b"\x01" + bytes(7) + name + b"v"
    tensors = [(b"a", (4, 2), 0, 0), (b"b", (32, 2), 2, 32)]
    body = b"".join(
        name
        + letter
        + len(sizes).to_bytes(4, "little")
        + b"".join(size.to_bytes(8, "little") for size in sizes)
        + kind.to_bytes(4, "little")
        + start.to_bytes(8, "little")
        for letter, sizes, kind, start in tensors
    )
    content = b"GGUF\x03\0\0\0" + len(tensors).to_bytes(8, "little") + (1).to_bytes(8, "little") + key + body
    content += bytes(-len(content) % 32 + 32 + 36)
    if tally.random.random() < 0.95:
        content = damaged_bytes(tally.random, content[:200]) + content[200:]
    path.write_bytes(content)
    _try(tally, _GGUF, path, read_gguf, repr(content))


def _try_index(tally: Tally, folder: Path) -> None:
    """Read an index whose shards may be anywhere; nothing outside of its folder may be read."""
    random = tally.random
    folder.mkdir(exist_ok=True)
    for file in ("a.safetensors", "b.safetensors", "../outside.safetensors"):
        text = json.dumps({file[-13]: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
        (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + b"\0")
    places = ("a.safetensors", "b.safetensors", "../outside.safetensors", str(folder.parent / "outside.safetensors"))
    others = (
        "",
        ".",
        "..",
        "./a.safetensors",
        "x/../a.safetensors",
        "a.safetensors\0",
        "..\\outside.safetensors",
        3,
        None,
    )
    chosen = {
        name: random.choice(places + others) if random.random() < 0.3 else f"{name}.safetensors" for name in ("a", "b")
    }
    text = json.dumps({"metadata": {"total_size": 2}, "weight_map": chosen})
    path = folder / "model.safetensors.index.json"
    path.write_bytes((damaged(random, text) if random.random() < 0.3 else text).encode("utf-8", "surrogatepass"))
    found = _try(tally, _INDICES, path, tensors_of, text)
    for tensor in found.tensors.values() if found is not None else ():
        if os.path.dirname(os.path.realpath(tensor.path)) != os.path.realpath(folder):
            tally.find(_INDICES, f"read {tensor.path}: {text}")


def _try(tally: Tally, row: str, path: Path, read: Callable[[str], TensorFiles], case: str) -> TensorFiles | None:
    """Read a header: tensors within their files, not overlapping, or the expected error, soon."""
    tally.begin(case)
    tally.count(row)
    with tally.in_time(row, case, 2.0):
        try:
            found = read(str(path))
        except (fi.FastIndexError, FileNotFoundError, IsADirectoryError):
            tally.count(row, 0, 1)
            return None
        except Exception as error:
            tally.find(row, f"{type(error).__name__}: {error} for {case}")
            return None
        ends: dict[str, int] = {}
        for tensor in sorted(found.tensors.values(), key=lambda one: (one.path, one.start, one.shape.nbytes)):
            behind = tensor.start + tensor.shape.nbytes
            if tensor.start < ends.get(tensor.path, 0) or behind > os.stat(tensor.path).st_size:
                tally.find(row, f"{tensor} overlaps, or leaves its file: {case}")
            ends[tensor.path] = behind
        return found
    return None
