"""The commands `demo` and `warmup`: time this machine, and compile its kernels in advance."""

from __future__ import annotations

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
def warmup() -> None:
    """Compile all kernels now, so that no later call has to wait; they are kept on disk."""
    from fastindex.runtime.first_answer import TO_COMPILE_BYTES, check_address_space

    check_address_space(TO_COMPILE_BYTES)
    from fastindex.moving.warmup import warm_up

    with ProgressBar("compiling") as progress:
        count = warm_up(progress)
    notice(f"{count} kernels are ready")
