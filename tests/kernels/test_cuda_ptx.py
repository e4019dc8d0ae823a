"""The GPU kernels as PTX, compiled where there is no GPU: 16-byte accesses, no divisions, no local memory.

It needs the extra ``test-cuda``: numba-cuda and NVIDIA's compiler, of one version, for PTX that its assembler reads.
Where they are missing these tests are skipped, unless ``FASTINDEX_REQUIRE`` names ``ptx``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS
from tests.cuda.ptx.emulator import encoded
from tests.kernels.cuda_code import Code, code_of, require_the_successor, tool

ROOT = Path(__file__).resolve().parents[2]
#: One a day: each kernel is compiled for it, which takes a minute or two.
ARCHITECTURES = [*strategies.rotating([(8, 0), (9, 0)])]

#: Asks a process for the PTX of every kernel, or of some, as JSON. numba-cuda-mlir compiles if numba-cuda is missing.
PROGRAM = """
import json, sys
if sys.argv[4] == "numba-cuda-mlir":
    sys.modules["numba_cuda"] = None
from tests.kernels import cuda_kernels

capability = tuple(map(int, sys.argv[1:3]))
with cuda_kernels.absent_device(capability):
    kernels = getattr(cuda_kernels, sys.argv[3])()
    names = sys.argv[5:] or kernels
    json.dump({name: kernels[name].ptx(capability) for name in names}, sys.stdout)
"""


def missing() -> str | None:
    """What these tests need and is not there."""
    packages = Path(sysconfig.get_path("purelib"))
    wanted = {"numba-cuda": "numba_cuda", "nvidia-nvvm": "nvidia/cu13/**/libnvvm.so*"}
    wanted["nvidia-cuda-nvrtc"] = "nvidia/cu13/**/libnvrtc.so*"
    absent = [name for name, pattern in wanted.items() if not any(packages.glob(pattern))]
    return f"not installed: {', '.join(absent)}; pip install -e '.[test-cuda]'" if absent else None


pytestmark = pytest.mark.skipif(
    missing() is not None and "ptx" not in os.environ.get("FASTINDEX_REQUIRE", ""), reason=missing() or ""
)


@cache
def every_ptx(
    capability: tuple[int, int],
    kernels: str = "every_kernel",
    compiler: str = "numba-cuda",
    names: tuple[str, ...] = (),
) -> dict[str, str]:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, *map(str, capability), kernels, compiler, *names]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    found: dict[str, str] = json.loads(result.stdout)
    return found


LOAD, STORE = r"\bld\.global\.v2\.[ubsf]64\b", r"\bst\.global\.v2\.[ubsf]64\b"


def accesses(text: str) -> tuple[int, int]:
    """How many 16-byte loads and stores of GPU memory."""
    return len(re.findall(LOAD, text)), len(re.findall(STORE, text))


def faults(name: str, text: str) -> list[str]:
    """What no fast kernel may have."""
    found = [f"{name}: {word}" for word in (r"\bdiv\.", r"\brem\.", r"\bcall\b", r"\.local\b") if re.search(word, text)]
    # A load of unknown space costs a look-up, and shows that an address has lost its kind.
    if re.search(r"\b(ld|st)\.(v2\.)?[ubs]\d+\b", text):
        found.append(f"{name}: an access of unknown space")
    return found


#: A kernel of each module. numba-cuda-mlir takes seconds for each, and up to twenty for a transpose.
BY_THE_SUCCESSOR = (
    "copy",
    "pack bits",
    "stage",
    "cast transpose f64 to s8, 16 bytes at once",
    "cast 2 rows f32 to f16",
    "transpose words 2",
    "transpose 8, 16 bytes at once",
    "shift",
    "linear, wrapped",
    "multi, large, strided",
    "gather, 2 quotients",
    "gather, large",
)


def test_the_successor_of_numba_cuda(tmp_path: Path) -> None:
    require_assembler()
    require_the_successor()
    capability = ARCHITECTURES[0]
    texts = every_ptx(capability, "every_kernel", "numba-cuda-mlir", tuple(strategies.rotating(BY_THE_SUCCESSOR)))
    for name, text in texts.items():
        assert "wrap" in name or faults(name, text) == []
        assert encoded(text)
        assert (accesses(text)[0] > 0) or not moves_vectors(name), name
        assert code_of(text, capability, tmp_path).spilled_bytes == 0, name


def moves_vectors(name: str) -> bool:
    return name.endswith(("16 bytes at once", "quotients")) or name in (
        "copy",
        "copy pages",
        "gather, large",
    )


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_no_divisions_no_calls_no_local_memory(capability: tuple[int, int]) -> None:
    """But for "wrap", which divides what is out of bounds."""
    texts = every_ptx(capability)
    assert len(texts) > 50
    assert [fault for name, text in texts.items() if "wrap" not in name for fault in faults(name, text)] == []
    assert all(f"sm_{capability[0]}{capability[1]}" in text for text in texts.values())


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_the_emulator_knows_every_instruction(capability: tuple[int, int]) -> None:
    for kernels in ("every_kernel", "common_paths"):
        for text in every_ptx(capability, kernels).values():
            assert encoded(text)


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_16_bytes_at_once(capability: tuple[int, int]) -> None:
    for name, text in every_ptx(capability).items():
        loads, stores = accesses(text)
        if moves_vectors(name):
            assert (loads > 0, stores > 0) == (True, True), name
        if name == "fill":
            assert stores > 0
        if name.endswith(("16 bytes read at once", "16 bytes written at once")):
            # The other side's elements are smaller, and so are its parts.
            assert (loads > 0, stores > 0) == ("read" in name, "written" in name), name


def test_a_transpose_writes_vectors_only() -> None:
    for width in (1, 2, 4, 8, 16):
        text = every_ptx(ARCHITECTURES[0])[f"transpose {width}, 16 bytes at once"]
        assert re.findall(r"\bst\.global\.[ubs]\d+\b", text) == []
        assert accesses(text)[0] >= max(4 // width, 1)


def test_faults_show() -> None:
    assert faults("a", "div.s64 %rd1, %rd2, %rd3;") != []
    assert faults("a", "ld.local.u32 %r1, [%rd1];") != []
    assert faults("a", "ld.u32 %r1, [%rd1];") != []
    assert accesses("ld.global.v2.u64 {%rd1, %rd2}, [%rd3];") == (1, 0)
    assert not moves_vectors("shift")


#: Most registers of a thread of 256; what is not named may have 128. 40 let six blocks run on a processor of the GPU.
REGISTERS = {
    "interleave rows": 128,
    "deinterleave rows": 128,
    "transpose 1,": 48,
    "transpose words": 64,
    "transpose": 40,
    "cast transpose f64": 80,
    "cast transpose": 48,
    "copy pages": 80,
    "copy": 64,
    "shift": 80,
    "compress": 64,
}
REGISTERS |= {"interleave": 64, "deinterleave": 64, "stage": 80}

#: Most instructions of a thread on the path of full tiles, by width; 16 bytes at a time, and by elements.
VECTOR_INSTRUCTIONS = {1: 250, 2: 200, 4: 170, 8: 160, 16: 160}
ELEMENT_INSTRUCTIONS = {4: 260, 8: 130}

#: Most instructions of a kernel for what starts anywhere, the paths at the ends of tiles and buffers included.
ANYWHERE_INSTRUCTIONS = {"transpose words 1": 1300, "transpose words 2": 1400, "shift": 7500, "compress": 1000}


def require_assembler() -> None:
    if tool("ptxas") is None or tool("nvdisasm") is None:
        if "ptx" in os.environ.get("FASTINDEX_REQUIRE", ""):
            pytest.fail("ptxas or nvdisasm is not installed; pip install -e '.[test-cuda]'")
        pytest.skip("ptxas or nvdisasm is not installed")


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_registers_suffice(capability: tuple[int, int], tmp_path: Path) -> None:
    require_assembler()
    for name, text in every_ptx(capability).items():
        code = code_of(text, capability, tmp_path)
        assert code.spilled_bytes == 0, name
        most = next((most for start, most in REGISTERS.items() if name.startswith(start)), 128)
        assert code.registers <= most, f"{name}: {code.registers} registers"
        assert code.shared_bytes <= 17 << 10, name
        for start, limit in ANYWHERE_INSTRUCTIONS.items():
            assert not name.startswith(start) or len(code.instructions) <= limit, f"{name}: {len(code.instructions)}"


def test_full_tiles_take_few_instructions_with_all_loads_in_flight(tmp_path: Path) -> None:
    require_assembler()
    for name, text in every_ptx((9, 0), "common_paths").items():
        code = code_of(text, (9, 0), tmp_path)
        width = int(re.findall(r"\d+", name)[0])
        vectors = moves_vectors(name) and "elements" not in name
        most = (VECTOR_INSTRUCTIONS if vectors else ELEMENT_INSTRUCTIONS)[width]
        assert 50 < len(code.instructions) <= most, f"{name}: {len(code.instructions)} instructions"
        assert not any(instruction.startswith("BRA") for instruction in code.instructions), name
        if vectors:
            assert code.loads_in_flight == 4, f"{name}: {code.loads_in_flight} loads before the first store"


def test_the_order_of_loads_and_stores_shows() -> None:
    early = Code(1, 0, 0, ("LDG.E.128", "LDG.E.128.CONSTANT", "LDG.E.64", "STS", "LDG.E.128"))
    assert early.loads_in_flight == 2
