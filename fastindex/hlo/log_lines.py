"""Find messages in logs, and extract their text from log lines: JSON, quoted fields, escapes, HTML, XML or plain text.

Docker and Kubernetes log one JSON record per line; loggers write ``msg="..."``, exports are CSV, YAML or XML, and web
pages HTML. All wrap the same lines of text, which are unwrapped here without knowing the format.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

#: Line breaks and spaces, no-break spaces in UTF-8 too, which web pages have.
_SPACES = b" \t\r\n\xc2\xa0"
#: A log with none of these contains no message; without spaces, for phrases that the ends of lines divide.
_MARKERS = tuple(
    marker.translate(None, _SPACES)
    for marker in (
        b"Ran out of memory in memory space",
        b"Ran out of memory on HBM",
        b"Attempting to allocate",
        b"Attempting to reserve",
        b"Aborting compilation early",
        b"Largest program allocations in",
        b"would exceed memory (size",
        b"Peak buffers:",
        b"OOM when allocating tensor with shape",
        b"Hbm usage",
        b"Out of memory while trying to allocate",
        b"Out of memory allocating",
    )
)
#: Characters that programs for mail and web pages write in place of those of ASCII.
_TYPESET = {"\xa0".encode(): b" ", "\u201c".encode(): b'"', "\u201d".encode(): b'"'}
#: ASCII in JSON that escapes all characters, and the bytes of a message in the JSON of journald.
_ESCAPED_ASCII = re.compile(rb"\\u00([2-7][0-9a-fA-F])")
_MESSAGE_BYTES = re.compile(rb'("MESSAGE"\s*:\s*)\[([\d,\s]+)\]')
#: What is between the parts of a divided line in the records of Kubernetes and Docker, without spaces.
_BETWEEN_PARTS = re.compile(
    rb'\d{4}-\d\d-\d\dT[\d:.+\-]+Z?std(?:err|out)[FP]|","stream":"\w+","time":"[^"]*"\}\{"log":"'
)
#: Phrases in lists of allocations, and in the lines before a list.
_TELLING = re.compile(
    r"Ran out of memory|out of memory|Out of memory|Largest program|Peak buffers:|would exceed|Hbm usage|OOM when|"
    r"Attempting to |Aborting compilation|(?:^|\s|\\[nt])(?:Size|Operator|Shape|Unpadded size|XLA [Ll]abel|"
    r"Extra memory due to padding|Allocation type|Entry Parameter Subshape|Tag):|Buffer \d+:|={8}|"
    r"^\s*(?:reserved|program|arguments|HLO temp|scoped|global|overlays)\s|allocation:"
)
_COLOUR = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
#: Records of Kubernetes and Docker, which divide long lines: "F" or a line break ends one.
_OF_KUBERNETES = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) ([FP]) ")
_OF_DOCKER = re.compile(r'\{"log":\s*("(?:[^"\\]|\\.)*"),\s*"stream":')
_BREAK = re.compile(r"<br\s*/?>|</(?:p|div|li|tr|pre)>", re.IGNORECASE)
_TAG = re.compile(r"</?(?:[a-zA-Z][a-zA-Z0-9]*)(?:\s[^<>]*)?>")
_ENTITY = re.compile(r"&(?:quot|apos|amp|lt|gt|nbsp|#\d+|#x[0-9a-fA-F]+);")
#: A quoted field: at the start of a line, or after a separator or the "=" or ":" of a name. First: a record in CSV.
_QUOTED = re.compile(
    r"""(?:^|(?<=[=,:;\s\[({]))("\{""(?:[^"]|"")*"(?!")|"(?:[^"\\]|\\.|"")*"(?!")|'(?:[^'\\]|\\.|'')*'(?!'))"""
)
#: A quoted value within a CSV field that began in an earlier line.
_DOUBLED = re.compile(r'=""[^"\s]')
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
#: In Markdown and LaTeX.
_ESCAPED_SIGN = re.compile(r"\\([\[\](){}_*#~|])")
_BREAK_OR_TAB = re.compile(r"\\[nt]")
_ESCAPES = {"n": "\n", "t": "\t", "r": ""}
#: Parts of a list, for text without line breaks, and what may be written in place of those.
_PARTS = re.compile(
    r"(?=\b\d+\. Size: |(?<!\. )\bSize: |\bBuffer \d+:|\b(?:Operator|Shape|Unpadded size|XLA [Ll]abel|"
    r"Extra memory due to padding|Tag|Allocation type|Entry Parameter Subshape): |(?<!=)={8}|"
    r"Largest program allocations in|Peak buffers:|Total \w+ usage|\b(?:parameter|constant|total) allocation:)"
)
_BREAKS = re.compile(r"\\+[nt]|#012|[\u2028\u2029\x85\r\v\f]")
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
    return [_ESCAPED_SIGN.sub(r"\1", part) for text in _unwrapped(line, 0) for part in text.split("\n")]


def without_colours(text: str) -> str:
    r"""Return a text without the codes of a terminal.

    Examples
    --------
    >>> without_colours("\x1b[1mSize\x1b[0m: 4.00G")
    'Size: 4.00G'
    """
    return _COLOUR.sub("", text) if "\x1b" in text else text


def continued(line: str) -> tuple[str, bool]:
    r"""Return a line of a log, or of a text in it that is divided, and whether the next line continues it.

    Examples
    --------
    >>> continued("2026-01-02T03:04:05Z stderr P   1. Si"), continued("2026-01-02T03:04:05Z stderr F ze: 4.00G")
    (('  1. Si', True), ('ze: 4.00G', False))
    """
    if found := _OF_KUBERNETES.match(line):
        return line[found.end() :], found.group(1) == "P"
    if (found := _OF_DOCKER.match(line)) and len(line) <= _LONGEST:
        with contextlib.suppress(ValueError):
            text = str(json.loads(found.group(1)))
            return text.removesuffix("\n"), not text.endswith("\n")
    if line.endswith("\\"):
        # A quoted text in YAML.
        return line[:-1].lstrip().removeprefix("\\"), True
    return line, False


def divided(line: str) -> list[str]:
    r"""Return the parts of a list of allocations that is written without line breaks, or with signs for them.

    Examples
    --------
    >>> divided("  1. Size: 4.00G#012     Shape: f32[2]{0} XLA label: copy.1")
    ['  1. Size: 4.00G', '     ', 'Shape: f32[2]{0} ', 'XLA label: copy.1']
    """
    found: list[str] = []
    for part in _BREAKS.split(line):
        parts = _PARTS.split(part)
        # One part may follow the prefix of a logger.
        found += parts if len(parts) > 2 else [part]
    return found


def _unwrapped(line: str, depth: int) -> list[str]:
    if depth > _DEEPEST:
        return [line]
    line = without_colours(line)
    found = _record(line)
    if found is None:
        found = [text for text in map(_field, _QUOTED.findall(line)) if _TELLING.search(text)]
        if not found or _is_text_itself(line):
            if not (_ENTITY.search(line) or _BREAK.search(line)):
                return [line.replace('""', '"') if _DOUBLED.search(line) else line]
            # The text may be an attribute of a tag.
            bare = _TAG.sub(lambda tag: tag.group() if _TELLING.search(tag.group()) else "", _BREAK.sub("\n", line))
            found = [html.unescape(bare).replace("\xa0", " ")]
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
            yield without_colours(item).rstrip("\r\n")
        elif isinstance(item, dict):
            waiting += reversed(list(item.values()))
        elif isinstance(item, list):
            waiting += reversed(item)


def _field(quoted: str) -> str:
    """Return the text of a quoted field, with doubled quotes and escapes resolved."""
    quote, text = quoted[0], quoted[1:-1].replace(quoted[0] * 2, quoted[0])
    if (quote == "'" and not _BREAK_OR_TAB.search(text)) or quoted.startswith('"{""'):
        # A record in CSV has its own escapes.
        return text
    return _ESCAPE.sub(lambda found: _unescaped(found.group(1)), text).rstrip("\n")


def _unescaped(escape: str) -> str:
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ESCAPES.get(escape, escape)


def has_message(text: bytes) -> bool:
    """Whether a text has a message, whose phrases the ends of lines may divide."""
    bare = _plain(text).translate(None, _SPACES)
    if b"stderr" in bare or b"stdout" in bare:
        bare = _BETWEEN_PARTS.sub(b"", bare)
    return any(marker in bare for marker in _MARKERS)


def _plain(text: bytes) -> bytes:
    """Return a part of a log with the ASCII characters that it has in other forms."""
    for typeset, character in _TYPESET.items():
        text = text.replace(typeset, character)
    if b"\\u00" in text:
        text = _ESCAPED_ASCII.sub(lambda found: _in_json(bytes.fromhex(found[1].decode())), text)
    return _MESSAGE_BYTES.sub(_text_of_bytes, text) if b'"MESSAGE"' in text else text


def _in_json(character: bytes) -> bytes:
    return b"\\" + character if character in b'"\\' else character


def _text_of_bytes(found: re.Match[bytes]) -> bytes:
    numbers = [int(number) for number in found[2].split(b",") if number.strip().isdigit() and len(number.strip()) < 4]
    text = bytes(number for number in numbers if number < 256).decode("utf-8", "replace")
    return found[1] + json.dumps(text).encode()


def message_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split a log into lines; lines before the first message are yielded as empty strings, to keep line numbers."""
    unfinished, inside = b"", False
    for chunk in chunks:
        text = unfinished + chunk
        inside = inside or has_message(text)
        end = text.rfind(b"\n") + 1
        unfinished = text[end:]
        if inside:
            for line in _plain(text[:end]).splitlines():
                yield line.decode("utf-8", "replace")
        else:
            yield from [""] * text.count(b"\n", 0, end)
    for line in _plain(unfinished).splitlines():
        yield line.decode("utf-8", "replace")
