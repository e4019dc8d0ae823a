"""Fast path for HLO text formatted as XLA prints it: one heading, instruction or closing brace per line.

Nearly all text has this form, and matching whole lines is many times faster than tokenizing. Anything else is left to
the scanner.
"""

from __future__ import annotations

import re

from fastindex.hlo.grammar import Row

_NAME = rb"[A-Za-z_][0-9A-Za-z_.\-]*+"
_INSTRUCTION = re.compile(
    rb"^[ \t]*+(ROOT )?%?(" + _NAME + rb") = "
    rb'([a-z][a-z0-9]*+\[[^\]="\n]*+\](?:\{[^{}="\n]*+\})?+|\([^"\n]*?\)) ([a-z][a-z0-9\-]*+)'
    # A parenthesis after a small letter, a digit or "name " opens operands: an instruction nested as an operand.
    rb'\(([^()"\n]*+(?:(?<![a-z0-9_.\-])(?<![^,][ \t])\([^()"\n]*+(?:\([^()"\n]*+\)[^()"\n]*+)*+\)[^()"\n]*+)*+)\)'
    rb"((?:, ?[A-Za-z_][A-Za-z0-9_.\-]*+=[^\n]*+)?+)\r?\n",
    re.MULTILINE,
)
_HEADING = re.compile(
    rb"[ \t]*+(?!HloModule\b)(?:(ENTRY) )?%?(" + _NAME + rb") "
    # A number on the line after the brace means that the brace opens a layout.
    rb'(\([^"={}\n/]*+(?:/\*[^*"()\n]*+\*/[^"={}\n/]*+)*+)?\{\r?\n(?![ \t\r\n]*[\d:/])'
)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
#: An opcode after a tuple: another instruction, or an opcode without a space before it.
_OPCODE_AFTER = re.compile(rb"\)\s*[a-z]")
#: Start of a line that may continue the previous instruction: neither a name nor the end of the computation.
_CONTINUATION = re.compile(rb"[ \t\r\n]*(?:[^ \t\r\n%A-Za-z_}]|T[ \t]*\()")
#: Last characters of a line whose instruction continues on the next line.
_GOES_ON = frozenset(b",= ")
#: The brace that closes a computation, with following blank lines, unless attributes follow.
_CLOSING = re.compile(rb"[ \t]*\}\r?\n(?:[ \t\r]*\n)*+(?![ \t]*[,/])")


def match_heading(text: bytes, begin: int) -> tuple[bytes, bool, int] | None:
    r"""Match the heading of a computation; return its name, whether it is the entry, and the end offset.

    Examples
    --------
    >>> match_heading(b"ENTRY %main (p: f32[2]) -> f32[2] {\n  %p =", 0)
    (b'main', True, 36)
    """
    found = _HEADING.match(text, begin)
    if found is None:
        return None
    signature = found.group(3)
    if signature is not None and signature.count(b"(") != signature.count(b")"):
        return None
    return found.group(2), found.group(1) is not None, found.end()


def match_block(text: bytes, begin: int, limit: int) -> tuple[list[Row], int]:
    r"""Match all lines up to the end of a computation, or of the text before the limit, at once.

    Returns no rows, but the end offset, if a line is not an instruction that `match_rows` would match. Most blocks have
    no such line, and checking a whole block takes a third of the time of checking its lines.

    Examples
    --------
    >>> match_block(b"  %n = f32[2]{0} negate(%p), metadata={}\n}\n", 0, 44)
    ([(b'', b'n', b'f32[2]{0}', b'negate', b'%p', b', metadata={}')], 41)
    >>> match_block(b"  %n = f32[2]{0} negate(%p), metadata={\n}\n", 0, 43)
    ([], 40)
    """
    end = text.find(b"\n}", begin, limit) + 1
    is_whole = end > 0
    if not is_whole:
        end = text.rfind(b"\n", begin, limit) + 1
    if end <= begin:
        return [], end
    rows: list[Row] = _INSTRUCTION.findall(text, begin, end)
    block = text[begin:end]
    count = len(rows)
    if not (
        block.count(b"\n") == count
        # One per instruction: no others within attributes.
        and block.count(b"= ") == count
        and block.count(b" =") == count
        and 0x09 not in block
        and 0x0D not in block
    ):
        return [], end
    # A search for one byte is several times faster than for two.
    is_odd = 0x5C in block or (0x2F in block and (b"//" in block or b"/*" in block))
    for row in rows:
        attributes = row[5]
        if attributes and (
            not _ends_with_its_line(attributes)
            if is_odd
            else attributes.count(b"{") != attributes.count(b"}")
            or attributes.count(b'"') & 1
            or attributes[-1] in _GOES_ON
        ):
            return [], end
        if row[2][0] == 0x28 and _OPCODE_AFTER.search(row[2]) is not None:
            return [], end
    if not is_whole and _CONTINUATION.match(text, end):
        return [], end
    return rows, end


def match_rows(text: bytes, begin: int, limit: int) -> tuple[list[Row], int]:
    r"""Match lines with one instruction each that start before the limit; return the rows and the end offset.

    Examples
    --------
    >>> match_rows(b"  %n = f32[2]{0} negate(%p), metadata={}\n}\n", 0, 40)
    ([(b'', b'n', b'f32[2]{0}', b'negate', b'%p', b', metadata={}')], 41)
    """
    rows: list[Row] = []
    match, last = _INSTRUCTION.match, begin
    while begin < limit and (found := match(text, begin)) is not None:
        row: Row = found.groups(b"")  # type: ignore[assignment]
        if row[5] and not _ends_with_its_line(row[5]):
            break
        if row[2][0] == 0x28 and _OPCODE_AFTER.search(row[2]) is not None:
            break
        rows.append(row)
        last, begin = begin, found.end()
    if rows and _CONTINUATION.match(text, begin):
        rows.pop()
        begin = last
    return rows, begin


def _ends_with_its_line(attributes: bytes) -> bool:
    """Whether the instruction ends on this line, outside strings, braces and comments, and no other follows on it."""
    if 0x5C in attributes:
        # Strings may contain escaped quotes, and anything else.
        attributes = _STRING.sub(b'""', attributes)
    count = attributes.count
    return (
        count(b"{") == count(b"}")
        and not count(b'"') & 1
        and 0x5C not in attributes
        and (0x2A not in attributes or b"/*" not in attributes)
        and (0x2F not in attributes or b"//" not in attributes)
        and b"= " not in attributes
        and b" =" not in attributes
        and 0x09 not in attributes
        and attributes[-1] not in _GOES_ON
        and (attributes[-1] != 0x0D or attributes[-2] not in _GOES_ON)
    )


def match_closing(text: bytes, begin: int) -> int:
    r"""Match a closing brace alone on its line; return the end offset, or -1.

    Examples
    --------
    >>> match_closing(b"}\n\nENTRY", 0), match_closing(b"}, execution_thread=", 0)
    (3, -1)
    """
    found = _CLOSING.match(text, begin)
    return found.end() if found else -1
