"""HLO text laid out as XLA prints it: a computation's heading, an instruction or a closing brace to a line.

Almost all text is, and matching whole lines is many times faster than reading token by token. Everything else is left
to the scanner.
"""

from __future__ import annotations

import re

from fastindex.hlo.sink import Row

_NAME = rb"[A-Za-z_][0-9A-Za-z_.\-]*+"
_INSTRUCTION = re.compile(
    rb"^[ \t]*+(ROOT )?%?(" + _NAME + rb") = "
    rb'([a-z][a-z0-9]*+\[[^\]="\n]*+\](?:\{[^{}="\n]*+\})?+|\([^"\n]*?\)) ([a-z][a-z0-9\-]*+)'
    # A parenthesis after a small letter, a digit or a name and a space begins operands: an instruction as operand.
    rb'\(([^()"\n]*+(?:(?<![a-z0-9_.\-])(?<![^,][ \t])\([^()"\n]*+(?:\([^()"\n]*+\)[^()"\n]*+)*+\)[^()"\n]*+)*+)\)'
    rb"((?:, ?[A-Za-z_][A-Za-z0-9_.\-]*+=[^\n]*+)?+)\r?\n",
    re.MULTILINE,
)
_HEADING = re.compile(
    rb"[ \t]*+(?!HloModule\b)(?:(ENTRY) )?%?(" + _NAME + rb") "
    # A number below the brace makes it that of a layout.
    rb'(\([^"={}\n/]*+(?:/\*[^*"()\n]*+\*/[^"={}\n/]*+)*+)?\{\r?\n(?![ \t\r\n]*[\d:/])'
)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
#: An opcode after a tuple: another instruction, or one without a space before its opcode.
_OPCODE_AFTER = re.compile(rb"\)\s*[a-z]")
#: The beginning of a line on which the instruction above may go on: neither a name nor the end of the computation.
_CONTINUATION = re.compile(rb"[ \t\r\n]*(?:[^ \t\r\n%A-Za-z_}]|T[ \t]*\()")
#: Where an instruction goes on below.
_GOES_ON = frozenset(b",= ")
#: The brace that closes a computation, and the blank lines below; attributes may follow.
_CLOSING = re.compile(rb"[ \t]*\}\r?\n(?:[ \t\r]*\n)*+(?![ \t]*[,/])")


def match_heading(text: bytes, begin: int) -> tuple[bytes, bool, int] | None:
    r"""Match the heading of a computation; return its name, whether it is the entry, and the end.

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

    No rows, but the end, if a line is not an instruction that `match_rows` would match. Most blocks have no such line,
    and a check of a whole block takes a third of the time of checks of its lines.

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
        # Those of the instructions themselves.
        and block.count(b"= ") == count
        and block.count(b" =") == count
        and 0x09 not in block
        and 0x0D not in block
    ):
        return [], end
    # A search for one byte takes a fraction of the time of one for two.
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
    r"""Match the lines that hold one instruction each and begin before the limit; return them and the end.

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
    """Whether the instruction ends on this line, outside strings, braces and comments, and is the last one on it."""
    if 0x5C in attributes:
        # Quotes within strings, and whatever else is there.
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
    r"""Match the brace that closes a computation on a line of its own; return the end, or -1.

    Examples
    --------
    >>> match_closing(b"}\n\nENTRY", 0), match_closing(b"}, execution_thread=", 0)
    (3, -1)
    """
    found = _CLOSING.match(text, begin)
    return found.end() if found else -1
