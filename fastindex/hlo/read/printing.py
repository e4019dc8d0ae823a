"""Print serialized modules as text with jaxlib, in a child process because jaxlib may abort."""

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
from types import TracebackType
from typing import IO, cast

from fastindex.errors import FastIndexError

_CHUNK = 1 << 20
_COMMAND = [sys.executable, "-m", "fastindex.hlo.read.child"]
_PRINT = "print it where it was written, compiled.as_text() or XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text'"


class Printer:
    """Print modules in a child process, started for the first module and reused for the others."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Printer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
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
