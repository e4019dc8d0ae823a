"""Hints for error messages: how XLA writes what other libraries write differently."""

from __future__ import annotations

import re

from fastindex.core.element_types import xla_name

#: MLIR: ``tensor<2x3xf32>``, ``memref<...>``, or only the part in brackets.
_MLIR = re.compile(r"(?:(?:tensor|memref)\s*<\s*)?((?:(?:\d+|\?)\s*x\s*)*)([A-Za-z]\w*)\s*>?")
_CROSSES = re.compile(r"\d+(?:x\d+)+")
_ATTRIBUTE = re.compile(r"(?:PAD|PV|SC|[DTLESM])(?:\s*\([^()]*\))+")
_JAX_ORDER = re.compile(r"major_to_minor=\(([\d,\s]*)\)")
_JAX_TILES = re.compile(r"tiling=\(((?:\([\d,\s]*\)[,\s]*)+)\)")


def hint_for(text: str, offset: int) -> str:
    """Return a hint about what to write instead of the text at `offset`; "" if there is none.

    Examples
    --------
    >>> hint_for("tensor<2x3xf32>", 0)
    "XLA writes 'tensor<2x3xf32>' as f32[2,3]"
    >>> hint_for("f32[2,3]{1,0}S(1)", 13)
    'S(1) belongs inside the braces, after a colon, as in {1,0:S(1)}'
    >>> hint_for("f32[2,3]", 0)
    ''
    """
    order = _JAX_ORDER.search(text)
    if order is not None:
        found = f"{{{','.join(reversed(_numbers(order[1])))}{_jax_tiles(text)}}}"
        return f"JAX's {order[0]} is {found} here, the most minor dimension first"
    if text.startswith("None", offset):
        return "XLA writes an unbounded dimension as ?"
    crosses = _CROSSES.match(text, offset)
    if crosses is not None and text[offset - 1 : offset] in ("[", ","):
        return f"XLA writes {crosses[0]!r} as {crosses[0].replace('x', ',')}"
    mlir = _MLIR.match(text, offset)
    if mlir is not None and (mlir[1] or "<" in mlir[0]):
        name = xla_name(mlir[2])
        if name is not None:
            sizes = ",".join(re.findall(r"\d+|\?", mlir[1]))
            return f"XLA writes {mlir[0]!r} as {name}[{sizes}]"
    attribute = _ATTRIBUTE.match(text, offset)
    if attribute is not None and not _is_among_attributes(text, offset):
        return f"{attribute[0]} belongs inside the braces, after a colon, as in {{1,0:{attribute[0]}}}"
    return ""


def _is_among_attributes(text: str, offset: int) -> bool:
    begin = text.rfind("{", 0, offset)
    before = text[begin:offset]
    return begin >= 0 and "}" not in before and ":" in before


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def _jax_tiles(text: str) -> str:
    tiles = _JAX_TILES.search(text)
    if tiles is None:
        return ""
    return ":T" + "".join(f"({','.join(_numbers(tile))})" for tile in re.findall(r"\([^()]*\)", tiles[1]))
