"""The demo checks itself, and sees what is wrong; on a GPU: `tests.kernels.simulated_cuda`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import fastindex as fi
import fastindex.cuda
from fastindex.cli import demo
from fastindex.runtime import machine_code


def run(rows: int = 300, columns: int = 500) -> tuple[bool, str]:
    lines: list[str] = []
    passed = demo.run_demo(lines.append, rows=rows, columns=columns, indices=1000)
    return passed, "\n".join(lines)


def test_the_demo_passes() -> None:
    passed, text = run()
    assert passed
    assert text.count("ok   ") == 4
    assert "WRONG" not in text
    for part in ("bf16[300,500]{1,0:T(8,128)(2,1)}", "GB/s", "of a copy", "x NumPy", "ms", "1,000 indices to slots"):
        assert part in text


@pytest.mark.in_turn(seconds=2)
def test_compiling_is_over_before_anything_is_timed() -> None:
    """In a process that has no kernel yet; small arrays, which NumPy would answer while none is loaded, included."""
    program = (
        "import sys\n"
        "from fastindex.cli import demo\n"
        "class Steps:\n"
        "    total = done = 0\n"
        "    def start(self, total): self.total = total\n"
        "    def advance(self, count): self.done += count\n"
        "steps = Steps()\n"
        "from fastindex.runtime.machine_code import loaded_kernels\n"
        "def write(line):\n"
        "    if line.startswith('kernels ready'):\n"
        "        write.at_ready = (steps.done, steps.total, compiled())\n"
        "def compiled():\n"
        "    return len(loaded_kernels())\n"
        "assert demo.run_demo(write, rows=3000, columns=2000, indices=300_000, progress=steps)\n"
        "assert write.at_ready == (steps.total, steps.total, compiled()), (write.at_ready, compiled())\n"
        "assert steps.total >= 6\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_copy_takes_turns_with_what_is_compared_with_it() -> None:
    order: list[str] = []
    copies = [lambda: order.append("a copy"), lambda: order.append("another")]
    demo._in_turns(demo.Cpu(), copies, lambda: order.append("relayout"))
    assert order == ["a copy", "another", "relayout"] * (demo._REPEATS + 1)


def test_the_size_is_256_mebibytes() -> None:
    shape = fi.Shape("bf16", (demo.ROWS, demo.COLUMNS))
    assert 2**28 <= shape.nbytes < 1.001 * 2**28
    assert demo.ROWS % 8
    assert demo.COLUMNS % 128


@pytest.mark.parametrize(("rows", "columns"), [(8, 128), (9, 129), (1, 1), (16, 100)])
def test_other_sizes(rows: int, columns: int) -> None:
    assert run(rows, columns)[0]


def spoil(original: Any, change: Any) -> Any:
    def spoiled(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        change(result)
        return result

    return spoiled


class SpoiledPlan:
    def __init__(self, plan: Any, spoiled: bool) -> None:
        self.plan, self.spoiled = plan, spoiled

    def __call__(self, buffer: Any, out: Any = None) -> Any:
        result = self.plan(buffer, out)
        if self.spoiled:
            result.view(np.uint8)[-1] ^= 1
        return result


@pytest.mark.parametrize("direction", ["to", "back"])
def test_a_wrong_byte_shows(monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    original = demo.plan_relayout

    def plan(source: Any, destination: Any) -> SpoiledPlan:
        found = original(source, destination)
        tiled = bool(found.destination.layout.tiles)
        return SpoiledPlan(found, tiled == (direction == "to"))

    monkeypatch.setattr(demo, "plan_relayout", plan)
    passed, text = run()
    assert not passed
    assert "WRONG" in text


@pytest.mark.parametrize("name", ["linear_index", "multi_index"])
def test_a_wrong_index_shows(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def change(result: Any) -> None:
        part = result[-1] if isinstance(result, tuple) else result
        if np.ndim(part) and len(part) > 500:
            part[500] += 1

    monkeypatch.setattr(demo, name, spoil(getattr(demo, name), change))
    passed, text = run()
    assert not passed
    assert text.count("WRONG") >= 1


@pytest.mark.skipif(fastindex.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(fi.FastIndexError, match="no kernel can run on the GPU"):
        demo.Gpu()


def test_it_says_whether_kernels_were_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    demo.run_demo(lambda line: None, rows=50, columns=300, indices=100)
    for was_compiled in (True, False):
        monkeypatch.setattr(machine_code, "_compiled", [machine_code.CALLED["lead"]] if was_compiled else [])
        lines: list[str] = []
        demo.run_demo(lines.append, rows=50, columns=300, indices=100)
        assert lines[1].endswith("(compiled once for this machine)") is was_compiled, lines[1]
