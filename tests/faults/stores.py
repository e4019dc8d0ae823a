"""SIGKILL, SIGTERM and SIGINT at random moments of jobs on Zarr stores, and metadata of stores damaged at random.

A target is absent or whole: a folder with what the definition says. Stores are read with zarr-python alone.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
from tests.cases.damage import damaged_metadata
from tests.faults.file_jobs import LEFT_BY_KILL, ONE_LINE, Job, buffer_of, start, values_of
from tests.faults.signals import hit_once
from tests.faults.tally import Tally
from tests.oracles import reference

#: One in this many jobs is a separate process.
_FRESH = 40
_TURNED, _TILED = "f32[700,1001]{0,1:T(8,128)}", "bf16[700,1001]{1,0:T(8,128)(2,1)}"


@dataclass(frozen=True)
class StoreJob:
    """A job whose source and target are stores.

    Attributes
    ----------
    job : Job
        Its command; the bytes of it are not used.
    source : array
        What the source holds, in chunks of `chunks`.
    expected : bytes
        What the target has to hold.
    """

    job: Job
    source: NDArray[Any]
    chunks: tuple[int, ...]
    expected: bytes

    @property
    def name(self) -> str:
        return self.job.name


def store_jobs() -> list[StoreJob]:
    """The three jobs, on chunks that are compressed."""
    jobs = []
    ends = (".zarr", ".zarr")
    for text in (_TURNED, _TILED):
        shape = reference.parse(text)
        values = values_of(shape)
        width = values.shape[1]
        logical = np.ascontiguousarray(values).view(f"u{width}").reshape(shape.dimensions)
        if text == _TURNED:
            logical = logical.view(np.float32)
        packed = np.frombuffer(buffer_of(shape, values), np.uint8)
        pack = Job(f"pack {text[:4]} in .zarr", ("pack", "{in}", "{out}", "--shape", text), ends, b"", b"")
        jobs.append(StoreJob(pack, logical, (200, 300), packed.tobytes()))
        unpack = Job(f"unpack {text[:4]} in .zarr", ("unpack", "{in}", "{out}", "--shape", text), ends, b"", b"")
        jobs.append(StoreJob(unpack, packed, (100_000,), logical.tobytes()))
    shapes = [reference.parse(text) for text in ("f32[700,1001]", _TURNED)]
    values = values_of(shapes[0])
    arguments = ("relayout", "{in}", "{out}", "--from", str(shapes[0]), "--to", str(shapes[1]))
    relayout = Job("relayout in .zarr", arguments, ends, b"", b"")
    source = np.frombuffer(buffer_of(shapes[0], values), np.uint8)
    jobs.append(StoreJob(relayout, source, (300_000,), buffer_of(shapes[1], values)))
    return jobs


def run(tally: Tally) -> None:
    """End jobs, and damage metadata, until the time is over."""
    if find_spec("zarr") is None:
        tally.skip("zarr is not installed")
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs = store_jobs()
    with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as name:
        folders = [Path(name) / str(number) for number in range(len(jobs))]
        seconds = []
        for job, folder in zip(jobs, folders, strict=True):
            folder.mkdir()
            make_source(job, job.job.files(folder)[0])
            # The first run loads what forks then have.
            seconds.append(min(_seconds_of(job, folder) for _ in range(2)))
        metadata = json.loads((folders[0] / "source.zarr" / "zarr.json").read_text())
        while tally.going():
            number = tally.random.randrange(len(jobs))
            fresh = tally.random.randrange(_FRESH) == 0
            duration = 2.0 if fresh else 1.1 * seconds[number]
            _hit(tally, jobs[number], folders[number], duration, fresh)
            for _ in range(20):
                _damage(tally, Path(name), metadata)
            tally.save()


def make_source(job: StoreJob, path: Path) -> None:
    """Write the source of a job."""
    import zarr

    array = zarr.create_array(str(path), shape=job.source.shape, chunks=job.chunks, dtype=job.source.dtype)
    array[...] = job.source


def _seconds_of(job: StoreJob, folder: Path) -> float:
    began = time.perf_counter()
    status, message = start(job.job, folder).wait()
    seconds = time.perf_counter() - began
    wrong = what_is_wrong(job, folder, status, message)
    if status or wrong:
        raise AssertionError(f"{job.name} does not work: status {status}, {message}, {wrong}")
    return seconds


def _hit(tally: Tally, job: StoreJob, folder: Path, duration: float, fresh: bool) -> None:
    hit = hit_once(tally, job.job, folder, duration, fresh)
    row = f"{hit.number.name} during jobs on Zarr stores"
    tally.count(row, 1, int(hit.status != 0))
    wrong = what_is_wrong(job, folder, hit.status, hit.message, hit.number)
    if wrong:
        tally.find(row, f"{wrong}; {hit.case}")


def what_is_wrong(
    job: StoreJob, folder: Path, status: int, message: str, ended_by: signal.Signals | None = None
) -> str:
    """Return what is wrong after a job, and make the folder as it was before."""
    source, target = job.job.files(folder)
    wrong = []
    if target.exists():
        found = bytes_of(target)
        if found != job.expected:
            wrong.append(f"the target holds {found if isinstance(found, str) else 'something else'}")
    elif status == 0:
        wrong.append("status 0 without a result")
    others = {path.name for path in folder.iterdir()} - {source.name, target.name}
    litter = {name for name in others if ended_by != signal.SIGKILL or not LEFT_BY_KILL.fullmatch(name)}
    if litter:
        wrong.append(f"left {sorted(litter)}")
    if ended_by is not None and status not in {0, -int(ended_by), 128 + int(ended_by)}:
        wrong.append(f"status {status}, {message[:300]!r}")
    if ended_by is None and status and not ONE_LINE.fullmatch(message):
        wrong.append(f"status {status}, {message[:300]!r}")
    for name in (*others, target.name):
        shutil.rmtree(folder / name, ignore_errors=True)
    return "; ".join(wrong)


def bytes_of(path: Path) -> bytes | str:
    """Return what an array in a store holds, or why it cannot be read."""
    import zarr

    try:
        # Types that zarr-python lacks are unsigned integers of their width to it.
        metadata = path / "zarr.json"
        fields = json.loads(metadata.read_text())
        if fields["data_type"] == "bfloat16":
            metadata.write_text(json.dumps({**fields, "data_type": "uint16", "fill_value": 0}))
        return np.asarray(zarr.open_array(str(path), mode="r")[...]).tobytes()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _damage(tally: Tally, folder: Path, fields: dict[str, Any]) -> None:
    """Open a store whose metadata is damaged: an array, or a FastIndexError, soon."""
    from fastindex.jobs.zarr_arrays import stored_zarr_array, stored_zarr_buffer

    store = folder / "damaged.zarr"
    store.mkdir(exist_ok=True)
    content = damaged_metadata(tally.random, fields)
    (store / "zarr.json").write_bytes(content)
    row, case = "metadata of Zarr stores, damaged", repr(content)
    shape = fi.Shape.parse(_TURNED)
    tally.begin(case)
    with tally.in_time(row, case, 2.0):
        for opened in (stored_zarr_array, stored_zarr_buffer):
            tally.count(row)
            try:
                opened(str(store), shape).costs((8, 8))
            except fi.FastIndexError:
                tally.count(row, 0, 1)
            except Exception as error:
                tally.find(row, f"{type(error).__name__}: {error} for {case}")
