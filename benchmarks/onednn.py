"""oneDNN's reorder through its C interface, from the wheel ``onednn-cpu-gomp``."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.problems import Problem, Rival


class OneDNNError(RuntimeError):
    """A call of oneDNN's C interface that did not succeed."""


#: Bytes of an element -> oneDNN's number of the type s8, bf16, f32.
DATA_TYPES = {1: 5, 2: 2, 4: 3}


class _Argument(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_int), ("memory", ctypes.c_void_p))


class OneDNN:
    """What a reorder needs of oneDNN's C interface, version 3."""

    CPU, IN_ORDER, FROM, TO = 1, 1, 1, 17

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.dnnl_fmt_tag2str.restype = ctypes.c_char_p
        #: Format tags by name; their numbers change between releases.
        self.tags = {self.library.dnnl_fmt_tag2str(number).decode(): number for number in range(2, 1000)}
        self.engine = self.made("dnnl_engine_create", self.CPU, ctypes.c_size_t(0))
        self.stream = self.made("dnnl_stream_create", self.engine, self.IN_ORDER)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise OneDNNError(f"{name} ended with status {status}")

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def strided(self, sizes: list[int], strides: list[int], data_type: int) -> ctypes.c_void_p:
        numbers = ctypes.c_int64 * len(sizes)
        name = "dnnl_memory_desc_create_with_strides"
        return self.made(name, len(sizes), numbers(*sizes), data_type, numbers(*strides))

    def tagged(self, sizes: tuple[int, ...], data_type: int, tag: str) -> ctypes.c_void_p:
        numbers = ctypes.c_int64 * len(sizes)
        name = "dnnl_memory_desc_create_with_tag"
        return self.made(name, len(sizes), numbers(*sizes), data_type, self.tags[tag])

    def reorder(
        self,
        source: NDArray[Any],
        source_format: ctypes.c_void_p,
        output: NDArray[Any],
        output_format: ctypes.c_void_p,
    ) -> Callable[[], object]:
        memories = [
            self.made("dnnl_memory_create", form, self.engine, ctypes.c_void_p(array.ctypes.data))
            for form, array in ((source_format, source), (output_format, output))
        ]
        description = self.made(
            "dnnl_reorder_primitive_desc_create",
            source_format,
            self.engine,
            output_format,
            self.engine,
            None,
        )
        primitive = self.made("dnnl_primitive_create", description)
        arguments = (_Argument * 2)(_Argument(self.FROM, memories[0]), _Argument(self.TO, memories[1]))

        def run() -> None:
            self.call("dnnl_primitive_execute", primitive, self.stream, 2, arguments)
            self.call("dnnl_stream_wait", self.stream)

        run.arrays = source, output  # type: ignore[attr-defined]
        return run


@cache
def onednn() -> OneDNN | None:
    """The library from the wheel ``onednn-cpu-gomp``, where it is installed."""
    try:
        files = importlib.metadata.files("onednn-cpu-gomp") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    path = next((file.locate() for file in files if file.name == "libdnnl.so.3"), None)
    return None if path is None else OneDNN(Path(str(path)))


#: oneDNN's own formats, for the layouts that have one; they pad where strides cannot.
ONEDNN_TAGS = {
    ("{3,2,1,0}", 4): "abcd",
    ("{1,3,2,0}", 4): "acdb",
    ("{3,2,1,0:T(16,1,1)}", 4): "aBcd16b",
    ("{1,0}", 2): "ab",
    ("{0,1}", 2): "ba",
}


def onednn_rivals(problem: Problem) -> dict[str, Rival]:
    """A reorder between two strided formats, and one between oneDNN's named formats, where these exist."""
    library = onednn()
    if library is None or problem.packed_source:
        return {}
    # This release reorders no elements wider than 4 bytes: wide ones go as a last dimension of 4-byte parts.
    part_bytes = min(problem.itemsize, 4)
    parts = problem.itemsize // part_bytes
    data_type = DATA_TYPES[part_bytes]
    found: dict[str, Rival] = {}

    def add(name: str, source_format: ctypes.c_void_p, output_format: ctypes.c_void_p) -> None:
        output = problem.new_output()
        try:
            run = library.reorder(problem.buffer, source_format, output, output_format)
        except OneDNNError:
            return
        found[name] = Rival(run, lambda: output)

    if not (problem.pads or problem.crops):
        digits = [digit for digit in problem.digits if digit.size > 1]
        sizes = [digit.size for digit in digits] + [parts]
        source_strides = [digit.source_stride * parts for digit in digits] + [1]
        output_strides = [digit.destination_stride * parts for digit in digits] + [1]
        last = None if parts > 1 else -1
        add(
            "oneDNN",
            library.strided(sizes[:last], source_strides[:last], data_type),
            library.strided(sizes[:last], output_strides[:last], data_type),
        )
    layouts = [(braces(shape), shape.rank) for shape in (problem.source, problem.destination)]
    if parts == 1 and all(layout in ONEDNN_TAGS for layout in layouts):
        formats = [library.tagged(problem.dimensions, data_type, ONEDNN_TAGS[layout]) for layout in layouts]
        add("oneDNN formats", *formats)
    return found


def braces(shape: Any) -> str:
    return str(shape).split("]")[1]
