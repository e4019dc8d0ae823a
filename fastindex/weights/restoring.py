"""Restore the source tensors of a packed checkpoint, to one safetensors file."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from fastindex.arrays.fills import logical_result
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.jobs.layout_jobs import Progress, memory_limit, unpack_stored
from fastindex.jobs.writing import OutputFile
from fastindex.moving.box_jobs import plan_boxes, taken_bytes
from fastindex.weights.buffers import read_bytes, stored_buffer
from fastindex.weights.manifests import Manifest, Moved, moved_of
from fastindex.weights.repack_jobs import cut_of_parts, move_parts, parts_of
from fastindex.weights.safetensors_files import header_of, packed_shape
from fastindex.weights.stacks import PartOfFile, Stack, ordered_shape


def restore(manifest: Manifest, target: str, max_memory: int | None = None, progress: Progress | None = None) -> None:
    """Write the tensors of a checkpoint to a safetensors file.

    Parameters
    ----------
    manifest : Manifest
    target : str
    max_memory : int, optional
        As for `memory_limit`.
    progress : Progress, optional

    Raises
    ------
    UnsupportedError
        An element type that the format lacks.
    FastIndexError
        Too little memory, or an array whose file has changed.
    OSError
        A file cannot be read or written.
    """
    limit = memory_limit(max_memory)
    shapes: dict[str, Shape] = {}
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for one in manifest.arrays:
        shapes |= dict.fromkeys(one["tensors"], _tensor_shape(one))
        if "stored" in one:
            own = one["stored"]["dtype"], tuple(one["stored"]["sizes"])
            stored |= dict.fromkeys(one["tensors"], own)
    starts, at = {}, 0
    for name in manifest.tensors:
        starts[name] = at
        at += shapes[name].nbytes
    header = header_of({name: shapes[name] for name in manifest.tensors}, manifest.metadata, stored)
    if progress is not None:
        progress.start(at)
    with OutputFile(target, at, header) as output:
        for one in manifest.arrays:
            parts = [PartOfFile(output, shapes[name], starts[name]) for name in one["tensors"]]
            _restore_array(manifest, one, parts, limit, progress)


def restore_array(
    manifest: Manifest,
    name: str,
    target: str,
    progress: Progress,
    memory_bytes: int,
    force: bool = False,
    casting: str = "same_kind",
    dtype: str | None = None,
) -> None:
    """Write one logical array of a checkpoint to a file: a NumPy file, a Zarr array, or raw bytes, by its name.

    Parameters and errors as for `fastindex.jobs.layout_jobs.unpack_file`; an unknown name is a FastIndexError.
    """
    one = next((one for one in manifest.arrays if one["name"] == name), None)
    if one is None:
        names = [one["name"] for one in manifest.arrays]
        close = get_close_matches(name, names, 3) or names[:3]
        raise FastIndexError(
            f"{manifest.folder} holds no array {name[:80]!r}; it has {len(names)}, such as "
            f"{', '.join(repr(one[:80]) for one in close)}"
        )
    logical = logical_result(Shape.parse(one["shape"]), None, dtype, casting)
    unpack_stored(stored_buffer(manifest, one), target, logical, progress, memory_bytes, force, casting)


def _tensor_shape(one: dict[str, Any]) -> Shape:
    """Return the shape of each tensor of an array, as stored in a safetensors file."""
    shape = Shape.parse(one["shape"])
    if one.get("format") is not None:
        return Shape("u8", (one["stored"]["nbytes"],))
    dimensions = shape.dimensions[1 if one["is_stacked"] else 0 :]
    return packed_shape(shape.element_type, tuple(dimensions[one["order"].index(d)] for d in range(len(dimensions))))


def _restore_array(
    manifest: Manifest, one: dict[str, Any], parts: list[PartOfFile], limit: int, progress: Progress | None
) -> None:
    advance = _ignore if progress is None else progress.advance
    source = stored_buffer(manifest, one)
    moved = moved_of(one)
    with source.reading():
        if moved is not None:
            _move_back(moved, source, parts, limit, advance)
            return
        ordered = [PartOfFile(part.file, ordered_shape(part.shape, tuple(one["order"])), part.start) for part in parts]
        target: Any = Stack(ordered) if one["is_stacked"] else ordered[0]
        plan_boxes(source, target, limit).run(bytes(16), advance)


def _move_back(moved: Moved, source: Any, parts: list[PartOfFile], limit: int, advance: Any) -> None:
    """Move named formats back, one tensor after the other."""
    plan = moved.back.plan()
    nbytes = plan.ends[0].side.nbytes
    signed = max(plan.ends[1].bits, 8) if moved.is_signed else 0
    taken = taken_bytes()
    cut = cut_of_parts(plan, limit - taken, taken)
    for number, part in enumerate(parts):
        begin = number * nbytes

        def read(start: int, into: Any, begin: int = begin) -> None:
            read_bytes(source, begin + start, into)

        def write(start: int, content: Any, part: PartOfFile = part) -> None:
            part.file.write(part.start + start, content)

        move_parts(parts_of(plan, cut, limit - taken, moved.back), read, write, (0, signed), advance)


def _ignore(count: int) -> None:
    """No-op progress callback."""
