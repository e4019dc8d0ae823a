"""Child process that compiles for a TPU topology: ``python -m fastindex.trials.child FD``.

Reads requests from a connection and answers each with a `CompiledProgram` or a one-line error message. A separate
process, because libtpu reads its environment only once, and aborts on some programs.
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
    """Compile a variant; return a one-line error message if that fails."""
    serialized, topology, layouts, specs, donated = request
    try:
        function, avals = imported(serialized)
        shardings = topology_shardings(topology, [*specs[0], *specs[1]])
        inputs, outputs = shardings[: len(specs[0])], shardings[len(specs[0]) :]
        wanted = layouts[1]
        if any(spec is not None for spec in (*specs[0], *specs[1])):
            # On several devices, results without a sharding keep XLA's choice.
            outputs = [None if spec is None else item for spec, item in zip(specs[1], outputs, strict=True)]
        return compile_with_layouts(function, avals, (layouts[0], wanted), (inputs, outputs), donated)
    except Exception as error:
        # JAX and libtpu raise many classes of exceptions.
        return str(error).strip().split("\n")[0][:300] or type(error).__name__


def main() -> None:
    """Serve requests until the connection is closed."""
    # The parent handles interrupts, and ends this process.
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
