"""The ceiling: the best a copy of 1 GiB does on this machine, with memmove or with non-temporal stores.

The non-temporal copy is written here, independent of the package: a ceiling must not depend on what it judges.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from benchmarks.measure import Run, random_bytes, touched_bytes

LINE_BYTES = 64


@intrinsic  # type: ignore[untyped-decorator]
def copy_line(typing_context: Any, destination: Any, source: Any, offset: Any) -> Any:
    """Copy 64 bytes at a byte offset with a non-temporal store."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), LINE_BYTES // 8)
        pointers = []
        for array_type, value in zip(signature.args[:2], arguments[:2], strict=True):
            array = context.make_array(array_type)(context, builder, value)
            address = cgutils.pointer_add(builder, array.data, arguments[2])
            pointers.append(builder.bitcast(address, vector.as_pointer()))
        line = builder.load(pointers[1], align=8)
        store = builder.store(line, pointers[0], align=LINE_BYTES)
        one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", one)
        return context.get_dummy_value()

    return types.void(destination, source, types.intp), generate


@cache
def non_temporal_kernel() -> Any:
    @njit("void(u1[::1], u1[::1], intp, intp)", nogil=True)  # type: ignore[untyped-decorator]
    def copy_lines(destination: Any, source: Any, begin: int, end: int) -> None:
        for offset in range(begin, end, LINE_BYTES):
            copy_line(destination, source, offset)

    return copy_lines


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def in_threads(task: Any, nbytes: int, threads: int) -> None:
    """Run ``task(begin, end)`` over the bytes, a contiguous part for each thread."""
    if threads == 1:
        task(0, nbytes)
        return
    part = -(-nbytes // threads // LINE_BYTES) * LINE_BYTES
    ranges = [(begin, min(begin + part, nbytes)) for begin in range(0, nbytes, part)]
    for job in [pool(threads).submit(task, *bounds) for bounds in ranges]:
        job.result()


def copies(nbytes: int, threads: int) -> dict[str, Run]:
    """The two copies to measure; both check that they copy."""
    nbytes = nbytes // LINE_BYTES * LINE_BYTES
    source, destination = random_bytes(nbytes), touched_bytes(nbytes)
    kernel = non_temporal_kernel()

    def memmove(begin: int, end: int) -> None:
        np.copyto(destination[begin:end], source[begin:end])

    def non_temporal(begin: int, end: int) -> None:
        kernel(destination, source, begin, end)

    rivals: dict[str, Run] = {}
    for name, task in (("memmove", memmove), ("non-temporal copy", non_temporal)):
        destination[:] = 0
        in_threads(task, nbytes, threads)
        check_equal(destination, source, name)
        rivals[name] = lambda task=task: in_threads(task, nbytes, threads)
    return rivals


def check_equal(found: NDArray[Any], expected: NDArray[Any], name: str) -> None:
    if not np.array_equal(found, expected):
        raise AssertionError(f"{name} gives a wrong result")


def gigabytes_per_second(seconds: dict[str, float], nbytes: int) -> float:
    """Read and written bytes per second of the better copy, in units of 1e9."""
    return 2 * nbytes / min(seconds.values()) / 1e9
