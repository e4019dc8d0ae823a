"""Extract message text from log lines: JSON records, quoted fields, escapes, HTML, XML or plain text.

Docker and Kubernetes log one JSON record per line; loggers write ``msg="..."``, exports are CSV, YAML or XML, and web
pages HTML. All wrap the same lines of text, which are unwrapped here without knowing the format.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

#: Phrases in lists of allocations, and in the lines before a list.
_TELLING = re.compile(
    r"Ran out of memory|out of memory|Out of memory|Largest program|Peak buffers:|would exceed|Hbm usage|OOM when|"
    r"Attempting to |Aborting compilation|(?:^|\s|\\[nt])(?:Size|Operator|Shape|Unpadded size|XLA [Ll]abel|"
    r"Extra memory due to padding|Allocation type|Entry Parameter Subshape):|Buffer \d+:|={8}|"
    r"^\s*(?:reserved|program|arguments|HLO temp|scoped|global|overlays)\s|allocation:"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BREAK = re.compile(r"<br\s*/?>|</(?:p|div|li|tr|pre)>", re.IGNORECASE)
_TAG = re.compile(r"</?(?:[a-zA-Z][a-zA-Z0-9]*)(?:\s[^<>]*)?>")
_ENTITY = re.compile(r"&(?:quot|amp|lt|gt|nbsp|#\d+|#x[0-9a-fA-F]+);")
#: A quoted field: at the start of a line, or after a separator or the "=" or ":" of a name.
_QUOTED = re.compile(r"""(?:^|(?<=[=,:;\s\[({]))("(?:[^"\\]|\\.|"")*"|'(?:[^'\\]|\\.|'')*')""")
#: A quoted value within a CSV field that began in an earlier line.
_DOUBLED = re.compile(r'=""[^"\s]')
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": ""}
#: Longer lines are not log records.
_LONGEST = 1 << 22
_DEEPEST = 8


def texts_of(line: str) -> list[str]:
    r"""Return the lines of text in a log line.

    Examples
    --------
    >>> texts_of('{"log": "  1. Size: 4.00G\\n", "stream": "stderr"}')
    ['  1. Size: 4.00G']
    >>> texts_of('level=error msg="     Shape: f32[2]{0}" host=a')
    ['     Shape: f32[2]{0}']
    >>> texts_of("     Operator: op_name=&quot;add&quot;<br>     Shape: f32[2]{0}")
    ['     Operator: op_name="add"', '     Shape: f32[2]{0}']
    >>> texts_of('     Operator: op_name="add"')
    ['     Operator: op_name="add"']
    """
    if len(line) > _LONGEST:
        return [line]
    return [part for text in _unwrapped(line, 0) for part in text.split("\n")]


def _unwrapped(line: str, depth: int) -> list[str]:
    if depth > _DEEPEST:
        return [line]
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if _ENTITY.search(line) or _BREAK.search(line):
        # The text may be an attribute of a tag.
        bare = _TAG.sub(lambda tag: tag.group() if _TELLING.search(tag.group()) else "", _BREAK.sub("\n", line))
        line = html.unescape(bare).replace("\xa0", " ")
        return _unwrapped(line, depth + 1)
    found = _record(line)
    if found is None:
        found = [text for text in map(_field, _QUOTED.findall(line)) if _TELLING.search(text)]
        if not found or _is_text_itself(line):
            return [line.replace('""', '"') if _DOUBLED.search(line) else line]
    return [part for text in found for part in _unwrapped(text, depth + 1)]


def _is_text_itself(line: str) -> bool:
    """Whether the line itself has message text outside of quoted fields."""
    return _TELLING.search(_QUOTED.sub('""', line)) is not None


def _record(line: str) -> list[str] | None:
    """Return the message strings in a JSON record, [""] if it has none; None if the line is no record."""
    text = line.strip().rstrip(",")
    if not text.startswith(("{", '["', "[{")):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict | list):
        return None
    # A string may be a record, too.
    return [text for text in _strings(record) if text.startswith("{") or _TELLING.search(text)] or [""]


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a record, in order, without trailing line breaks."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield _COLOUR.sub("", item).rstrip("\r\n")
        elif isinstance(item, dict):
            waiting += reversed(list(item.values()))
        elif isinstance(item, list):
            waiting += reversed(item)


def _field(quoted: str) -> str:
    """Return the text of a quoted field, with doubled quotes and escapes resolved."""
    quote, text = quoted[0], quoted[1:-1].replace(quoted[0] * 2, quoted[0])
    if quote == "'" and "\\n" not in text:
        return text
    return _ESCAPE.sub(lambda found: _unescaped(found.group(1)), text).rstrip("\n")


def _unescaped(escape: str) -> str:
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ESCAPES.get(escape, escape)
