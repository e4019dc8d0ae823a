"""The patterns on the page for users of einops produce the buffers of the layouts beside them."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

import fastindex as fi
from tests.documents.pages import ROOT

if "documentation" not in os.environ.get("FASTINDEX_REQUIRE", ""):
    pytest.importorskip("einops", reason="einops is not installed; pip install '.[docs]'")

_ROW = re.compile(r"^\| `([^`]*)` \| `([^`]* -> [^`]*)` \|(?: `([^`]*)`)? ?\|$", re.MULTILINE)
ROWS = _ROW.findall((ROOT / "docs" / "coming-from" / "einops.md").read_text(encoding="utf-8"))


def test_there_are_rows() -> None:
    assert len(ROWS) == 8


@pytest.mark.parametrize(("layout", "pattern", "sizes"), ROWS)
def test_pattern_is_the_layout(layout: str, pattern: str, sizes: str) -> None:
    from einops import rearrange

    shape = fi.Shape.parse(layout)
    array = np.arange(shape.element_count, dtype=np.float32).reshape(shape.dimensions)
    named = {name.strip(): int(size) for name, _, size in (part.partition("=") for part in sizes.split(",") if part)}
    assert rearrange(array, pattern, **named).tolist() == fi.pack(array, shape).tolist()
