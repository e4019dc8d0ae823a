"""What libtpu answers while layouts of some programs are tried; ``python trial_programs.py`` records it.

Each file of the folder ``trials`` beside this one holds the variants of a program of ``copy_programs.py``, and what
compiling each says. The texts are those of the compiler without ``backend_config``, which is most of them.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "trials"
#: Programs of ``copy_programs.py``.
NAMES = (
    "decoder_cache_v5e", "embedding_v4", "points_v5e", "attention_v5e", "nchw_v5e", "scanned_weights_v5e",
    "decoder_updates_v5e",
)  # fmt: skip


def programs() -> dict[str, Any]:
    """Return the programs by name. Imports JAX."""
    sys.path.insert(0, str(HERE))
    import copy_programs

    return copy_programs.programs()


def key_of(inputs: Sequence[Any], outputs: Sequence[Any], constraints: Any) -> str:
    """Return a variant as text."""
    return json.dumps([list(inputs), list(outputs), list(constraints)])


class Recorder:
    """A compiler that keeps what another one answers."""

    def __init__(self, compiler: Any) -> None:
        self._compiler = compiler
        self.answers: dict[str, Any] = {}

    def __enter__(self) -> Recorder:
        self._compiler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._compiler.__exit__(kind, error, trace)

    def compile(self, inputs: Any, outputs: Any, constraints: Any) -> Any:
        """Compile a variant, and keep the answer."""
        from fastindex.trials.compilers import CompileError

        key = key_of(inputs, outputs, constraints)
        try:
            found = self._compiler.compile(inputs, outputs, constraints)
        except CompileError as error:
            self.answers[key] = str(error)
            raise
        text = (
            re.sub(r", backend_config=\{[^\n]*", "", found.text)
            .replace(f"{HERE}/", "")
            .replace(f"{HERE.parents[2]}/", "")
        )
        self.answers[key] = [text, found.memory, found.inputs, found.outputs]
        return found


def main() -> None:
    """Record all programs."""
    from fastindex.trials import try_layouts as module

    FOLDER.mkdir(exist_ok=True)
    for name, program in programs().items():
        if name not in NAMES:
            continue
        recorders: list[Recorder] = []
        made = module.TopologyCompiler

        def recording(*arguments: Any, made: Any = made, recorders: list[Recorder] = recorders) -> Recorder:
            recorders.append(Recorder(made(*arguments)))
            return recorders[-1]

        module.TopologyCompiler = recording  # type: ignore[assignment, misc]
        found = module.try_layouts(
            program.function, *program.arguments, topology=program.topology, donate_argnums=program.donated
        )
        module.TopologyCompiler = made  # type: ignore[misc]
        data = json.dumps(recorders[0].answers).encode()
        (FOLDER / f"{name}.json.xz").write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        print(
            name, len(found.trials), found.best.name, found.base.moved_nbytes, found.best.trial.moved_nbytes, flush=True
        )
        print(found)


if __name__ == "__main__":
    main()
