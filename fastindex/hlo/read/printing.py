"""Print serialized modules as text with jaxlib, in a child process because damaged modules make jaxlib abort.

The child runs ``python -m fastindex.hlo.read.printing``. Requests on its stdin: an 8-byte length and a serialized
module. Replies on its stdout: one byte (1 for text, 0 for an error message), an 8-byte length and the text.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any, cast

from fastindex.errors import FastIndexError
from fastindex.first_use import PYTHON, child_environment

_CHUNK = 1 << 20
_COMMAND = [*PYTHON, "-m", "fastindex.hlo.read.printing"]
_PRINT = "print it where it was written, compiled.as_text() or XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text'"


class Printer:
    """Print modules in a child process, started for the first module and reused for the others."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Printer:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def text(self, serialized: bytes, name: str) -> Iterator[bytes]:
        """Yield the text of a serialized HloModuleProto.

        Raises
        ------
        FastIndexError
            jaxlib is not installed, cannot read the module, or aborted.
        """
        where = f"{name}: " if name else ""
        if not _has_jaxlib():
            raise FastIndexError(f"{where}a serialized HLO module, which jaxlib prints: pip install 'fastindex[jax]'")
        child = self._started()
        asked, answers = cast(IO[bytes], child.stdin), cast(IO[bytes], child.stdout)
        try:
            asked.write(len(serialized).to_bytes(8, "little"))
            asked.write(serialized)
            asked.flush()
            head = answers.read(9)
            if len(head) < 9:
                raise BrokenPipeError
            left = int.from_bytes(head[1:], "little")
            if not head[0]:
                reason = answers.read(left).decode("utf-8", "replace")
                raise FastIndexError(f"{where}jaxlib {_version()} cannot read the HLO module: {reason}; {_PRINT}")
            while left:
                chunk = answers.read(min(left, _CHUNK))
                if not chunk:
                    raise BrokenPipeError
                left -= len(chunk)
                yield chunk
        except BrokenPipeError:
            ended = self._reason(child.wait())
            self._end()
            raise FastIndexError(
                f"{where}jaxlib {_version()} {ended} while it read the HLO module: the file is damaged; {_PRINT}"
            ) from None
        except GeneratorExit:
            # The unread part of this reply would be taken for the next one.
            self._end()
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
            self._child = subprocess.Popen(
                _COMMAND,
                env=child_environment({"TF_CPP_MIN_LOG_LEVEL": "2"}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )
        return self._child

    def _reason(self, status: int) -> str:
        """Return how the child ended, with its last error message."""
        how = f"ended with {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        if self._log is None:
            return how
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - 4096, 0))
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        said = [line for line in lines if "Check fail" in line or line.startswith("F") or "Error" in line]
        return how + (f" ({said[0].strip()[:200]})" if said else "")

    def _end(self) -> None:
        child, log = self._child, self._log
        self._child = self._log = None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                # close() flushes, which fails once the child is gone.
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()
        if log is not None:
            log.close()


def _has_jaxlib() -> bool:
    return importlib.util.find_spec("jaxlib") is not None


def _version() -> str:
    try:
        return importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _module_class() -> Any:
    """Return jaxlib's HloModule class.

    Raises
    ------
    ImportError
        This version of jaxlib does not have the class in a known place.
    """
    try:
        from jaxlib import _hlo as classes
    except ImportError:
        from jaxlib import _jax as classes
    try:
        return classes.HloModule
    except AttributeError as error:
        raise ImportError(str(error)) from None


def _serve() -> None:
    """Serve requests in the child until stdin is closed."""
    # The parent handles interrupts, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = sys.stdin.buffer
    # Keep stdout for replies: whatever libraries print goes to stderr.
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module: Any = None
    while len(size := source.read(8)) == 8:
        data = source.read(int.from_bytes(size, "little"))
        try:
            module = module or _module_class()
            answer, is_text = module.from_serialized_hlo_module_proto(data).to_string().encode(), True
        except Exception as error:
            # jaxlib raises many classes of exceptions.
            line = str(error).strip().split("\n")[0][:300]
            answer, is_text = (line or type(error).__name__).encode("utf-8", "replace"), False
        target.write(bytes((is_text,)) + len(answer).to_bytes(8, "little"))
        target.write(answer)
        target.flush()


if __name__ == "__main__":
    _serve()
