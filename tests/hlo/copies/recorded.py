"""The recorded modules of TPU programs, and those of the report's tests."""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "data" / "hlo"
COPIES = sorted((DATA / "copies").glob("*.txt.xz"))
OTHERS = sorted([*DATA.glob("*.txt"), *DATA.glob("programs/*/*after_optimizations.txt")])


def name_of(path: Path) -> str:
    return path.name.split(".txt")[0] if path.parent.parent.name != "programs" else path.parent.name


@cache
def text_of(path: Path) -> str:
    """Return the text of a module."""
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode()


def recorded(name: str) -> str:
    """Return the text of the module of a program of ``tests/data/hlo/copy_programs.py``."""
    return text_of(DATA / "copies" / f"{name}.txt.xz")
