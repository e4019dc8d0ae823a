"""The process that compiles for a TPU that is described: ``python -m fastindex.trials.child FD``.

It takes requests from a connection and answers each with a `CompiledProgram`, or with a line that says why not. libtpu
reads its environment once and ends the process on some programs, so it lives here.
"""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection

from fastindex.trials.jax_programs import (
    CompiledProgram,
    NamedSpec,
    Wanted,
    compile_with_layouts,
    imported,
    topology_shardings,
)

Request = tuple[
    bytes,
    str,
    tuple[tuple[Wanted, ...], tuple[Wanted, ...]],
    tuple[list[NamedSpec | None], list[NamedSpec | None]],
    tuple[int, ...],
]


def answer(request: Request) -> CompiledProgram | str:
    """Compile a variant; return a line that says why if that fails."""
    serialized, topology, layouts, specs, donated = request
    try:
        function, avals = imported(serialized)
        shardings = topology_shardings(topology, [*specs[0], *specs[1]])
        inputs, outputs = shardings[: len(specs[0])], shardings[len(specs[0]) :]
        wanted = layouts[1]
        if any(spec is not None for spec in (*specs[0], *specs[1])):
            # Over several devices, results without a sharding keep what XLA gives them.
            outputs = [None if spec is None else item for spec, item in zip(specs[1], outputs, strict=True)]
        return compile_with_layouts(function, avals, (layouts[0], wanted), (inputs, outputs), donated)
    except Exception as error:
        # JAX and libtpu raise errors of many classes.
        return str(error).strip().split("\n")[0][:300] or type(error).__name__


def main() -> None:
    """Answer requests until the other end closes."""
    # An interrupt is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(int(sys.argv[1])) as pipe:
        while True:
            try:
                request = pipe.recv()
            except (EOFError, OSError):
                return
            pipe.send(answer(request))


if __name__ == "__main__":
    main()
