"""The commands `pack`, `unpack`, `relayout`, `repack`, `convert`, `verify`: files in other layouts or formats."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Literal

import click

import fastindex
from fastindex.cli.clusters import cluster_options, done_by_workers
from fastindex.cli.group import (
    CASTING,
    DEVICE,
    FORCE,
    MAX_MEMORY,
    OUT_PATH,
    PATH,
    ProgressBar,
    byte_size,
    check_memory,
    check_names,
    integer,
    main,
)


def _without_shape(source: str, message: str) -> Exception:
    """Return the error for a missing --shape: IN does not exist, cannot be read, or does not contain its shape."""
    if os.path.lexists(source):
        from fastindex.jobs.input_files import check_readable

        check_readable(source)
        return click.UsageError(message)
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)


def _run(
    job: Literal["pack", "unpack"],
    files: tuple[str, str],
    shape: str,
    max_memory: int,
    force: bool,
    cluster: tuple[int | None, str | None],
    **cast: Any,
) -> None:
    check_memory(max_memory)
    check_names(*files, force)
    parsed = fastindex.Shape.parse(shape)
    if done_by_workers(job, files, (parsed,), max_memory, cluster, **cast):
        return
    from fastindex.jobs.layout_jobs import pack_file, unpack_file

    with ProgressBar(f"{job}ing") as progress:
        (pack_file if job == "pack" else unpack_file)(*files, parsed, progress, max_memory, force, **cast)


@main.command(short_help="Lay out an array as a buffer.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=OUT_PATH)
@click.option("--shape", help="The array and its layout; without it, IN is a checkpoint.")
@click.option("--rules", metavar="FILE", help="Rules for the tensors of a checkpoint, as JSON.")
@click.option(
    "--tpu",
    metavar="NAME",
    help="Lay tensors out as the compiler of a TPU does by default: v2, v3, v4, v5e, v5p, v6e or tpu7x.",
)
@MAX_MEMORY
@FORCE
@CASTING
@cluster_options
def pack(
    source: str,
    target: str,
    shape: str | None,
    max_memory: int,
    force: bool,
    casting: str,
    **options: Any,
) -> None:
    """Lay the array in IN out as SHAPE says, and write the physical buffer to OUT.

    Where a .npy file holds another element type, elements are cast on the way. Files may be larger than memory.

    Where IN is a checkpoint, of safetensors or GGUF, OUT is a folder: a file for each tensor, laid out as the rules
    say, and a manifest. A stopped job resumes when it is started again.
    """
    workers, scheduler, rules, tpu = (options[name] for name in ("workers", "scheduler", "rules", "tpu"))
    if shape is None:
        if not is_checkpoint(source):
            raise _without_shape(source, "--shape says what array IN holds; only checkpoints say it themselves")
        if force or workers is not None or scheduler is not None:
            raise click.UsageError("--force, --workers and --scheduler are not for checkpoints")
        check_memory(max_memory)
        pack_tensors(source, target, rules, tpu, casting, max_memory)
        return
    if rules is not None or tpu is not None:
        raise click.UsageError("--rules and --tpu are for checkpoints; leave --shape out")
    _run("pack", (source, target), shape, max_memory, force, (workers, scheduler), casting=casting)


@main.command(short_help="Read the array from a buffer.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=OUT_PATH)
@click.option("--shape", help="The array and its layout; without it, IN is a checkpoint that pack has written.")
@click.option("--name", help="One array of a checkpoint, instead of all tensors.")
@click.option("--dtype", metavar="TYPE", help="The element type of the array; that of SHAPE by default.")
@MAX_MEMORY
@FORCE
@CASTING
@cluster_options
def unpack(
    source: str,
    target: str,
    shape: str | None,
    name: str | None,
    max_memory: int,
    force: bool,
    **cast: Any,
) -> None:
    """Read the physical buffer in IN, laid out as SHAPE says, and write the array to OUT.

    Files may be larger than memory. Where IN is a checkpoint that `pack` has written, OUT is a .safetensors file with
    its tensors; with --name, one array as above.
    """
    workers, scheduler = cast.pop("workers"), cast.pop("scheduler")
    if shape is None:
        if not is_checkpoint(source):
            raise _without_shape(source, "--shape says what buffer IN holds; only checkpoints say it themselves")
        if workers is not None or scheduler is not None:
            raise click.UsageError("--workers and --scheduler are not for checkpoints")
        check_memory(max_memory)
        unpack_checkpoint(source, target, name, max_memory, force, **cast)
        return
    if name is not None:
        raise click.UsageError("--name is for checkpoints, which say the shapes of their arrays; leave --shape out")
    _run("unpack", (source, target), shape, max_memory, force, (workers, scheduler), **cast)


@main.command(short_help="Move a buffer to another layout.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=OUT_PATH)
@click.option("--from", "source_shape", metavar="SHAPE", required=True, help="How the buffer in IN is laid out.")
@click.option("--to", "target_shape", metavar="SHAPE", required=True, help="How to lay it out in OUT.")
@MAX_MEMORY
@FORCE
@CASTING
@DEVICE
@click.option("--tune", is_flag=True, help="Time all candidate plans for a box first, and remember the fastest.")
@cluster_options
def relayout(
    source: str,
    target: str,
    source_shape: str,
    target_shape: str,
    max_memory: int,
    force: bool,
    casting: str,
    device: str,
    tune: bool,
    workers: int | None,
    scheduler: str | None,
) -> None:
    """Move the physical buffer in IN from one layout to another, and write it to OUT.

    Where the element types differ, elements are cast on the way. Files may be larger than memory.
    """
    if device == "cpu":
        check_memory(max_memory)
    check_names(source, target, force)
    if tune and (device != "cpu" or workers is not None or scheduler is not None):
        raise click.UsageError(
            "--tune times kernels on this machine's CPU; leave --device, --workers and --scheduler out"
        )
    parsed = fastindex.Shape.parse(source_shape), fastindex.Shape.parse(target_shape)
    if done_by_workers("relayout", (source, target), parsed, max_memory, (workers, scheduler), casting=casting):
        return
    from fastindex.jobs.layout_jobs import relayout_file

    with ProgressBar("relayout") as progress:
        relayout_file(source, target, *parsed, progress, max_memory, device, force, tune, casting)


@main.command(short_help="Move quantised weights to another format.")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=OUT_PATH)
@click.option("--from", "source_format", metavar="FORMAT", required=True, help="The format of IN, or plain.")
@click.option("--to", "target_format", metavar="FORMAT", required=True, help="The format of OUT, or plain.")
@click.option("--shape", required=True, metavar="KxN", help="The dimensions of the array, such as 4096x11008.")
@click.option("--bits", type=click.IntRange(1, 64), help="Bits of a code, or of an element.")
@click.option("--with", "parameters", metavar="NAME=VALUE", multiple=True, help="A parameter of a format.")
@MAX_MEMORY
@FORCE
def repack(
    source: str,
    target: str,
    source_format: str,
    target_format: str,
    shape: str,
    bits: int | None,
    parameters: tuple[str, ...],
    **limits: Any,
) -> None:
    """Read the array in IN, in one named format, and write it to OUT in another.

    Formats and their parameters are those of fastindex.weights.formats(); a name that ends in .json is a file of
    fastindex.weights.Discovery.to_json(). Files may be larger than memory where the
    same dimension is outermost in both formats.
    """
    check_memory(limits["max_memory"])
    check_names(source, target, limits["force"])
    sizes = [part.strip() for part in shape.lower().replace(",", "x").split("x")]
    if not all(part.isdecimal() for part in sizes):
        raise click.BadParameter(f"{shape!r} is not a shape; give sizes such as 4096x11008", param_hint="--shape")
    from fastindex.weights.repack_jobs import Formats, repack_file

    names = _format(source_format), _format(target_format)
    given = tuple(sorted(dict(_parameter(one) for one in parameters).items()))
    formats = Formats(names, tuple(integer(part) for part in sizes), bits, given)
    with ProgressBar("repack") as progress:
        repack_file(source, target, formats, progress, limits["max_memory"], limits["force"])


def _format(text: str) -> Any:
    """Return a format by its name, or the discovered one in a file."""
    from fastindex.patterns.known_names import known_name
    from fastindex.weights.discovery import Discovery
    from fastindex.weights.safetensors_files import json_value

    if not text.endswith(".json"):
        return known_name(text)
    return Discovery.from_json(json_value(Path(text).read_bytes(), text)).as_format(text)


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not a parameter; write it as activation_bits=8", param_hint="--with")
    numbers = value.strip("()").split(",")
    if all(number.strip().isdecimal() for number in numbers):
        found = tuple(integer(number) for number in numbers)
        return name, found if len(found) > 1 else found[0]
    return name, {"true": True, "false": False}.get(value.lower(), value)


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
            f"tensors are written to a .safetensors file, not to {target}; --name writes one array to any file"
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
@click.argument("folder", metavar="OUT", type=OUT_PATH)
@click.option("--rules", metavar="NAME|FILE", required=True, help="A recipe by its name, or rules as JSON.")
@click.option("--dry-run", is_flag=True, help="Print how each tensor would be converted, and stop.")
@click.option(
    "--max-shard",
    type=byte_size,
    metavar="SIZE",
    default="5GB",
    show_default=True,
    help="Size limit of a file; only a larger tensor exceeds it.",
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
