"""Ask jaxlib for the result shapes of an HLO module; run as a separate process, since XLA may abort.

``python hlo_instructions.py FILE`` prints, as JSON, a list of [leaf shape text, count], and the number of
instructions. The shapes are read from the serialized module with a small decoder of protobuf's wire format,
so neither jaxlib's printer nor the package has a part in it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator

Value = int | bytes


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            length, at = varint(data, at)
            yield key >> 3, data[at : at + length]
            at += length
        else:
            at += {1: 8, 5: 4}[key & 7]


def integers(value: Value) -> list[int]:
    """A packed repeated field, or one entry of one that is not packed."""
    found, at = [], 0
    if isinstance(value, int):
        return [signed(value)]
    while at < len(value):
        number, at = varint(value, at)
        found.append(signed(number))
    return found


def signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def blob(value: Value) -> bytes:
    assert isinstance(value, bytes)
    return value


TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16",
    11: "f32", 12: "f64", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2",
    20: "f8e4m3fn", 21: "s4", 22: "u4",
}  # fmt: skip


def leaf_texts(shape: bytes) -> Iterator[str]:
    """The leaves of a ShapeProto in XLA's notation."""
    kind, dimensions, elements, layout = 0, [], [], b""
    for number, value in fields(shape):
        if number == 2:
            kind = int(value)
        elif number == 3:
            dimensions += integers(value)
        elif number == 4:
            elements.append(blob(value))
        elif number == 5:
            layout = blob(value)
    if kind == 13:
        for element in elements:
            yield from leaf_texts(element)
        return
    yield f"{TYPES[kind]}[{','.join(map(str, dimensions))}]{layout_text(layout)}"


def layout_text(layout: bytes) -> str:
    order: list[int] = []
    tiles, bits, space = "", "", ""
    for number, value in fields(layout):
        if number == 1:
            order += integers(value)
        elif number == 6:
            sizes = [size for _, entry in fields(blob(value)) for size in integers(entry)]
            tiles += f"({','.join(map(str, sizes))})"
        elif number == 7 and value:
            bits = f"E({value})"
        elif number == 8 and value:
            space = f"S({value})"
    attributes = ("T" + tiles if tiles else "") + bits + space
    text = ",".join(map(str, order)) + (":" + attributes if attributes else "")
    return f"{{{text}}}" if text else ""


def main() -> None:
    from jaxlib import _hlo

    with open(sys.argv[1], encoding="utf-8") as file:
        module = _hlo.hlo_module_from_text(file.read())
    counts: Counter[str] = Counter()
    instructions = 0
    for number, computation in fields(module.as_serialized_hlo_module_proto()):
        if number != 3:
            continue
        for inner, instruction in fields(blob(computation)):
            if inner == 2:
                instructions += 1
                for field, shape in fields(blob(instruction)):
                    if field == 3:
                        counts.update(leaf_texts(blob(shape)))
    json.dump({"counts": sorted(counts.items()), "instructions": instructions}, sys.stdout)


if __name__ == "__main__":
    main()
