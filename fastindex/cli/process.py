"""The process of a command: standard streams that the shell has closed (``>&-``), and signals that end it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from fastindex.terminal import is_terminal

_OF_PYTHON = signal.SIG_DFL, signal.default_int_handler
_NAMES = "SIGINT", "SIGTERM", "SIGHUP"
_WRONG_WAY = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))

#: Functions that stop other threads and processes that write.
_to_stop: list[Callable[[], None]] = []


def occupy_closed_streams() -> None:
    """Open the null device as descriptors 0, 1 and 2 where they are closed.

    Otherwise the next opened file would get the number, and messages for stderr would be written into it. It is opened
    in the wrong direction, so reading stdin or writing to stdout fails as on a closed file; Python would drop the
    output, and a command would seem to have worked.
    """
    for number, (name, flags) in enumerate(_WRONG_WAY):
        try:
            os.fstat(number)
            continue
        except OSError:
            # Opening returns the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, flags), True)
        if getattr(sys, name) is None:
            stream: Any = open(number, "rww"[number], closefd=False)  # noqa: SIM115
            stream.buffer.raw.name = f"<{name}>"
            setattr(sys, name, stream)


class EndedBySignalError(BaseException):
    """Raised by a signal within `signals_raised`; a BaseException, so that error handlers do not catch it.

    Parameters
    ----------
    number : int
        The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process by a signal, without a traceback and without unfinished files."""
    stderr = 2
    if _to_stop:
        # Discard what other threads and processes print about their end.
        stderr = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for stop in _to_stop:
        with suppress(Exception):
            stop()
    # Until that module is imported there is nothing to remove.
    remove_unfinished = getattr(sys.modules.get("fastindex.jobs.writing"), "remove_unfinished", None)
    if remove_unfinished is not None:
        remove_unfinished()
    if is_terminal(sys.stderr):
        # A progress bar hides the cursor.
        os.write(stderr, b"\r\x1b[K\x1b[?25h")
    if number == signal.SIGINT:
        os.write(stderr, b"fastindex: interrupted\n")
    os._exit(128 + number)


@contextmanager
def signals_handled() -> Iterator[None]:
    """Exit at once on a signal.

    An exception would be lost if the signal arrived in a callback or a finalizer.
    """
    before = {}
    # Install handlers only in the main thread; never replace handlers of other code.
    with suppress(ValueError):
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is not None and (signal.getsignal(number) in _OF_PYTHON or _is_of_main(signal.getsignal(number))):
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_of_main(handler: object) -> bool:
    """Whether a handler is the one that `fastindex.__main__` sets for its imports."""
    return getattr(handler, "__name__", "") == "leave_quietly"


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function on a signal during the block, before unfinished files are removed."""
    _to_stop.append(stop)
    try:
        yield
    finally:
        _to_stop.remove(stop)


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raise an exception in the block at the first signal, so that its clean-up runs, and then end the process.

    A second signal ends it at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        restore()
        raise EndedBySignalError(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) is leave}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    except EndedBySignalError as ended:
        leave(ended.number, None)
    finally:
        restore()
