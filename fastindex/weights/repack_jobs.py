"""Repack files between named formats in bounded memory, by slices of the dimension that is outermost in both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.jobs.input_files import Bytes, open_input
from fastindex.jobs.layout_jobs import DEFAULT_MEMORY_BYTES
from fastindex.jobs.writing import OutputFile, header_for
from fastindex.moving.box_jobs import is_for_numpy, taken_bytes
from fastindex.moving.relayout_plans import is_of_passes
from fastindex.patterns.format_table import PARAMETERS
from fastindex.patterns.known_names import PLAIN, takes_any_width
from fastindex.patterns.named_formats import chosen
from fastindex.runtime.first_answer import is_left_to_numpy, without_kernels
from fastindex.terminal import Progress
from fastindex.weights.found_formats import FoundFormat
from fastindex.weights.repack_arguments import (
    check_words,
    checked_bits,
    checked_parameters,
    checked_sizes,
    has_words,
    other_version,
    signed_bits,
    sizes_of_words,
    word_bits,
)
from fastindex.weights.repack_plans import Cut, End, Format, RepackPlan, repack_plan
from fastindex.weights.safetensors_files import Tensor

#: The larger buffer of a slice has at most about this many bytes, even if memory allows more.
_PART_BYTES = 64 << 20
#: Memory for a move, in bytes, even if the process is above its limit already.
_LEAST_MOVE_BYTES = 16 << 20
#: Peak memory in multiples of the larger buffer: both buffers; with unpacked codes; more where single bits move.
_COPIES_OF_PASSES, _COPIES, _COPIES_OF_BITS = 2, 8, 24


@dataclass(frozen=True, slots=True)
class Formats:
    """A move between named formats, of an array or, without sizes, as the rule for any tensor.

    Attributes
    ----------
    names : (Format, Format)
        Of the source and of the target.
    sizes : tuple of int
        The dimensions of the array; empty if each tensor determines its own.
    bits : int or None
        Of a code, or of an element.
    parameters : tuple of (str, object)
        Of the formats.
    """

    names: tuple[Format, Format]
    sizes: tuple[int, ...]
    bits: int | None
    parameters: tuple[tuple[str, Any], ...]

    def plan(self) -> RepackPlan:
        """Return the plan of the move."""
        given = checked_parameters(dict(self.parameters))
        return repack_plan(*self.names, checked_sizes(self.sizes), checked_bits(self.bits), given)

    def of(self, tensor: Tensor) -> Formats:
        """Return the move of a tensor of a file, with the sizes and bits that it determines.

        Raises
        ------
        FastIndexError
            The sizes, the width or the bytes of the tensor do not fit.
        """
        if tensor.is_opaque and str(self.names[0]).startswith("gguf_"):
            raise FastIndexError(
                f"{tensor.name[:200]!r} is blocks of {tensor.dtype}, each with its scale beside its codes, and "
                f'{self.names[0]} is the codes alone: fastindex convert separates them, with "field": "codes"'
            )
        width, bits = _bits_of(tensor), self.bits
        if bits is None and self.names[0] == PLAIN and takes_any_width(self.names[1]):
            bits = width
        formats = replace(self, sizes=self.sizes or self._sizes_of(tensor, width), bits=bits)
        left = formats.plan().ends[0]
        if left.side.nbytes != tensor.shape.nbytes:
            raise FastIndexError(
                f"{tensor.name[:200]!r} has {tensor.shape.nbytes} bytes, {left.name} of {left.sizes} with {left.bits} "
                f"bits takes {left.side.nbytes}{other_version(left, tensor.shape.nbytes)}"
            )
        if not tensor.is_opaque:
            check_words(left, tensor.sizes, width, repr(tensor.name[:200]))
        return formats

    def _sizes_of(self, tensor: Tensor, width: int) -> tuple[int, ...]:
        name, given = self.names[0], dict(self.parameters)
        if name == PLAIN:
            return tensor.sizes
        if isinstance(name, FoundFormat):
            return name.shape
        if not has_words(name) or len(tensor.sizes) < 2 or tensor.is_opaque:
            raise FastIndexError(
                f"{tensor.name[:200]!r} does not have the dimensions of its {name} array; give the format a "
                "shape such as [4096, 11008]"
            )
        one = chosen(name, self.bits, {k: v for k, v in given.items() if k in PARAMETERS.get(name, {})})
        *batch, last = tensor.sizes
        return sizes_of_words(one, (*batch, last * width // word_bits(one)))


def _bits_of(tensor: Tensor) -> int:
    element_type = tensor.shape.element_type
    return element_type.bits if tensor.shape.layout.element_size_in_bits else 8 * element_type.nbytes


def shape_of(end: End) -> Shape:
    """Return the shape of one end of a move as stored: the codes of a plain array, or the bytes of a format.

    Examples
    --------
    >>> print(shape_of(Formats(("awq", "marlin"), (16, 64), None, ()).plan().ends[1]))
    u8[512]{0}
    >>> print(shape_of(Formats(("awq", "plain"), (16, 64), None, ()).plan().ends[1]))
    u8[16,64]{1,0}
    """
    return Shape(f"u{max(end.bits, 8)}", end.sizes) if end.row is None else Shape("u8", (end.side.nbytes,))


class Memory(NamedTuple):
    """Memory in bytes: that of the program itself, and what a move may take beside it."""

    taken: int
    free: int


@contextmanager
def memory_within(limit: int, needs_kernels: bool = True) -> Iterator[Memory]:
    """Yield what moves may take if the process is to stay below `limit` bytes; where that is low, NumPy runs them."""
    by_numpy = is_for_numpy(limit) or not needs_kernels
    with without_kernels() if by_numpy else nullcontext():
        taken = taken_bytes(by_numpy)
        yield Memory(taken, max(limit - taken, _LEAST_MOVE_BYTES))


def repack_file(
    source_path: str,
    target_path: str,
    formats: Formats,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    force: bool = False,
) -> None:
    """Read a file in one named format and write a file in another.

    Parameters
    ----------
    source_path, target_path : str
    formats : Formats
    progress : Progress
    memory_bytes : int
        Memory limit of the whole process.
    force : bool
        Replace a read-only file, too.

    Raises
    ------
    FastIndexError
        As `fastindex.weights.repack`; the file has another size; or no dimension is outermost in both formats, and the
        whole move does not fit into memory.
    OSError
        A file cannot be read or written.
    """
    plan = formats.plan()
    file = open_input(source_path)
    left, right = plan.ends
    if file.fortran_order and len(file.dimensions) > 1:
        raise FastIndexError(f"{source_path} is in Fortran order; save it in C order, the last dimension the fastest")
    if left.row is None:
        _check_plain(file, source_path, left)
    if file.nbytes != left.side.nbytes:
        raise FastIndexError(
            f"{source_path} has {file.nbytes} bytes, {left.name} of {left.sizes} takes {left.side.nbytes}"
            f"{other_version(left, file.nbytes)}"
        )
    if file.dtype is not None:
        check_words(left, file.dimensions or (), 8 * file.dtype.itemsize, source_path)
    dtype = np.dtype(f"u{max(right.bits // 8, 1)}" if right.row is None else "u1")
    dimensions = right.sizes if right.row is None else (right.side.nbytes,)
    signed = 0 if file.dtype is None else signed_bits(None, file.dtype)
    header = header_for(target_path, dtype, dimensions)
    with memory_within(memory_bytes) as memory:
        parts = parts_of(formats, memory)
        progress.start(right.side.nbytes)
        with OutputFile(target_path, right.side.nbytes, header, force) as output, file.unchanged():
            move_parts(parts, file.read, output.write, (signed, 0), progress.advance)


#: A slice: its plan, the index of its first row, and its byte offsets on both sides.
Part = tuple[RepackPlan, int, tuple[int, int]]


def parts_of(formats: Formats, memory: Memory) -> Iterable[Part]:
    """Return the slices to move one after the other: the whole array, or slices of the outermost dimension.

    Raises
    ------
    FastIndexError
        The whole move does not fit, and cannot be done in slices.
    """
    plan = formats.plan()
    whole = bytes_of_move(plan)
    if whole <= memory.free:
        return [(plan, 0, (0, 0))]
    if plan.cut is None:
        left, right = plan.ends
        raise FastIndexError(
            f"{left.name} and {right.name} have no dimension that is outermost in both, so they are moved whole: give "
            f"at least --max-memory {-(-(whole + memory.taken) >> 20)}MiB"
        )
    return slices_of(formats, plan.cut, memory.free)


def slices_of(formats: Formats, cut: Cut, most_bytes: int) -> Iterator[Part]:
    """Yield slices whose moves take at most a number of bytes, or the smallest ones."""
    plan = formats.plan()
    each = bytes_of_move(plan) * cut.step // max(cut.size, 1)
    count = max(min(most_bytes, copies_of_move(plan) * _PART_BYTES) // max(each, 1), 1) * cut.step
    at = 0, 0
    for begin in range(0, cut.size, count):
        part = replace(formats, sizes=cut.part(min(count, cut.size - begin)), parameters=plan.parameters).plan()
        yield part, begin, at
        at = at[0] + part.ends[0].side.nbytes, at[1] + part.ends[1].side.nbytes


def bytes_of_move(plan: RepackPlan) -> int:
    """Return the peak memory, in bytes, of moving the whole array: both buffers and the unpacked codes."""
    return copies_of_move(plan) * max(end.side.nbytes for end in plan.ends)


def copies_of_move(plan: RepackPlan) -> int:
    """Return the peak memory of a move in multiples of its larger buffer."""
    if any(end.side.element_bits == 1 < end.bits for end in plan.ends):
        return _COPIES_OF_BITS
    changes = plan.packs or any(end.row is None or end.row.order for end in plan.ends) or plan.flipped_bits((0, 0))
    return _COPIES if changes or is_left_to_numpy() or not is_of_passes(plan.plan) else _COPIES_OF_PASSES


def move_parts(
    parts: Iterable[Part],
    read: Callable[[int, Bytes], None],
    write: Callable[[int, Bytes], None],
    signed: tuple[int, int],
    advance: Callable[[int], None],
    starts: tuple[int, int] = (0, 0),
) -> None:
    """Read, move and write slices, one after the other.

    `signed` is as for `RepackPlan.run`; `starts` are the offsets of the array, in bytes, for `read` and `write`.
    """
    for part, first, places in parts:
        data = np.empty(part.ends[0].side.nbytes, np.uint8)
        read(starts[0] + places[0], data)
        made = np.empty(part.ends[1].side.nbytes, np.uint8)
        part.run(data, made, signed, None, first)
        write(starts[1] + places[1], made)
        advance(made.nbytes)


def _check_plain(file: Any, path: str, end: End) -> None:
    """Require the dtype and dimensions of a file, where it states them, to be those of a plain array.

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
