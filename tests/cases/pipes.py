"""Named pipes where files are expected: whoever opens one waits for its other end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")


@contextmanager
def pipe(path: Path) -> Iterator[None]:
    """A pipe that the block must not open. If it does, the test fails instead of waiting."""

    def end() -> None:
        os.close(os.open(path, os.O_WRONLY))

    os.mkfifo(path)
    writer = threading.Thread(target=end, daemon=True)
    writer.start()
    try:
        yield
        assert writer.is_alive(), f"{path} was opened"
    finally:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writer.join(HANG_SECONDS)
        os.close(reader)
        path.unlink()
