"""jaxlib in a separate process, since it aborts on some inputs; run as a script this file is that process."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """What jaxlib made of an input: canonical text and proto, or an error; neither where it aborted."""

    text: str | None = None
    proto: bytes | None = None
    error: str | None = None

    @property
    def aborted(self) -> bool:
        return self.text is None and self.error is None


class JaxlibProcess:
    """Asks jaxlib one question at a time; a new process replaces one that aborts."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def parse(self, text: str) -> Answer:
        """Read the text of a shape; a bare array is not validated, an array in a tuple is."""
        return self._ask({"text": text})

    def load(self, proto: bytes) -> Answer:
        """Read and validate a serialised ShapeProto, as the result of a computation."""
        return self._ask({"proto": proto.hex()})

    def printed(self, module: str, **options: bool) -> Answer:
        """Read the text of a module and print it, with `HloPrintOptions` that differ from the default."""
        return self._ask({"module": module, "options": options})

    def _ask(self, question: dict[str, Any]) -> Answer:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self._stop()
            return Answer()
        answer = json.loads(line)
        proto = answer.get("proto")
        return Answer(answer.get("text"), None if proto is None else bytes.fromhex(proto), answer.get("error"))

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        process.kill()
        process.wait()


def _varint(value: int) -> bytes:
    written = b""
    while value >= 0x80:
        written += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return written + bytes((value,))


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _module(shape: bytes) -> bytes:
    """Serialise a module that returns its parameter, which has the serialised shape; loading it validates the shape."""
    signature = _field(1, shape) + _field(2, shape) + _field(3, b"p")
    parameter = _field(1, b"p") + _field(2, b"parameter") + _field(3, shape) + _field(35, 1)
    computation = _field(1, b"e") + _field(2, parameter) + _field(4, signature) + _field(5, 1) + _field(6, 1)
    return _field(1, b"m") + _field(2, b"e") + _field(3, computation) + _field(4, signature) + _field(6, 1)


def _answer(question: dict[str, Any]) -> dict[str, str]:
    from jaxlib import _hlo, xla_client

    try:
        if "module" in question:
            options = _hlo.HloPrintOptions()
            for name, value in question["options"].items():
                setattr(options, name, value)
            return {"text": _hlo.hlo_module_from_text(question["module"]).to_string(options)}
        if "text" in question:
            shape = xla_client.Shape(question["text"])
        else:
            module = _hlo.HloModule.from_serialized_hlo_module_proto(_module(bytes.fromhex(question["proto"])))
            computation = _hlo.XlaComputation(module.as_serialized_hlo_module_proto())
            shape = computation.program_shape().result_shape()
        return {"text": str(shape), "proto": shape.to_serialized_proto().hex()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _serve() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
