"""Tuple elements named in operands, such as ``negate(%p#1#0)``: XLA prints them so since jaxlib 0.12.

Each stands for a get-tuple-element that the text omits. XLA's parser creates one for each path in a computation, before
the first instruction that names it, and calls it ``p_1_0``.

Source: ``xla_dump_compact_gte`` in ``xla/debug_options_flags.cc``; the parser as executed by jaxlib 0.12.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_OPERAND = re.compile(rb"(?:(?<=[\s,)}\]%])|^)([A-Za-z_][\w.\-]*)((?:\s*#\s*\d+)*)\s*(?=,|$)")
_LAYOUT_OR_COMMENT = re.compile(rb"\{[^{}]*\}|/\*.*?\*/", re.DOTALL)
_COMMENT = re.compile(rb"/\*.*?\*/", re.DOTALL)
_BRACKET = re.compile(rb"[()\[\]{},]")
#: No tuple index has this many digits or more.
_MOST_DIGITS = 9


def places_with_elements(text: bytes, places: dict[bytes, int], element: Callable[[int, int, bytes], int]) -> list[int]:
    """Return the positions of operands, like `operand_places`, where operands may be tuple elements.

    Parameters
    ----------
    text : bytes
        The text between the parentheses.
    places : dict of bytes to int
        Positions of the instructions, by name.
    element : callable
        Takes the position of a tuple, an index and the name of the element; returns the element's position, or -1.

    Examples
    --------
    >>> places_with_elements(b"%p#1#0, %a", {b"p": 0, b"a": 7}, lambda place, index, name: print(place, name) or 8)
    0 b'p_1'
    8 b'p_1_0'
    [8, 7]
    """
    found = []
    for name, path in _OPERAND.findall(_LAYOUT_OR_COMMENT.sub(b"", text)):
        place = places.get(name, -1)
        for index in path.split(b"#")[1:]:
            digits = index.strip()
            if place < 0 or len(digits) > _MOST_DIGITS:
                place = -1
                break
            name = b"%s_%d" % (name, int(digits))
            place = element(place, int(digits), name)
        found.append(place)
    return found


def element_shapes(text: bytes) -> list[bytes]:
    """Return the texts of the element shapes of a tuple shape; empty for any other or malformed shape.

    Examples
    --------
    >>> element_shapes(b"(f32[2,3]{1,0:T(8,128)}, /*index=1*/(s32[], pred[]))")
    [b'f32[2,3]{1,0:T(8,128)}', b'(s32[], pred[])']
    """
    text = _COMMENT.sub(b"", text).strip()
    if not (text.startswith(b"(") and text.endswith(b")")):
        return []
    found, begin, depth = [], 1, 0
    for token in _BRACKET.finditer(text, 1, len(text) - 1):
        character = token.group()
        if character in b"([{":
            depth += 1
        elif character in b")]}":
            depth -= 1
        elif depth == 0:
            found.append(text[begin : token.start()].strip())
            begin = token.end()
    last = text[begin:-1].strip()
    return [*found, last] if last else found
