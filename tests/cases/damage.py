"""Damage to texts and bytes, cheap enough for millions, and to the metadata of Zarr arrays."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

SCRAPS = (
    *"()[]{},:*#?<=-+~/.0129x_TLESDMPb \n\t\0\"'",
    "<=", "-1", "-0", "07", "1e3", "SC", "f32", "s4", "tuple", "token[]", "opaque[]", "{0}", "T(8,128)", "E(4)", "L(0)",
    "S(300)", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "-9223372036854775808", "replicated", "maximal", "devices=[", "<=[", "T(1,0)", "last_tile_dim_replicate", "mesh[",
    "metadata={", "/*", "*/", "//", "é", "\u0663", "\ud800", "\x0b",
)  # fmt: skip
_NUMBERS = (
    *map(
        str, (0, 1, -1, 2, 3, 7, 8, 127, 128, 255, 256, 1000, 65536, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 10**30)
    ),
    "9" * 400,
    # More digits than Python turns into a number.
    "9" * 4400,
)

#: Values for fields of metadata.
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**53, 2**63, 10**30, 0.5, -0.0, 1e308, "", "NaN", "Infinity", "0x",
    "0xzz", "bfloat16", "int4", "float32", "string", "r8", "object", "bytes", "zstd", "gzip", "blosc", "crc32c",
    "transpose", "pickle", "numcodecs.pickle", "sharding_indexed", "vlen-utf8", "regular", "rectilinear", "../..",
    "/etc/passwd", "\0", "\ud800", "a" * 5000, [], [[]], {}, {"": {}}, [1], [0], [2, 3], [-1, 2], [2**40, 2**40],
    [1, 1, 1], [1.5, 2], ["2", "3"], [None],
    {"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1], "codecs": [], "index_codecs": []}},
    {"name": "transpose", "configuration": {"order": [1, 1]}},
    {"name": "struct", "configuration": {"fields": [["a", "float32"]]}},
)  # fmt: skip


def damaged(source: Random, text: str, most: int = 4) -> str:
    """Return a text with up to `most` pieces cut out, put in, doubled, moved, or a number changed."""
    pick = source.random
    for _ in range(1 + int(pick() * most)):
        size = len(text)
        at = int(pick() * (size + 1))
        kind = pick()
        if kind < 0.25:
            text = text[:at] + SCRAPS[int(pick() * len(SCRAPS))] + text[at:]
        elif kind < 0.5:
            text = text[:at] + text[at + 1 + int(pick() * 3) :]
        elif kind < 0.7:
            text = text[:at] + SCRAPS[int(pick() * len(SCRAPS))] + text[at + 1 :]
        elif kind < 0.8:
            until = at + int(pick() * 12)
            text = text[:until] + text[at:]
        elif kind < 0.9:
            other = int(pick() * (size + 1))
            text = text[:at] + text[other : other + int(pick() * 12)] + text[at:]
        else:
            text = _with_another_number(source, text, at)
    return text


def _with_another_number(source: Random, text: str, at: int) -> str:
    begin = at
    while begin < len(text) and not text[begin].isdigit():
        begin += 1
    end = begin
    while end < len(text) and text[end].isdigit():
        end += 1
    return text[:begin] + source.choice(_NUMBERS) + text[end:]


def damaged_bytes(source: Random, content: bytes, most: int = 4) -> bytes:
    """Return bytes with up to `most` of them changed, cut out, put in or doubled."""
    changed = bytearray(content)
    for _ in range(source.randint(1, most)):
        at = source.randrange(len(changed) + 1)
        kind = source.randrange(5)
        if kind == 0:
            changed[at:at] = source.randbytes(source.randint(1, 4))
        elif kind == 1:
            del changed[at : at + source.randint(1, 4)]
        elif kind == 2:
            changed[at:at] = changed[at : at + source.randint(1, 30)]
        elif kind == 3:
            changed[at : at + 1] = source.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 9 + b"\1"))
        elif at < len(changed):
            changed[at] ^= 1 << source.randrange(8)
    return bytes(changed)


def damaged_metadata(source: Random, fields: dict[str, Any]) -> bytes:
    """Return metadata with one to three changes somewhere in it; now and then text that is not JSON."""
    changed: Any = copy.deepcopy(fields)
    for _ in range(source.randint(1, 3)):
        parent, key = _place(source, changed)
        kind = source.random()
        if kind < 0.15:
            del parent[key]
        elif kind < 0.25:
            parent[key] = [parent[key]]
        elif kind < 0.35 and isinstance(parent, dict):
            parent[source.choice((*fields, "extra", "id"))] = copy.deepcopy(parent[key])
        elif kind < 0.4 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent[key] = copy.deepcopy(source.choice(_VALUES))
        if not changed:
            break
    text = json.dumps(changed)
    if source.random() < 0.05:
        at = source.randrange(len(text))
        text = text[:at] + source.choice(("", "{", "]", '"', "\\", "[" * 3000, "1" * 5000)) + text[at + 1 :]
    return text.encode("utf-8", "surrogatepass")


def _place(source: Random, root: Any) -> tuple[Any, Any]:
    """Return a container somewhere in a value that has at least one entry, and the key of one."""
    places = []
    rest = [root]
    while rest:
        container = rest.pop()
        entries = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in entries:
            places.append((container, key))
            if isinstance(value, dict | list):
                rest.append(value)
    return source.choice(places)
