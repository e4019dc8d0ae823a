"""The command line: ``fastindex COMMAND``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

import fastindex
from fastindex.cli.progress import ProgressBar

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {name: 1 << 10 * power for power, letter in enumerate("KMGT", 1) for name in (letter, f"{letter}IB")}


class CommandLine(click.Group):
    """The group of all commands; whatever goes wrong in one ends in a line on stderr and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command.

        Errors end the process with status 1, Ctrl-C with 130, a reader that has gone with 141, as the shell
        counts signals. click itself ends it with 2 where the command line is wrong.
        """
        _replace_unprintable()
        try:
            with _signals_handled():
                result = super().invoke(ctx)
                if sys.stdout is not None:
                    sys.stdout.flush()
                return result
        except click.UsageError as error:
            raise _with_hint(error) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except BrokenPipeError:
            _close_stdout()
            sys.exit(141)
        except Exception as error:
            _fail(_message_of(error), 1)


def _with_hint(error: click.UsageError) -> click.UsageError:
    """Tell what may be meant where the shell has made two arguments of a shape."""
    takes_shape = error.ctx is not None and any("shape" in name for name in error.ctx.params)
    if not takes_shape or "unexpected extra argument" not in error.message:
        return error
    return click.UsageError(f"{error.message}. Quote a shape: {{ and ( mean something to the shell.", error.ctx)


def _replace_unprintable() -> None:
    """Let text through that the encoding of the terminal lacks, as question marks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if encoding.lower().replace("-", "") != "utf8" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


@contextmanager
def _signals_handled() -> Iterator[None]:
    """End at once on a signal, without a traceback and without leaving unfinished files.

    An exception would be lost where the signal arrives in a callback or in the end of an object.
    """

    def leave(number: int, frame: object) -> None:
        files = sys.modules.get("fastindex.files.writing")
        if files is not None:
            files.remove_unfinished()
        if sys.stderr is not None and sys.stderr.isatty():
            # A progress bar hides the cursor.
            os.write(2, b"\r\x1b[K\x1b[?25h")
        if number == signal.SIGINT:
            os.write(2, b"fastindex: interrupted\n")
        os._exit(128 + number)

    before = {}
    # Outside the main thread, signals are somebody else's; so are those that have a handler.
    with suppress(ValueError):
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _close_stdout() -> None:
    """Keep the interpreter from writing to a pipe that nobody reads, when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> None:
    click.echo(f"fastindex: {message}", err=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        _close_stdout()
    sys.exit(status)


def _message_of(error: Exception) -> str:
    if isinstance(error, fastindex.FastIndexError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    where = ""
    trace = error.__traceback__
    while trace is not None:
        where = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"internal error{where}: {type(error).__name__}: {error}"


def byte_size(text: str) -> int:
    """Read a number of bytes with a unit.

    Raises
    ------
    click.BadParameter
        Not a number above 0 with a unit.

    Examples
    --------
    >>> byte_size("1GiB"), byte_size("1.5 MB"), byte_size("4096")
    (1073741824, 1500000, 4096)
    """
    number = text.rstrip("BbIiKkMmGgTt ")
    unit = _UNITS.get(text[len(number) :].strip().upper(), 0)
    try:
        size = int(float(number) * unit)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise click.BadParameter(f"{text!r} is no size; give bytes, or a number with KiB, MiB, GiB or TiB")
    return size


#: The most lines of HLO that are named as unreadable.
_PROBLEMS = 20

_PATH = click.Path(path_type=str)
_DEVICE = click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Where to compute.")


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fastindex.__version__, prog_name="fastindex")
def main() -> None:
    """Where the elements of an array live in memory under XLA's layouts.

    SHAPE is XLA's text of a shape and its layout, such as 'bf16[1024,1000]{1,0:T(8,128)(2,1)}'. Quote it for the shell.

    A file whose name ends in .npy is a NumPy file; any other is raw bytes.
    """


@main.command()
@click.argument("shape")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(shape: str, as_json: bool) -> None:
    """Print sizes, strides and padding of SHAPE, and what each dimension costs."""
    from fastindex.advice.sentences import explain
    from fastindex.advice.sentences import info as numbers

    click.echo(json.dumps(numbers(shape)) if as_json else explain(shape))


@main.command()
@click.argument("shape")
@click.option("--svg", type=_PATH, help="Write the picture to this file instead.")
def show(shape: str, svg: str | None) -> None:
    """Draw SHAPE: the array with the slot of each element, tiles, padding, and the memory in order."""
    picture = fastindex.draw(shape)
    if svg is None:
        click.echo(picture.text(), color=True)
    else:
        from fastindex.files.writing import write_file

        write_file(svg, picture.svg().encode())
        _notice(f"wrote {svg}")


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("shape")
@click.argument("numbers", nargs=-1, metavar="[I J ...]")
@click.option("--linear", "slot", metavar="[N]", is_flag=False, flag_value="", help="Back: the element in slot N.")
@click.option(
    "--input", "source", type=_PATH, help="Read a .npy file: coordinates (rank, ...), or slots with --linear."
)
@click.option("--output", "target", type=_PATH, help="Write the answers to this file.")
def index(shape: str, numbers: tuple[str, ...], slot: str | None, source: str | None, target: str | None) -> None:
    """Print the slot in which the element I J ... of SHAPE lives, or with --linear the element in slot N.

    \b
    fastindex index 'f32[3,5]{1,0:T(2,2)}' 2 3
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --linear 17
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --input coordinates.npy --output slots.npy
    fastindex index 'f32[3,5]{1,0:T(2,2)}' --linear --input slots.npy --output coordinates.npy
    """
    parsed = fastindex.Shape.parse(shape)
    if source is None and target is None:
        if slot is None:
            click.echo(_slot_text(parsed, _integers(numbers)))
            return
        slots = _integers((slot, *numbers) if slot else numbers)
        if not slots:
            raise click.UsageError("--linear needs a slot, or --input with a file of slots")
        coordinates = fastindex.multi_index(parsed, slots)
        for place in range(len(slots)):
            click.echo(" ".join(str(part[place]) for part in coordinates))
        return
    if source is None or target is None:
        raise click.UsageError("--input and --output go together")
    if numbers or slot:
        raise click.UsageError("give numbers or --input, not both")
    from fastindex.files.jobs import linear_index_file, multi_index_file

    with ProgressBar("converting indices") as progress:
        convert = linear_index_file if slot is None else multi_index_file
        convert(source, target, parsed, progress)


def _integers(texts: tuple[str, ...]) -> list[int]:
    for text in texts:
        if text.startswith("--") or (text.startswith("-") and not text[1:].isdigit()):
            raise click.NoSuchOption(text)
    try:
        return [int(text) for text in texts]
    except ValueError:
        wrong = next(text for text in texts if not text.lstrip("-").isdigit())
        raise click.UsageError(f"{wrong!r} is no integer; write the coordinates with spaces in between: 2 3") from None


def _slot_text(shape: fastindex.Shape, coordinates: list[int]) -> str:
    from fastindex.shapes.shape_sizes import axes_of
    from fastindex.tiling.scalar_index import slot_of
    from fastindex.xla.index_queries import index_in_bounds

    if not index_in_bounds(shape, coordinates):
        # It says what is wrong with them; it also loads the compiler, which takes time.
        return str(fastindex.linear_index(shape, coordinates))
    return str(slot_of(axes_of(shape), coordinates))


@main.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("--shape", required=True, help="The array and its layout.")
def pack(source: str, target: str, shape: str) -> None:
    """Lay the array in IN out as SHAPE says, and write the physical buffer to OUT."""
    parsed = fastindex.Shape.parse(shape)
    from fastindex.files.jobs import pack_file

    with ProgressBar("packing") as progress:
        pack_file(source, target, parsed, progress)


@main.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("--shape", required=True, help="The array and its layout.")
def unpack(source: str, target: str, shape: str) -> None:
    """Read the physical buffer in IN, laid out as SHAPE says, and write the array to OUT."""
    parsed = fastindex.Shape.parse(shape)
    from fastindex.files.jobs import unpack_file

    with ProgressBar("unpacking") as progress:
        unpack_file(source, target, parsed, progress)


@main.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("--from", "source_shape", metavar="SHAPE", required=True, help="How the buffer in IN is laid out.")
@click.option("--to", "target_shape", metavar="SHAPE", required=True, help="How to lay it out in OUT.")
@click.option(
    "--max-memory",
    type=byte_size,
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="What to have in memory at a time, this program included.",
)
@_DEVICE
def relayout(source: str, target: str, source_shape: str, target_shape: str, max_memory: int, device: str) -> None:
    """Move the physical buffer in IN from one layout to another, and write it to OUT.

    Files may be larger than memory.
    """
    parsed = fastindex.Shape.parse(source_shape), fastindex.Shape.parse(target_shape)
    from fastindex.files.jobs import relayout_file

    with ProgressBar("relayout") as progress:
        relayout_file(source, target, *parsed, progress, max_memory, device)


@main.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_PATH)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Print only the first N shapes.")
@click.option(
    "--sort",
    type=click.Choice(["waste", "bytes", "count", "ratio"]),
    default="waste",
    show_default=True,
    help="What comes first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(files: tuple[str, ...], top: int | None, sort: Any, as_json: bool) -> None:
    """Report the buffers of HLO modules: how much is padding, why, and the cheapest way to avoid it.

    FILE is HLO text, a folder of dumps, or - for stdin.
    """
    if "-" in files and len(files) > 1:
        raise click.UsageError("stdin (-) cannot be combined with files")
    source: Any = sys.stdin.buffer if files == ("-",) else [Path(file) for file in files]
    found = fastindex.report(source, show_progress=True)
    if as_json:
        click.echo(json.dumps(found.to_json(sort, top)))
    else:
        from rich.console import Console

        width = None if sys.stdout.isatty() else 110
        found.print(Console(file=sys.stdout, width=width), sort, top)
    for problem in found.problems[:_PROBLEMS]:
        click.echo(f"fastindex: {problem}", err=True)
    if len(found.problems) > _PROBLEMS:
        click.echo(f"fastindex: {len(found.problems) - _PROBLEMS} more lines could not be read", err=True)


@main.command()
@_DEVICE
def demo(device: str) -> None:
    """Relayout 256 MiB, convert ten million indices, check both against NumPy, print the speed."""
    from fastindex.cli.demo import Cpu, Gpu, run_demo

    if not run_demo(click.echo, Gpu() if device == "cuda" else Cpu()):
        _fail("the demo found wrong results", 1)


@main.command()
def warmup() -> None:
    """Compile all kernels now, so that no later call has to wait; they are kept on disk."""
    from fastindex.cpu.warmup import warm_up

    with ProgressBar("compiling") as progress:
        count = warm_up(progress)
    _notice(f"{count} kernels are ready")


def _notice(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        click.echo(text, err=True)
