"""What NVIDIA's assembler makes of a kernel, without a GPU: registers, memory, instructions and their order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS


def tool(name: str) -> str | None:
    """A tool of NVIDIA's: of its wheel, or on the path."""
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / name
    return str(wheel) if wheel.exists() else shutil.which(name)


def require_the_successor() -> None:
    """Skip a test where numba-cuda-mlir is not installed."""
    if find_spec("numba_cuda_mlir") is None:
        if "ptx" in os.environ.get("FASTINDEX_REQUIRE", ""):
            pytest.fail("numba-cuda-mlir is not installed; pip install -e '.[test-cuda]'")
        pytest.skip("numba-cuda-mlir is not installed")


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel for one architecture.

    Attributes
    ----------
    registers, shared_bytes, spilled_bytes : int
    instructions : tuple of str
        In the order of the code, without predicates and operands.
    """

    registers: int
    shared_bytes: int
    spilled_bytes: int
    instructions: tuple[str, ...]

    @property
    def loads_in_flight(self) -> int:
        """How many 16-byte loads of GPU memory come before the first store of any kind."""
        stores = [i for i, name in enumerate(self.instructions) if name.startswith(("ST.", "STS", "STG"))]
        first = stores[0] if stores else len(self.instructions)
        return sum(bool(re.match(r"LDG\.E.*\.128", name)) for name in self.instructions[:first])


def code_of(ptx: str, capability: tuple[int, int], folder: Path) -> Code:
    """Assemble and disassemble; without ``nvdisasm`` there are no instructions."""
    source, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    ptxas = tool("ptxas")
    assert ptxas is not None, "ptxas is not installed; pip install -e '.[test-cuda]'"
    command = [ptxas, "-v", f"-arch=sm_{capability[0]}{capability[1]}", str(source), "-o", str(cubin)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert result.returncode == 0, result.stderr
    return Code(
        _number(r"Used (\d+) registers", result.stderr),
        _number(r"(\d+) bytes smem", result.stderr),
        sum(map(int, re.findall(r"(\d+) bytes (?:stack frame|spill \w+)", result.stderr))),
        tuple(_instructions(cubin)),
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _instructions(cubin: Path) -> list[str]:
    nvdisasm = tool("nvdisasm")
    if nvdisasm is None:
        return []
    text = subprocess.run(
        [nvdisasm, "-c", cubin], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    ).stdout
    found = re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", text)
    # After the end there is a jump to itself, and nothing to fill the line.
    while found and found[-1] in ("NOP", "BRA"):
        found.pop()
    return found
