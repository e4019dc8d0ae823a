"""The command line, ``fastindex COMMAND``: arguments that commands share, progress, notices, output files, errors."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import click

import fastindex
from fastindex.cli.process import signals_handled
from fastindex.errors import FastIndexError, cut_message
from fastindex.show.spelling import visible
from fastindex.terminal import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


#: The modules that write to stdout.
_PRINTING = "click.utils", __name__


#: Commands, by the names of Python functions that users type in their place.
_COMMANDS_OF = {
    "check": "verify",
    "draw": "show",
    "explain": "info",
    "layout_copies": "copies",
    "linear_index": "index",
    "multi_index": "index --linear",
    "open_checkpoint": "verify",
    "pack_checkpoint": "pack",
    "runs": "index --runs",
    "shard_index": "index --sharding",
    "shards": "shard",
    "tile_index": "index --tile",
}


class CommandLine(click.Group):
    """The group of all commands; any error ends in one line on stderr and an exit status."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Read the command line and run it, with signals handled from the first moment on."""
        with signals_handled():
            return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the options of the group; ``--help`` and ``--version`` print here."""
        with _errors_in_one_line():
            return super().make_context(*args, **kwargs)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for the name of a Python function, fail with the name of its command."""
        meant = _COMMANDS_OF.get(args[0])
        if meant is not None:
            ctx.fail(f"{args[0]} is a function of Python; the command is 'fastindex {meant}'.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        _replace_unprintable()
        with _errors_in_one_line():
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """End the process on errors of the block.

    The status is 1; 130 after Ctrl-C; 141 after a broken pipe, by the shell's convention for signals; and 2 for a wrong
    command line.
    """
    try:
        yield
    except (click.exceptions.Exit, click.Abort):
        raise
    except click.ClickException as error:
        # If stderr cannot be written, the exit status remains.
        with suppress(OSError):
            (_with_hint(error) if isinstance(error, click.UsageError) else error).show()
        end(error.exit_code)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except BrokenPipeError:
        end(141)
    except Exception as error:
        fail(_message_of(error), 1)


def _with_hint(error: click.UsageError) -> click.UsageError:
    """Add a hint if the shell may have split a shape into two arguments."""
    takes_shape = error.ctx is not None and any("shape" in name for name in error.ctx.params)
    if not takes_shape or "unexpected extra argument" not in error.message:
        return error
    return click.UsageError(f"{error.message}. Quote a shape: {{ and ( mean something to the shell.", error.ctx)


def _replace_unprintable() -> None:
    """Print characters that the terminal's encoding lacks as question marks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if encoding.lower().replace("-", "") != "utf8" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def _is_of_printing(error: Exception) -> bool:
    """Whether an error was raised by code that prints to stdout."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") in _PRINTING


def _message_of(error: Exception) -> str:
    if isinstance(error, FastIndexError):
        return str(error)
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "the system grants no more threads; see ulimit -u and -v"
    if isinstance(error, OSError) and error.strerror:
        if error.errno == errno.ENOMEM and error.filename is None:
            return "not enough memory"
        if error.filename is None:
            return f"stdout: {error.strerror}" if _is_of_printing(error) else error.strerror
        return f"{os.fsdecode(error.filename) or repr('')}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    where = ""
    trace = error.__traceback__
    while trace is not None:
        where = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"internal error{where}: {type(error).__name__}: {error}"


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fastindex.__version__, prog_name="fastindex")
def main() -> None:
    """Where the elements of an array live in memory under XLA's layouts.

    SHAPE is XLA's text of a shape and its layout, such as 'bf16[1024,1000]{1,0:T(8,128)(2,1)}'. Quote it for the shell.

    A file whose name ends in .npy is a NumPy file; any other is raw bytes.

    \b
    Examples:
      fastindex info 'f32[100000,3]{1,0:T(8,128)}'
      fastindex show 'f32[3,5]{1,0:T(2,2)}' --html layout.html
      fastindex index 'bf16[1024,1000]{1,0:T(8,128)(2,1)}' 9 130
      fastindex relayout in.raw out.raw --from 'f32[8,300]' --to 'f32[8,300]{1,0:T(8,128)}'
      fastindex report dump/
      fastindex copies dump/

    \b
    Results go to stdout, notices and progress to stderr, and only on a terminal.
    Exit status: 0 done, 1 failed with one line on stderr, 2 wrong usage, 130 interrupted.

    \b
    Environment:
      FASTINDEX_NUM_THREADS        threads to compute with
      FASTINDEX_SPIN_MICROSECONDS  how long threads poll for more work before they sleep
      NUMBA_CACHE_DIR              where compiled kernels are kept
      COLUMNS                      how wide tables are
      NO_COLOR                     no colours
    """


_PATIENCE_SECONDS = 1.0


class ProgressBar:
    """A bar on stderr. Nothing is shown if stderr is not a terminal, or for a job shorter than a second.

    Parameters
    ----------
    title : str
        Title of the bar.
    patience_seconds : float
        How long a job may take without a bar.
    """

    def __init__(self, title: str, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._title = title
        self._patience_seconds = patience_seconds
        self._total = 0
        self._done = 0
        self._began = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._is_wanted = is_terminal(sys.stderr)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, total: int) -> None:
        """Receive the total amount of work."""
        self._total = total
        self._began = time.monotonic()

    def advance(self, count: int) -> None:
        """Receive the amount of work done since the last call."""
        self._done += count
        if not self._is_wanted or time.monotonic() - self._began < self._patience_seconds:
            return
        if self._bar is None:
            self._show()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done)
            if self._done == self._total:
                # Stop it now: further output must not be printed into the bar.
                self._bar.stop()
                self._is_wanted = False

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._title, total=self._total)
        self._bar.start()


def notice(text: str) -> None:
    """Print a line to stderr if it is a terminal."""
    if is_terminal(sys.stderr):
        click.echo(text, err=True)


def check_ending(option: str, path: str | None, ending: str) -> None:
    """Raise an error for an output file that is not named after its format."""
    if path is not None and not path.lower().endswith(f".{ending}"):
        raise click.UsageError(f"{option} writes {ending.upper()}: the name must end in .{ending}, got {path!r}")


def write_document(path: str, text: str, force: bool) -> None:
    """Write a picture or a page to a file."""
    from fastindex.jobs.writing import write_file

    write_file(path, text.encode(), force)
    notice(f"wrote {path}")


def end(status: int) -> NoReturn:
    """End the process; pending output is not written again if that fails, which would change the status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def fail(message: str, status: int) -> NoReturn:
    """Print a line to stderr and end the process."""
    with suppress(OSError):
        click.echo(visible(cut_message(f"fastindex: {message}")), err=True)
    end(status)


# Arguments that several commands share

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {name: 1 << 10 * power for power, letter in enumerate("KMGT", 1) for name in (letter, f"{letter}IB")}

#: Input path, not checked here: the code that opens it reports what is wrong.
PATH = click.Path(path_type=str, readable=False)


class _OutPath(click.Path):
    """Output path: need not be readable; it is replaced by rename."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-":
            self.fail("the output is a file, not standard output; ./- is a file called -", param, ctx)
        return super().convert(value, param, ctx)


#: Output path, for files and folders.
OUT_PATH = _OutPath(path_type=str, readable=False)
#: Whether to replace a read-only file, and the input.
FORCE = click.option("--force", is_flag=True, help="Replace an existing file even where it is read-only or the input.")
#: Where to compute.
DEVICE = click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Where to compute.")
#: Whether to print JSON.
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
#: Which casts are allowed.
CASTING = click.option(
    "--casting",
    type=click.Choice(["no", "equiv", "safe", "same_kind", "unsafe"]),
    default="same_kind",
    show_default=True,
    help="Which casts to other element types are allowed, by NumPy's rule.",
)


def integer(text: str) -> int:
    """Parse an integer; Python rejects thousands of digits, and some digits other than 0 to 9.

    Raises
    ------
    click.BadParameter

    Examples
    --------
    >>> integer("-12")
    -12
    """
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(
            f"{text[:40]!r} with its {len(text)} characters is not an integer of 64 bits"
        ) from None


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
        raise click.BadParameter(f"{text!r} is not a size; give bytes, or a number with KiB, MiB, GiB or TiB")
    return size


#: How much memory a job on files may use.
MAX_MEMORY = click.option(
    "--max-memory",
    type=byte_size,
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="Memory limit of the process, this program included.",
)


def check_names(source: str, target: str, force: bool) -> None:
    """Raise an error for an output that would replace the input without --force."""
    if force:
        return
    with suppress(OSError):
        if os.path.samefile(source, target) and (os.path.isfile(source) or os.path.isdir(source)):
            raise click.UsageError(
                f"IN and OUT are the same file, {source!r}; give OUT another name, or --force to replace IN"
            )


def check_memory(max_memory: int) -> None:
    """Raise an error for a limit that does not hold the program itself."""
    from fastindex.moving.box_jobs import LEAST_MEMORY_BYTES

    if max_memory < LEAST_MEMORY_BYTES:
        raise click.UsageError(
            f"--max-memory: {max_memory} bytes are too few for the program itself; give at least "
            f"{LEAST_MEMORY_BYTES >> 20}MiB"
        )
