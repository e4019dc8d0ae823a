"""The command line, ``fastindex COMMAND``, and how errors end it: one line on stderr and an exit status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

import fastindex
from fastindex.cli.output import end, fail
from fastindex.cli.process import signals_handled
from fastindex.errors import FastIndexError

#: The modules that write to stdout.
_PRINTING = "click.utils", "rich.console", __name__


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
      FASTINDEX_SPIN_MICROSECONDS  how long they look out for more work before they sleep
      NUMBA_CACHE_DIR              where compiled kernels are kept
      COLUMNS                      how wide tables are
      NO_COLOR                     no colours
    """
