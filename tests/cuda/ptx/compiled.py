"""CUDA C as PTX, by NVIDIA's compiler, where it is installed: kernels whose counts are in textbooks."""

from __future__ import annotations

from typing import Any


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    assert int(status) == 0, status
    return values[0] if values else None


def ptx_of(source: str, capability: tuple[int, int] = (9, 0)) -> str:
    """Return one kernel of CUDA C as PTX."""
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [f"--gpu-architecture=compute_{capability[0]}{capability[1]}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status):
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise ValueError(log.decode())
    text = b" " * _checked(nvrtc.nvrtcGetPTXSize(program))
    _checked(nvrtc.nvrtcGetPTX(program, text))
    return text.decode().rstrip("\0 ")
