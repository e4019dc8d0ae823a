"""Checkpoints: what `pack` and `unpack` do with them, and the command `verify`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from fastindex.cli.options import PATH
from fastindex.cli.progress import ProgressBar


def is_checkpoint(path: str) -> bool:
    """Whether a path is that of tensors with names: safetensors files, GGUF, or a folder of what `pack` has written."""
    if path.endswith((".safetensors", ".safetensors.index.json", ".gguf")):
        return True
    return os.path.isdir(path) and (".zarr" not in path or os.path.exists(os.path.join(path, "manifest.json")))


def pack_tensors(source: str, target: str, rules: str | None, tpu: str | None, casting: str, max_memory: int) -> None:
    """Lay the tensors of a checkpoint out, as the rules in a file say."""
    from fastindex.weights.packing import pack_checkpoint
    from fastindex.weights.safetensors_files import json_value

    given = [] if rules is None else json_value(Path(rules).read_bytes(), rules)
    with ProgressBar("packing") as progress:
        pack_checkpoint(
            source,
            target,
            given,
            tpu=tpu,
            casting=casting,  # type: ignore[arg-type]
            max_memory=max_memory,
            progress=progress,
        )


def unpack_checkpoint(
    source: str, target: str, name: str | None, max_memory: int, force: bool, casting: str, dtype: str | None
) -> None:
    """Write the tensors of a packed checkpoint to a safetensors file, or one logical array of it to any other."""
    if name is None and (force or dtype is not None):
        raise click.UsageError("--force and --dtype are for one array of a checkpoint; add --name")
    if name is None and not target.endswith(".safetensors"):
        raise click.UsageError(
            f"tensors go to a file named .safetensors, got {target}; --name writes one array to any file"
        )
    if name is not None and target.endswith(".safetensors"):
        raise click.UsageError(f"one array goes to a .npy file, a Zarr array or raw bytes, not to {target}")
    from fastindex.weights.checkpoints import open_checkpoint
    from fastindex.weights.manifests import read_manifest
    from fastindex.weights.restoring import restore_array

    with ProgressBar("unpacking") as progress:
        if name is None:
            open_checkpoint(source).unpack(target, max_memory=max_memory, progress=progress)
        else:
            restore_array(read_manifest(source), name, target, progress, max_memory, force, casting, dtype)


def checkpoint_text(folder: str, as_json: bool) -> str:
    """Return what a packed checkpoint holds: a line, or a JSON object, for each array."""
    from fastindex.core.integers import counted
    from fastindex.show.sentences import info
    from fastindex.show.spelling import bytes_text
    from fastindex.weights.manifests import read_manifest

    manifest = read_manifest(folder)
    if as_json:
        arrays = [
            {"name": one["name"], "file": one["file"], "tensors": one["tensors"], **info(one["shape"])}
            for one in manifest.arrays
        ]
        return json.dumps({"store": manifest.store, "metadata": manifest.metadata, "arrays": arrays})
    rows = [
        (one["name"] if one["name"].isprintable() else repr(one["name"]), one["shape"], bytes_text(one["nbytes"]))
        for one in manifest.arrays
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    total = bytes_text(sum(one["nbytes"] for one in manifest.arrays))
    lines = [f"{counted(len(rows), 'array')} made of {counted(len(manifest.tensors), 'tensor')}, {total}"]
    lines += [f"{name:{widths[0]}}  {shape:{widths[1]}}  {size:>{widths[2]}}" for name, shape, size in rows]
    return "\n".join(lines)


@click.command(short_help="Compare the checksums of a checkpoint.")
@click.argument("folder", metavar="FOLDER", type=PATH)
def verify(folder: str) -> None:
    """Read every file of a checkpoint that `pack` has written, and compare its checksum with the manifest's."""
    from fastindex.weights.checkpoints import open_checkpoint

    found = open_checkpoint(folder)
    found.verify()
    click.echo(
        f"{len(found)} arrays, {sum(shape.nbytes for shape in found.shapes.values())} bytes: as they were written"
    )
