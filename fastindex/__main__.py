"""``python -m fastindex`` and ``fastindex``: the command line."""

from __future__ import annotations

import os
import signal
import threading
from typing import NoReturn


def leave_quietly(number: int, frame: object) -> NoReturn:
    """End the process at Ctrl-C as long as nothing is there that could be left behind."""
    os.write(2, b"fastindex: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line; its imports take longer than some commands, and may be interrupted, too."""
    is_ours = threading.current_thread() is threading.main_thread()
    if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_quietly)
    from fastindex.cli.streams import occupy_closed_streams

    occupy_closed_streams()
    from fastindex.cli.commands import main

    main(prog_name="fastindex")


if __name__ == "__main__":
    main()
