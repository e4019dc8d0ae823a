"""The commands `demo` and `warmup`: time this machine, and compile its kernels in advance."""

from __future__ import annotations

from pathlib import Path

import click

from fastindex.cli.group import fail, notice
from fastindex.cli.options import DEVICE
from fastindex.cli.progress import ProgressBar


@click.command(short_help="The main job on this machine, checked and timed.")
@DEVICE
def demo(device: str) -> None:
    """Relayout 256 MiB, convert ten million indices, check both against NumPy, print the speed."""
    from fastindex.cli.demo import Cpu, Gpu, run_demo

    with ProgressBar("compiling kernels", patience_seconds=2.0) as progress:
        passed = run_demo(click.echo, Gpu() if device == "cuda" else Cpu(), progress=progress)
    if not passed:
        fail("the demo found wrong results", 1)


@click.command(short_help="Compile all kernels now.")
@click.option(
    "--target",
    "targets",
    metavar="NAMES",
    help="Compile for other processors: x86-64-v3, x86-64-v4, aarch64, separated by commas.",
)
@click.option(
    "--output",
    metavar="DIR",
    help="With --target: the folder of the kernels; by default that of the package, from which it loads them.",
)
def warmup(targets: str | None, output: str | None) -> None:
    """Compile all kernels now, so that no later call has to wait; they are kept on disk.

    With --target, for container images and wheels: processors of these levels load the kernels of the folder "compiled"
    in the package, and compile nothing.
    """
    from fastindex.runtime.first_answer import COMPILED_FOLDER, TO_COMPILE_BYTES, check_address_space

    if output is not None and targets is None:
        raise click.UsageError("--output is for --target: the kernels of this processor are kept in its cache")
    check_address_space(TO_COMPILE_BYTES)
    from fastindex.moving.warmup import warm_up, warm_up_for
    from fastindex.runtime.levels import level_of

    with ProgressBar("compiling") as progress:
        if targets is None:
            notice(f"{warm_up(progress)} kernels are ready")
            return
        folder = COMPILED_FOLDER if output is None else Path(output)
        count = warm_up_for([level_of(name.strip()) for name in targets.split(",")], folder, progress)
    notice(f"{count} kernels are in {folder}")
