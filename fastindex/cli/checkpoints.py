"""Checkpoints: what `pack` and `unpack` do with them, and the command `verify`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fastindex.cli.options import PATH
from fastindex.cli.progress import ProgressBar
from fastindex.errors import FastIndexError


def is_checkpoint(path: str) -> bool:
    """Whether a path is that of tensors with names: safetensors files, GGUF, or a folder of what `pack` has written."""
    if path.endswith((".safetensors", ".safetensors.index.json", ".gguf")):
        return True
    return os.path.isdir(path) and (".zarr" not in path or os.path.exists(os.path.join(path, "manifest.json")))


def pack_tensors(source: str, target: str, rules: str | None, tpu: str | None, casting: str, max_memory: int) -> None:
    """Lay the tensors of a checkpoint out, as the rules in a file say."""
    from fastindex.files.weights.packing import pack_checkpoint
    from fastindex.files.weights.safetensors_files import json_object

    given = []
    if rules is not None:
        content = json_object(Path(rules).read_bytes(), rules)
        if set(content) != {"rules"} or not isinstance(content["rules"], list):
            raise FastIndexError(f'{rules} has to be {{"rules": [...]}}, each rule an object with names')
        given = content["rules"]
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


def unpack_tensors(source: str, target: str, max_memory: int) -> None:
    """Write the tensors of a packed checkpoint to a safetensors file."""
    from fastindex.files.weights.checkpoints import open_checkpoint

    if not target.endswith(".safetensors"):
        raise click.UsageError(f"tensors go to a file named .safetensors, got {target}; or add --shape")
    with ProgressBar("unpacking") as progress:
        open_checkpoint(source).unpack(target, max_memory=max_memory, progress=progress)


@click.command(short_help="Compare the checksums of a checkpoint.")
@click.argument("folder", metavar="FOLDER", type=PATH)
def verify(folder: str) -> None:
    """Read every file of a checkpoint that `pack` has written, and compare its checksum with the manifest's."""
    from fastindex.files.weights.checkpoints import open_checkpoint

    found = open_checkpoint(folder)
    found.verify()
    click.echo(
        f"{len(found)} arrays, {sum(shape.nbytes for shape in found.shapes.values())} bytes: as they were written"
    )
