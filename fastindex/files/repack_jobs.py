"""Named formats between files, in bounded memory: part after part of what is outermost in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastindex.bulk.repack_arguments import checked_bits, checked_parameters, checked_sizes
from fastindex.bulk.repack_plans import End, RepackPlan, repack_plan
from fastindex.cpu.box_jobs import LEAST_MEMORY_BYTES
from fastindex.errors import FastIndexError
from fastindex.files.input_files import open_input
from fastindex.files.layout_jobs import DEFAULT_MEMORY_BYTES, Progress
from fastindex.files.writing import OutputFile, header_for

#: What a part takes at most, if that is less than the memory.
_PART_BYTES = 64 << 20
#: A part is read, moved and written; unpacking takes as much again for each code.
_COPIES = 8


def repack_file(
    source_path: str,
    target_path: str,
    names: tuple[str, str],
    shape: Sequence[int],
    bits: int | None,
    parameters: dict[str, Any],
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> None:
    """Read a named format from a file and write another to a file.

    Parameters
    ----------
    source_path, target_path : str
    names : (str, str)
        The formats of the source and of the target.
    shape : sequence of int
    bits : int, optional
    parameters : dict
        Of the formats.
    progress : Progress
    memory_bytes : int
        The memory that the process may use, the program included.

    Raises
    ------
    FastIndexError
        As `fastindex.repack`; the file has another size; or both formats do not begin with the same dimension, and
        the memory does not hold them whole.
    OSError
        A file cannot be read or written.
    """
    given, width = checked_parameters(parameters), checked_bits(bits)
    plan = repack_plan(*names, checked_sizes(shape), width, given)
    file = open_input(source_path)
    left, right = plan.ends
    if file.fortran_order and len(file.dimensions) > 1:
        raise FastIndexError(f"{source_path} is in Fortran order; save it in C order, the last dimension the fastest")
    if left.row is None:
        _check_plain(file, source_path, left)
    if file.nbytes != left.side.nbytes:
        raise FastIndexError(
            f"{source_path} has {file.nbytes} bytes, {left.name} of {left.sizes} takes {left.side.nbytes}"
        )
    room = memory_bytes - LEAST_MEMORY_BYTES // 2
    whole = _COPIES * max(end.side.nbytes for end in plan.ends)
    step = plan.step if whole > room else None
    if whole > room and step is None:
        raise FastIndexError(
            f"{left.name} and {right.name} do not begin with the same dimension, so they are moved whole: give at "
            f"least --max-memory {-(-(whole + LEAST_MEMORY_BYTES // 2) >> 20)}MiB"
        )
    dtype = np.dtype(f"u{max(right.bits // 8, 1)}" if right.row is None else "u1")
    dimensions = right.sizes if right.row is None else (right.side.nbytes,)
    progress.start(right.side.nbytes)
    header = header_for(target_path, dtype, dimensions)
    with OutputFile(target_path, right.side.nbytes, header) as output, file.unchanged():
        for part, first, places in _parts(plan, step, min(room, _COPIES * _PART_BYTES), (*names, width, given)):
            data = np.empty(part.ends[0].side.nbytes, np.uint8)
            file.read(places[0], data)
            made = np.empty(part.ends[1].side.nbytes, np.uint8)
            part.run(data, made, (file.dtype is not None and file.dtype.kind == "i", False), None, first)
            output.write(places[1], made)
            progress.advance(made.nbytes)


def _check_plain(file: Any, path: str, end: End) -> None:
    """Require elements and dimensions of a file that says which it has to be those of a plain array.

    Raises
    ------
    FastIndexError
    """
    width = -(-end.bits // 8)
    if file.dtype is not None and (file.dtype.itemsize != width or not file.dtype.isnative or file.dtype.hasobject):
        raise FastIndexError(
            f"plain elements of {end.bits} bits take {width} bytes each, little-endian; {path} has dtype {file.dtype}"
        )
    if len(file.dimensions or ()) > 1 and tuple(file.dimensions) != end.sizes:
        raise FastIndexError(f"{path} has the dimensions {tuple(file.dimensions)}, the shape is {end.sizes}")


def _parts(plan: RepackPlan, step: int | None, room: int, names: tuple[Any, ...]) -> Any:
    """Yield plans for parts of the first dimension, the row that each begins with, and where on both sides."""
    if step is None:
        yield plan, 0, (0, 0)
        return
    source, destination, bits, given = names
    sizes = plan.ends[0].sizes
    each = _COPIES * max(end.side.nbytes for end in plan.ends) * step // max(sizes[0], 1)
    count = max(room // max(each, 1), 1) * step
    at = [0, 0]
    for begin in range(0, sizes[0], count):
        part = repack_plan(source, destination, (min(count, sizes[0] - begin), *sizes[1:]), bits, given)
        yield part, begin, (at[0], at[1])
        at = [place + end.side.nbytes for place, end in zip(at, part.ends, strict=True)]
