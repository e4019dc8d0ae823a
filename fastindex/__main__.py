"""``python -m fastindex`` and ``fastindex``: the command line."""

from __future__ import annotations

import os
import signal
import threading
from typing import NoReturn


def leave_quietly(number: int, frame: object) -> NoReturn:
    """Exit at once on Ctrl-C, while there is nothing to clean up yet."""
    os.write(2, b"fastindex: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line; handle Ctrl-C before its imports, which take longer than some commands."""
    is_ours = threading.current_thread() is threading.main_thread()
    if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_quietly)
    from fastindex.cli.process import occupy_closed_streams

    occupy_closed_streams()
    from fastindex.cli.commands import main

    main(prog_name="fastindex")


if __name__ == "__main__":
    main()
