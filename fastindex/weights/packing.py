"""Lay out the tensors of a checkpoint for a device, one after the other: pack, flush to disk, list in a manifest.

A folder is complete once it has its manifest. Until then a journal lists the complete arrays, each with its checksum;
an interrupted job resumes after them. The files of arrays appear complete or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastindex.arrays.buffers import check_movable
from fastindex.arrays.fills import Casting, check_casting
from fastindex.errors import FastIndexError
from fastindex.jobs.layout_jobs import Progress, memory_limit
from fastindex.jobs.writing import write_file
from fastindex.jobs.zarr_arrays import is_zarr
from fastindex.weights.arrays import Finishing, pack_array
from fastindex.weights.checkpoints import Checkpoint, open_checkpoint
from fastindex.weights.gguf_files import read_tensors
from fastindex.weights.journals import JOURNAL, MANIFEST, Piece, opened_journal
from fastindex.weights.manifests import RAW, ZARR, Manifest
from fastindex.weights.rules import arrays_of, rules_of

#: Zarr's metadata of a folder of arrays.
_GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'


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
        does not determine it. ``{"formats": {"mine": ...}, "rules": [...]}`` gives names to formats that were discovered,
        each as `Discovery.to_json` returns it.
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
    if os.fspath(folder).endswith((".safetensors", ".json", ".gguf")):
        raise FastIndexError(
            f"{os.fspath(folder)} is the name of a file, and the output is a folder of buffers: give it another "
            "name; unpack writes the tensors back to a .safetensors file"
        )
    limit = memory_limit(max_memory)
    found = read_tensors(source)
    arrays = {array.name: array for array in arrays_of(found.tensors, rules_of(rules), tpu, casting)}
    for array in arrays.values():
        check_movable(array.shape)
    place = Path(folder)
    store = ZARR if is_zarr(os.fspath(folder)) else RAW
    files = {name: f"{number:05}{'' if store == ZARR else '.bin'}" for number, name in enumerate(arrays)}
    if progress is not None:
        progress.start(sum(array.shape.nbytes for array in arrays.values()))
    pieces = {name: Piece(files[name], array.shape.nbytes, array.identity()) for name, array in arrays.items()}
    with opened_journal(place, pieces) as journal, Finishing(journal) as finishing:
        for name, array in arrays.items():
            if name not in journal.done:
                packed = pack_array(str(place / files[name]), array, limit, store, progress, casting)
                finishing.take(array, files[name], packed)
            elif progress is not None:
                progress.advance(array.shape.nbytes)
        finishing.wait()
        records = [journal.done[name] for name in arrays]
        if store == ZARR:
            write_file(str(place / "zarr.json"), _GROUP)
        content = Manifest(records, dict(found.metadata), store, list(found.tensors)).content()
        write_file(str(place / MANIFEST), json.dumps(content, indent=1, ensure_ascii=False).encode())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place / JOURNAL)
    return open_checkpoint(place)
