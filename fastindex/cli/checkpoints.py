"""Checkpoints: `pack` and `unpack` for them, and the commands `convert` and `verify`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from fastindex.cli.group import main
from fastindex.cli.options import CASTING, MAX_MEMORY, PATH, byte_size, check_memory
from fastindex.cli.output import ProgressBar


def is_checkpoint(path: str) -> bool:
    """Whether a path is a checkpoint: safetensors files, GGUF, or a folder that `pack` has written."""
    if path.endswith((".safetensors", ".safetensors.index.json", ".gguf")):
        return True
    return os.path.isdir(path) and (".zarr" not in path or os.path.exists(os.path.join(path, "manifest.json")))


def pack_tensors(source: str, target: str, rules: str | None, tpu: str | None, casting: str, max_memory: int) -> None:
    """Lay out the tensors of a checkpoint by the rules in a file."""
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
    from fastindex.weights.checkpoints import open_checkpoint, restore_array
    from fastindex.weights.manifests import read_manifest

    with ProgressBar("unpacking") as progress:
        if name is None:
            open_checkpoint(source).unpack(target, max_memory=max_memory, progress=progress)
        else:
            restore_array(read_manifest(source), name, target, progress, max_memory, force, casting, dtype)


def checkpoint_text(folder: str, as_json: bool) -> str:
    """Return the contents of a packed checkpoint: one line per array, or JSON."""
    from fastindex.core.integers import counted
    from fastindex.show.sentences import info
    from fastindex.show.spelling import aligned, bytes_text
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
    total = bytes_text(sum(one["nbytes"] for one in manifest.arrays))
    lines = [f"{counted(len(rows), 'array')} made of {counted(len(manifest.tensors), 'tensor')}, {total}"]
    return "\n".join([*lines, *aligned(rows, "<<>")])


@main.command(short_help="Convert a checkpoint for another engine.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("folder", metavar="OUT", type=click.Path())
@click.option("--rules", metavar="NAME|FILE", required=True, help="A recipe by its name, or rules as JSON.")
@click.option("--dry-run", is_flag=True, help="Print what becomes what, without doing it.")
@click.option(
    "--max-shard",
    type=byte_size,
    metavar="SIZE",
    default="5GB",
    show_default=True,
    help="What a file has at most, unless one tensor has more.",
)
@MAX_MEMORY
@CASTING
def convert(source: str, folder: str, rules: str, dry_run: bool, max_shard: int, max_memory: int, casting: str) -> None:
    """Convert the checkpoint IN, of safetensors or GGUF, to the folder OUT, as another engine loads it.

    OUT appears when it is complete; a stopped job resumes when it is started again. Recipes:
    awq-to-compressed-tensors, awq-to-gptq, awq-to-gptq-v2, gptq-to-awq, gptq-to-marlin, gguf-to-mlx,
    nvfp4-swizzled-scales, gpt-oss-halves and gpt-oss-interleaved.
    """
    check_memory(max_memory)
    from fastindex.weights.converting import convert_checkpoint
    from fastindex.weights.recipes import RECIPES
    from fastindex.weights.safetensors_files import json_value

    given = rules if rules in RECIPES or not os.path.exists(rules) else json_value(Path(rules).read_bytes(), rules)
    with ProgressBar("converting") as progress:
        converted = convert_checkpoint(
            source,
            folder,
            given,
            dry_run=dry_run,
            casting=casting,  # type: ignore[arg-type]
            max_shard_bytes=max_shard,
            max_memory=max_memory,
            progress=progress,
        )
    if dry_run:
        click.echo(str(converted))


@main.command(short_help="Compare the checksums of a checkpoint.")
@click.argument("folder", metavar="FOLDER", type=PATH)
def verify(folder: str) -> None:
    """Read every file that `pack` or `convert` has written, and compare its checksum with the manifest's."""
    from fastindex.weights.checkpoints import open_checkpoint
    from fastindex.weights.converting import ConvertedCheckpoint, files_of

    if files_of(folder) is not None:
        click.echo(f"{ConvertedCheckpoint(folder).verify()} files: as they were written")
        return
    found = open_checkpoint(folder)
    found.verify()
    click.echo(
        f"{len(found)} arrays, {sum(shape.nbytes for shape in found.shapes.values())} bytes: as they were written"
    )
