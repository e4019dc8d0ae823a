"""How many Python functions a warm call of a small array takes, frozen: what its time follows, without its noise.

    python -m tests.frozen.calls            the counts, beside those of `tests/golden/calls.txt`
    python -m tests.frozen.calls --write    record them

Counted are calls of the package's functions, and of the methods that dataclasses get; not of comprehensions, which are
no functions from Python 3.12 on, nor of NumPy's and the standard library's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import fastindex as fi
import fastindex.runtime.machine_code

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "golden" / "calls.txt"

_FOLDER = str(Path(fi.__file__).parent)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
#: The least of some counts: what happens now and then, such as a look at signals, is not in it.
_REPEATS = 3

PLAIN, TILED, TURNED = "f32[48,200]{1,0}", "f32[48,200]{1,0:T(8,128)}", "f32[48,200]{0,1}"


def cases() -> dict[str, Callable[[], Any]]:
    """Return the calls, by name."""
    array = np.arange(48 * 200, dtype=np.float32).reshape(48, 200)
    buffer, out = array.ravel(), np.empty(fi.Shape.parse(TILED).slot_count, np.float32)
    shape, plan = fi.Shape.parse(TILED), fi.plan_relayout(PLAIN, TURNED)
    packed = fi.pack(array, shape)
    rows, columns = np.arange(48), np.arange(48) * 4
    slots = fi.linear_index(shape, (rows, columns))
    return {
        "relayout texts": lambda: fi.relayout(buffer, PLAIN, TURNED),
        "relayout with out": lambda: fi.relayout(buffer, PLAIN, TILED, out=out),
        "relayout by a plan": lambda: plan(buffer),
        "pack": lambda: fi.pack(array, shape),
        "pack a text and a cast": lambda: fi.pack(array, "bf16[48,200]{1,0:T(8,128)(2,1)}"),
        "unpack": lambda: fi.unpack(packed, shape),
        "linear_index": lambda: fi.linear_index(shape, (rows, columns)),
        "linear_index of numbers": lambda: fi.linear_index(TILED, (7, 130)),
        "linear_index of a window": lambda: fi.linear_index(TILED, np.s_[3:9, 100:150]),
        "multi_index": lambda: fi.multi_index(shape, slots),
        "convert_index": lambda: fi.convert_index(TILED, PLAIN, slots),
        "copyto": lambda: fi.numpy.copyto(array.T, np.ones((200, 48), np.float32)),
        "rearrange": lambda: fi.rearrange(array, "(a b) c -> a c b", b=8),
        "explain": lambda: fi.explain(TILED),
        "parse": lambda: fi.Shape.parse("f32[48,200]{1,0:T(8,128)}"),
    }


def is_counted(code: CodeType) -> bool:
    """Whether a call of this code counts: "<string>" is where dataclasses write theirs."""
    return code.co_filename.startswith((_FOLDER, "<string>")) and code.co_name not in _COMPREHENSIONS


def calls_of(function: Callable[[], Any]) -> int:
    """Return how many calls a warm call takes."""
    counts: list[int] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        counts[-1] += event == "call" and is_counted(frame.f_code)

    for _ in range(_REPEATS):
        function()
    before = sys.getprofile()
    for _ in range(_REPEATS):
        counts.append(0)
        sys.setprofile(note)
        try:
            function()
        finally:
            sys.setprofile(before)
    return min(counts)


def counted() -> dict[str, int]:
    """Return the counts of all calls, by name."""
    return {name: calls_of(function) for name, function in cases().items()}


def recorded() -> dict[str, int]:
    """Return the counts of the file, by name."""
    pairs = (line.split(maxsplit=1) for line in FILE.read_text().splitlines())
    return {name: int(count) for count, name in pairs}


def main() -> None:
    found = counted()
    if "--write" in sys.argv:
        FILE.write_text("".join(f"{count} {name}\n" for name, count in found.items()))
    before = recorded()
    sys.stdout.write("".join(f"{count:4} {before.get(name, 0):4} {name}\n" for name, count in found.items()))


if __name__ == "__main__":
    main()
