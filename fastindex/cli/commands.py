"""All commands: those of the modules imported here, and `demo`, `warmup` and `completion`."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from fastindex.cli import indexing, moving, showing
from fastindex.cli.group import DEVICE, ProgressBar, fail, main, notice

__all__ = ["indexing", "main", "moving", "showing"]


@main.command(short_help="Move and index arrays on this machine, checked and timed.")
@DEVICE
def demo(device: str) -> None:
    """Relayout 256 MiB, convert ten million indices, check both against NumPy, print the speed."""
    from fastindex.cli.demo import Cpu, Gpu, run_demo

    with ProgressBar("compiling kernels", patience_seconds=2.0) as progress:
        passed = run_demo(click.echo, Gpu() if device == "cuda" else Cpu(), progress=progress)
    if not passed:
        fail("the demo found wrong results", 1)


@main.command(short_help="Compile all kernels now.")
@click.option(
    "--target",
    "targets",
    metavar="NAMES",
    help="Compile for other processors: x86-64-v3, x86-64-v4, aarch64, separated by commas.",
)
@click.option(
    "--output",
    metavar="DIR",
    help="With --target: the folder for the kernels; by default the one from which the package loads them.",
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
    from fastindex.runtime.machine_code import level_of

    with ProgressBar("compiling") as progress:
        if targets is None:
            notice(f"{warm_up(progress)} kernels are ready")
            return
        folder = COMPILED_FOLDER if output is None else Path(output)
        count = warm_up_for([level_of(name.strip()) for name in targets.split(",")], folder, progress)
    notice(f"{count} kernels are in {folder}")


@main.command(short_help="Print a script for shell completion.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands, options and file names.

    \b
    bash:  eval "$(fastindex completion bash)"                  in ~/.bashrc
    zsh:   eval "$(fastindex completion zsh)"                   in ~/.zshrc
    fish:  fastindex completion fish > ~/.config/fish/completions/fastindex.fish
    """
    chosen = get_completion_class(shell)
    assert chosen is not None
    click.echo(chosen(context.find_root().command, {}, "fastindex", "_FASTINDEX_COMPLETE").source())
