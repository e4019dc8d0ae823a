"""Damaged metadata of Zarr arrays: any field another value, of another type, missing, or nested."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

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


def damaged_metadata(source: Random, fields: dict[str, Any]) -> bytes:
    """Return metadata with one to three changes somewhere in it; now and then text that is no JSON any more."""
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
