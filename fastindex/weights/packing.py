"""Lay out the tensors of a checkpoint for a device, one after the other: pack, flush to disk, list in a manifest.

A folder is complete once it has its manifest. Until then a journal lists the complete arrays, each with its checksum;
an interrupted job resumes after them. The files of arrays appear complete or not at all. While an array is packed,
worker threads flush the ones before it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastindex.algebra.casts import Casting, check_cast, check_casting
from fastindex.arrays.fills import fill_pattern, wanted_type
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.core.sizes import check_movable
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.jobs.input_files import path_text
from fastindex.jobs.layout_jobs import memory_limit
from fastindex.jobs.reading import StoredArray
from fastindex.jobs.writing import OutputFile, WrittenArray, write_file
from fastindex.jobs.zarr_arrays import ZarrBuffer, is_zarr, new_zarr_buffer
from fastindex.moving.box_jobs import plan_boxes
from fastindex.show.tpu_layouts import TPUS, tpu_layout
from fastindex.terminal import NoProgress, Progress
from fastindex.weights.checkpoints import Checkpoint, Stack, checksum_of, open_checkpoint, opened_buffer, ordered_shape
from fastindex.weights.found_formats import shown
from fastindex.weights.gguf_files import read_tensors
from fastindex.weights.manifests import (
    JOURNAL,
    MANIFEST,
    RAW,
    ZARR,
    Array,
    Journal,
    Manifest,
    Piece,
    opened_journal,
    record_of,
)
from fastindex.weights.repack_jobs import memory_within, move_parts, parts_of, shape_of
from fastindex.weights.rules import Rule, errors_about, order_of, rules_of, stacks_of
from fastindex.weights.safetensors_files import Tensor, opened, packed_shape

#: Zarr's metadata of a folder of arrays.
_GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
#: Worker threads that flush arrays to disk.
_FLUSHING_THREADS = 2
#: How many arrays may wait for that: each has an open file, and its bytes in the page cache.
_MOST_WAITING = 4


def pack_checkpoint(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    rules: Iterable[Mapping[str, Any]] | Mapping[str, Any] = (),
    *,
    tpu: str | None = None,
    casting: Casting = "same_kind",
    max_memory: int | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Lay the tensors of a checkpoint out for a device, each in one stream, in bounded memory.

    An interrupted job resumes: complete arrays are not written again. Only one job at a time writes into a folder.

    Parameters
    ----------
    source : path
        A ``.safetensors`` file, the index of several, a folder with one of these, or a ``.gguf`` file, for which the
        extra ``gguf`` is needed.
    folder : path
        Output folder; it may not hold anything else, and its parent must exist. A name that ends in ``.zarr`` makes a
        Zarr store with an array of bytes for each buffer; any other name, a file for each.
    rules : iterable of mappings
        Or ``{"rules": [...]}``, as in files. A tensor follows the first rule whose ``names``, a pattern such as
        ``"model.layers.*.weight"``, matches its name; other tensors stay as they are. A rule has ``layout``, a text
        such as ``"{1,0:T(8,128)(2,1)}"`` or ``"tpu"``; ``dtype``, the element type to cast to; ``transpose``, such as
        ``"out in -> in out"``; ``stack``, the name of the array into which all its tensors are stacked, in the order of
        the numbers that the ``*`` matches. Instead of layout, dtype and transpose, ``format`` gives the source and the
        target format: ``{"from": "awq", "to": "marlin"}``, with parameters as for `repack`, and ``shape`` if the tensor
        does not determine it. ``{"formats": {"mine": ...}, "rules": [...]}`` names formats that were discovered, as
        `Discovery.to_json` returns them.
    tpu : {"v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"}, optional
        Use the default layout of this TPU's compiler for arrays whose rule names no layout. A topology, as for
        `try_layouts`, is accepted too: ``"v5p:2x2x1"``.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for casts, as for `fastindex.pack`.
    max_memory : int, optional
        Memory limit of the whole process, in bytes; by default, 1 GiB more than it uses at the call.
    progress : optional
        An object whose ``start(total)`` and ``advance(count)`` are called with numbers of bytes.

    Returns
    -------
    Checkpoint

    Raises
    ------
    FastIndexError
        Malformed files, rules that do not fit, a folder that holds something else or is complete already, or too little
        memory.
    ArgumentTypeError
        A cast that `casting` does not allow.
    UnsupportedError
        A rule that needs the elements of a type that is copied as bytes, such as Q4_K; a missing extra.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import fastindex as fi, numpy as np, tempfile
    >>> from fastindex.weights.safetensors_files import header_of
    >>> place = tempfile.TemporaryDirectory()
    >>> with open(f"{place.name}/model.safetensors", "wb") as file:
    ...     _ = file.write(header_of({"w": fi.Shape.parse("f32[2,3]")}) + np.arange(6, dtype=np.float32).tobytes())
    >>> rules = [{"names": "w", "transpose": "a b -> b a", "dtype": "bf16"}]
    >>> found = fi.weights.pack_checkpoint(f"{place.name}/model.safetensors", f"{place.name}/out", rules)
    >>> found["w"]
    memmap([0, 3, 1, 4, 2, 5], dtype=bfloat16)
    >>> place.cleanup()
    """
    check_casting(casting)
    folder = path_text(folder, "folder")
    if folder.endswith((".safetensors", ".json", ".gguf")):
        raise FastIndexError(
            f"{folder} is the name of a file, and the output is a folder of buffers: give it another "
            "name; unpack writes the tensors back to a .safetensors file"
        )
    limit, progress = memory_limit(max_memory), NoProgress() if progress is None else progress
    found = read_tensors(source)
    arrays = {array.name: array for array in arrays_of(found.tensors, rules_of(rules), tpu, casting)}
    for array in arrays.values():
        check_movable(array.shape)
    place = Path(folder)
    store = ZARR if is_zarr(folder) else RAW
    files = {name: f"{number:05}{'' if store == ZARR else '.bin'}" for number, name in enumerate(arrays)}
    progress.start(sum(array.shape.nbytes for array in arrays.values()))
    pieces = {name: Piece(files[name], array.shape.nbytes, array.identity()) for name, array in arrays.items()}
    with (
        opened_journal(place, pieces) as journal,
        # Its end waits even after an error: packed arrays are finished, and a resumed job reuses them.
        ThreadPoolExecutor(_FLUSHING_THREADS, "fastindex-checkpoint") as threads,
    ):
        waiting: deque[Future[None]] = deque()
        for name in journal.missing(progress):
            array, path = arrays[name], str(place / files[name])
            packed = _packed(path, array, limit, store, progress, casting)
            if store == ZARR:
                # Zarr's settings belong to the whole process: the thread that set them resets them.
                _finish(path, array, packed, store, journal)
                continue
            waiting.append(threads.submit(_finish, path, array, packed, store, journal))
            while len(waiting) > _MOST_WAITING:
                waiting.popleft().result()
        for finished in waiting:
            finished.result()
        records = [journal.done[name] for name in arrays]
        if store == ZARR:
            write_file(str(place / "zarr.json"), _GROUP)
        content = Manifest(records, dict(found.metadata), store, list(found.tensors)).content()
        write_file(str(place / MANIFEST), json.dumps(content, indent=1, ensure_ascii=False).encode())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place / JOURNAL)
    return open_checkpoint(place)


def _packed(path: str, array: Array, limit: int, store: str, progress: Progress, casting: str) -> contextlib.ExitStack:
    """Write the buffer of an array; closing the result flushes the buffer to disk and gives it its name."""
    tensors, files = opened(array.tensors)
    with contextlib.ExitStack() as stack:
        target: WrittenArray | ZarrBuffer
        if store == ZARR:
            target = stack.enter_context(new_zarr_buffer(path, array.shape))
        else:
            target = WrittenArray(stack.enter_context(OutputFile(path, array.shape.nbytes)), array.shape)
        with contextlib.ExitStack() as reading:
            for one in files:
                reading.enter_context(one.unchanged())
            if array.formats is not None:
                given, nbytes = array.tensors[0].shape.element_type, array.formats.plan().ends[1].side.nbytes
                signed = given.bits if given.kind == "signed" else 0, 0
                memory = reading.enter_context(memory_within(limit))
                for number, tensor in enumerate(tensors):
                    parts, starts = parts_of(array.formats, memory), (0, number * nbytes)
                    move_parts(parts, tensor.read, target.write_bytes, signed, progress.advance, starts)
            else:
                inner = ordered_shape(array.tensors[0].shape, array.order)
                stored = [StoredArray(one, inner) for one in tensors]
                source: Any = Stack(stored) if array.is_stacked else stored[0]
                job = plan_boxes(source, target, limit, is_checked=casting != "unsafe")
                job.run(fill_pattern(array.shape), progress.advance)
        return stack.pop_all()


def _finish(path: str, array: Array, packed: contextlib.ExitStack, store: str, journal: Journal) -> None:
    """Flush a packed array, read it back for its checksum, and record it in the journal."""
    packed.close()
    crc32 = checksum_of(opened_buffer(path, array.shape, store))
    journal.add(array.name, record_of(array, os.path.basename(path), crc32))


def arrays_of(tensors: Mapping[str, Tensor], rules: Sequence[Rule], tpu: str | None, casting: str) -> list[Array]:
    """Return the arrays that tensors become by the first rule that matches their name; others stay as they are.

    Raises
    ------
    FastIndexError
        A rule matches no tensor, or its layout, order or stack does not fit them; or two arrays have one name.
    ArgumentTypeError
        `casting` does not allow an element type.
    """
    if tpu is not None:
        # The name of a topology, such as v5p:2x2x1, begins with that of its generation.
        tpu = tpu.partition(":")[0]
        if tpu not in TPUS:
            raise FastIndexError(f"the default layouts of {', '.join(TPUS)} are known, not those of {tpu!r}")
    followed: dict[Rule, list[Tensor]] = {rule: [] for rule in rules}
    found: dict[str, Array] = {}

    def add(array: Array) -> None:
        if array.name in found:
            raise FastIndexError(f"two arrays would be called {shown(array.name)}")
        found[array.name] = array

    plain = Rule("*")
    for name, tensor in tensors.items():
        rule = next((one for one in rules if one.matches(name)), plain)
        if rule is not plain:
            followed[rule].append(tensor)
        if rule.stack is None:
            add(_array_by(rule, name, (tensor,), tpu, casting))
    for rule, those in followed.items():
        if not those:
            raise FastIndexError(
                f"the rule for {shown(rule.names)} applies to no tensor: no name matches, or an "
                "earlier rule matches first"
            )
        if rule.stack is not None:
            for stack, ordered in stacks_of(rule.names, rule.stack, those):
                add(_array_by(rule, stack, ordered, tpu, casting))
    return list(found.values())


def _array_by(rule: Rule, name: str, tensors: tuple[Tensor, ...], tpu: str | None, casting: str) -> Array:
    with errors_about(f"{shown(name)}, by the rule for {shown(rule.names)}"):
        return _array(name, tensors, rule, tpu, casting)


def _array(name: str, tensors: tuple[Tensor, ...], rule: Rule, tpu: str | None, casting: str) -> Array:
    first, is_stacked = tensors[0], rule.stack is not None
    if rule.format is not None:
        formats = rule.format.of(first)
        shape = shape_of(formats.plan().ends[1])
        if is_stacked:
            shape = Shape(shape.element_type, (len(tensors), *shape.dimensions))
        return Array(name, shape, tensors, (), is_stacked, formats)
    if first.is_opaque:
        _check_copied(first, rule)
    shape = first.shape
    element_type = shape.element_type if rule.dtype is None else wanted_type(rule.dtype)
    check_cast(shape.element_type, element_type, casting)
    order = order_of(rule.transpose, shape.rank)
    dimensions = tuple(shape.dimensions[d] for d in order)
    if is_stacked:
        dimensions = (len(tensors), *dimensions)
    layout: Layout | None = None
    if rule.layout == "tpu" or (rule.layout is None and tpu is not None and not first.is_opaque):
        layout = tpu_layout(element_type, dimensions, tpu)
    elif rule.layout is not None:
        layout = Shape.parse(f"{element_type}[{','.join(map(str, dimensions))}]{rule.layout}").layout
    elif rule.dtype is None:
        layout = packed_shape(element_type, dimensions).layout if shape.layout.element_size_in_bits else None
    return Array(name, Shape(element_type, dimensions, layout), tensors, order, is_stacked)


def _check_copied(tensor: Tensor, rule: Rule) -> None:
    """Require the rule of a tensor whose elements cannot be moved individually to copy its bytes.

    Raises
    ------
    UnsupportedError
    """
    for key in ("layout", "dtype", "transpose"):
        if getattr(rule, key) is not None:
            raise UnsupportedError(
                f"{shown(tensor.name)} is {tensor.dtype}, whose elements are not moved one by one: its bytes are "
                f"copied as they are; the rule for {shown(rule.names)} has a {key}"
            )
