"""The group of all commands, and how any of them ends: a line on stderr and an exit status."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from fastindex.advice.spelling import visible
from fastindex.cli.ending import signals_handled
from fastindex.errors import FastIndexError


class CommandLine(click.Group):
    """The group of all commands; any error ends in one line on stderr and an exit status."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Read the command line and run it, with signals handled from the first moment on."""
        with signals_handled():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command.

        Errors end the process with status 1, Ctrl-C with 130, a reader that has gone with 141, as the shell
        counts signals. click itself ends it with 2 where the command line is wrong.
        """
        _replace_unprintable()
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except click.UsageError as error:
            raise _with_hint(error) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            fail("interrupted", 130)
        except BrokenPipeError:
            _close_stdout()
            sys.exit(141)
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


def _close_stdout() -> None:
    """Keep the interpreter from writing to a pipe that nobody reads, when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, status: int) -> NoReturn:
    """Print a line to stderr and end the process."""
    click.echo(visible(f"fastindex: {message}"), err=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        _close_stdout()
    sys.exit(status)


def _message_of(error: Exception) -> str:
    if isinstance(error, FastIndexError):
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


def notice(text: str) -> None:
    """Print a line to stderr where it is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        click.echo(text, err=True)
