"""Compilers for variants: in this process for its own devices, or in a child process for a TPU topology.

The child runs ``python -m fastindex.trials.compilers FD``. It reads requests from a connection and answers each with a
`CompiledProgram` or a one-line error message. A separate process, because libtpu reads its environment only once, and
aborts on some programs.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Self

from fastindex.errors import FastIndexError
from fastindex.first_use import PYTHON, child_environment
from fastindex.trials.jax_programs import (
    CompiledProgram,
    FlatProgram,
    NamedSpec,
    Wanted,
    compile_with_layouts,
    exported,
    imported,
    named_spec,
    topology_shardings,
    with_constraints,
)

#: Requested dimension orders for loop carries: ((loop, element), dimensions from major to minor) pairs.
Constraints = tuple[tuple[tuple[int, int], tuple[int, ...]], ...]
#: A serialized program, the topology, layouts and shardings of arguments and results, and donated arguments.
_Request = tuple[
    bytes,
    str,
    tuple[tuple[Wanted, ...], tuple[Wanted, ...]],
    tuple[list[NamedSpec | None], list[NamedSpec | None]],
    tuple[int, ...],
]
_POLL_SECONDS = 0.1
#: Environment of libtpu, without which it searches for a TPU. It compiles for any topology, whatever the first entry.
_ENVIRONMENT: Mapping[str, str] = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class CompileError(FastIndexError):
    """The compiler rejected a variant, or aborted."""


class Compiler:
    """Compiles variants of one program; a context manager, whose end stops whatever is still running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        """Stop whatever is still running."""

    def compile(self, inputs: Sequence[Wanted], outputs: Sequence[Wanted], constraints: Constraints) -> CompiledProgram:
        """Compile a variant.

        Raises
        ------
        CompileError
            The compiler rejected the variant.
        """
        raise NotImplementedError


class LocalCompiler(Compiler):
    """Compile for the devices of this process."""

    def __init__(
        self, program: FlatProgram, shardings: tuple[Sequence[Any], Sequence[Any]], donated: Sequence[int]
    ) -> None:
        self._program = program
        self._shardings = shardings
        self._donated = donated

    def compile(self, inputs: Sequence[Wanted], outputs: Sequence[Wanted], constraints: Constraints) -> CompiledProgram:
        """Compile a variant; see `Compiler`."""
        program = with_constraints(self._program, dict(constraints)) if constraints else self._program
        try:
            return compile_with_layouts(
                program.function, program.avals, (inputs, outputs), self._shardings, self._donated
            )
        except Exception as error:
            # JAX raises many classes of exceptions.
            raise CompileError(_first_line(str(error))) from error


class TopologyCompiler(Compiler):
    """Compile for an absent TPU with libtpu, in a child process because it may abort or hang.

    Raises
    ------
    FastIndexError
        libtpu is not installed.
    """

    def __init__(
        self,
        program: FlatProgram,
        topology: str,
        shardings: tuple[Sequence[Any], Sequence[Any]],
        donated: Sequence[int],
        time_limit: float,
    ) -> None:
        self._time_limit = time_limit
        for module, package in (("libtpu", "libtpu"), ("flatbuffers", "flatbuffers")):
            if importlib.util.find_spec(module) is None:
                raise FastIndexError(
                    f"topology={topology!r} needs {package}: pip install 'fastindex[tpu]'; without a topology, the "
                    "program is compiled for the devices that are there"
                )
        self._program = program
        self._topology = topology
        self._specs: tuple[list[NamedSpec | None], list[NamedSpec | None]] = (
            [named_spec(item) for item in shardings[0]],
            [named_spec(item) for item in shardings[1]],
        )
        self._donated = tuple(donated)
        self._texts: dict[Constraints, bytes] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._log: IO[bytes] | None = None

    def compile(self, inputs: Sequence[Wanted], outputs: Sequence[Wanted], constraints: Constraints) -> CompiledProgram:
        """Compile a variant; see `Compiler`."""
        serialized = self._texts.get(constraints)
        if serialized is None:
            program = with_constraints(self._program, dict(constraints)) if constraints else self._program
            try:
                serialized = self._texts[constraints] = exported(program)
            except Exception as error:
                raise CompileError(f"JAX cannot export it: {_first_line(str(error))}") from error
        request = serialized, self._topology, (tuple(inputs), tuple(outputs)), self._specs, self._donated
        answer = self._ask(request)
        if isinstance(answer, str):
            raise CompileError(answer)
        return answer

    def _ask(self, request: _Request) -> CompiledProgram | str:
        if self._pipe is None:
            self._start()
        pipe, child = self._pipe, self._child
        if pipe is None or child is None:
            return "the compiler could not be started"
        try:
            pipe.send(request)
            last = time.monotonic() + self._time_limit
            # Poll with short timeouts, so that interrupts are handled.
            while not pipe.poll(_POLL_SECONDS):
                if time.monotonic() > last:
                    self._end()
                    return f"it took more than {self._time_limit:g} seconds, the most allowed"
            answer: CompiledProgram | str = pipe.recv()
            return answer
        except (EOFError, OSError):
            status = child.wait()
            reason = self._last_line()
            self._end()
            return f"libtpu ended with status {status}" + (f": {reason}" if reason else "")

    def _start(self) -> None:
        ours, theirs = Pipe()
        log = self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._child = subprocess.Popen(
            [*PYTHON, "-m", "fastindex.trials.compilers", str(theirs.fileno())],
            env=child_environment(_ENVIRONMENT),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._pipe = ours

    def _last_line(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - 4096, 0))
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        errors = [line for line in lines if "Check fail" in line or line.startswith("F")]
        return _first_line((errors or lines or [""])[-1])

    def _end(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._log is not None:
            self._log.close()
        self._pipe, self._child, self._log = None, None, None


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:300]


def _answer(request: _Request) -> CompiledProgram | str:
    """Compile a variant; return a one-line error message if that fails."""
    serialized, topology, layouts, specs, donated = request
    try:
        function, avals = imported(serialized)
        shardings = topology_shardings(topology, [*specs[0], *specs[1]])
        inputs, outputs = shardings[: len(specs[0])], shardings[len(specs[0]) :]
        if any(spec is not None for spec in (*specs[0], *specs[1])):
            # On several devices, results without a sharding keep XLA's choice.
            outputs = [None if spec is None else item for spec, item in zip(specs[1], outputs, strict=True)]
        return compile_with_layouts(function, avals, layouts, (inputs, outputs), donated)
    except Exception as error:
        # JAX and libtpu raise many classes of exceptions.
        return _first_line(str(error)) or type(error).__name__


def _serve() -> None:
    """Serve requests in the child until the connection is closed."""
    # The parent handles interrupts, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(int(sys.argv[1])) as pipe:
        while True:
            try:
                request = pipe.recv()
            except (EOFError, OSError):
                return
            pipe.send(_answer(request))


if __name__ == "__main__":
    _serve()
