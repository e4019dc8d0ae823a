"""The copies of an HLO module, counted with regular expressions; shares no code with the package.

Sizes and slots are computed from the text of a layout by a formula for tiles that divide each other, which are those of
XLA's compilers; anything else raises.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np

_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\S+|\(.*?\)) ([a-z\-]+)\((?:[a-z]\w*\[[^ ]* )?%?([\w.\-]*)(.*)")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([\d,]*)(?::(.*))?\})?")
BITS = {
    "pred": 8, "s4": 8, "u4": 8, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16, "s32": 32, "u32": 32,
    "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128, "f8e4m3fn": 8, "f8e5m2": 8,
}  # fmt: skip


class Array(NamedTuple):
    dtype: str
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    bits: int
    space: int

    @property
    def is_tiled(self) -> bool:
        return bool(self.tiles)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",")) if text else ()


def parse(text: str) -> Array:
    found = _SHAPE.fullmatch(text)
    assert found is not None, text
    dtype, sizes, order, rest = found.groups()
    rest = rest or ""
    tiles = re.match(r"T((?:\([\d,]*\))+)", rest)
    width = re.search(r"E\((\d+)\)", rest)
    space = re.search(r"S\((\d+)\)", rest)
    assert not re.search(r"[LP]\(|PAD", rest), text
    dimensions = numbers(sizes)
    return Array(
        dtype,
        dimensions,
        numbers(order) if order is not None else tuple(range(len(dimensions)))[::-1],
        tuple(numbers(tile) for tile in re.findall(r"\(([\d,]*)\)", tiles.group(1))) if tiles else (),
        int(width.group(1)) if width else BITS[dtype],
        int(space.group(1)) if space else 0,
    )


def slots_of(array: Array, index: list[np.ndarray]) -> tuple[np.ndarray, int]:
    """Return the slot of each index, and the number of slots."""
    sizes = [array.sizes[d] for d in reversed(array.order)]
    places = [index[d] for d in reversed(array.order)]
    for tile in array.tiles:
        while len(sizes) < len(tile):
            sizes.insert(0, 1)
            places.insert(0, np.zeros_like(index[0]) if index else np.zeros(1, np.int64))
        kept = len(sizes) - len(tile)
        counts = [-(-size // width) for size, width in zip(sizes[kept:], tile, strict=True)]
        outer = [place // width for place, width in zip(places[kept:], tile, strict=True)]
        inner = [place % width for place, width in zip(places[kept:], tile, strict=True)]
        sizes = [*sizes[:kept], *counts, *tile]
        places = [*places[:kept], *outer, *inner]
    slot = np.zeros_like(places[0]) if places else np.zeros(1, np.int64)
    for size, place in zip(sizes, places, strict=True):
        slot = slot * size + place
    return slot, math.prod(sizes)


def nbytes_of(array: Array) -> int:
    _, slots = slots_of(array, [np.zeros(1, np.int64) for _ in array.sizes])
    return -(-slots * array.bits // 8)


def stays(before: Array, after: Array, permutation: tuple[int, ...] | None) -> bool:
    """Whether every element keeps its slot when an array is reshaped, or transposed."""
    if before.bits != after.bits or nbytes_of(before) != nbytes_of(after):
        return False
    count = math.prod(before.sizes)
    index = [np.asarray(part).ravel() for part in np.unravel_index(np.arange(count), before.sizes or (1,))]
    index = index[: len(before.sizes)]
    if permutation is not None:
        moved = [index[d] for d in permutation]
    else:
        moved = [np.asarray(part) for part in np.unravel_index(np.arange(count), after.sizes or (1,))]
        moved = moved[: len(after.sizes)]
    return bool(np.array_equal(slots_of(before, index)[0], slots_of(after, moved)[0]))


class Counted(NamedTuple):
    instruction: str
    kind: str
    nbytes_read: int
    nbytes_written: int
    in_fusion: bool


def _key(array: Array) -> tuple[object, ...]:
    return tuple(d for d in array.order if array.sizes[d] != 1), array.tiles, array.bits


def _kind(opcode: str, before: Array, after: Array, rest: str) -> str:
    if before.dtype != after.dtype:
        return "element type"
    if opcode in ("copy", "copy-start"):
        if _key(before) != _key(after):
            return "layout"
        return "memory space" if before.space != after.space else "same layout"
    dimensions = re.search(r"dimensions=\{([\d,]*)\}", rest)
    permutation = numbers(dimensions.group(1)) if dimensions else None
    if not stays(before, after, permutation if opcode == "transpose" else None):
        return opcode
    return "memory space" if before.space != after.space else ""


def _async_move(instruction: str, opcode: str, shape: str) -> list[Counted]:
    """Count what moves between memory spaces: ((operands), result, contexts)."""
    one = r"[a-z]\w*\[[\d,]*\](?:\{[^{}]*\})?"
    arrays = [parse(found) for found in re.findall(one, shape)]
    count = len(re.findall(one, shape[: shape.index("), ")]))
    operands, result = arrays[:count], arrays[count]
    part = operands[1] if opcode == "dynamic-update-slice-start" else result
    before = operands[1 if opcode == "dynamic-update-slice-start" else 0]._replace(sizes=part.sizes)
    after = result._replace(sizes=part.sizes)
    kind = _kind("copy", before, after, "")
    return [] if kind == "same layout" else [Counted(instruction, kind, nbytes_of(before), nbytes_of(after), False)]


def copies_of(text: str) -> list[Counted]:
    """Count the copies of a module. In fusions those within a layout count only if the fusion does nothing else."""
    fused = set(re.findall(r" fusion\(.*?calls=%?([\w.\-]+)", text))
    applied = set(re.findall(r"to_apply=%?([\w.\-]+)", text)) - set(re.findall(r" call\(.*to_apply=%?([\w.\-]+)", text))
    found: list[Counted] = []
    plain: dict[str, list[Counted]] = {}
    changing = set()
    shapes: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        heading = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$|(?:ENTRY )?%?([\w.\-]+) \{$", line)
        if heading and not line.startswith(" "):
            shapes, name = {}, heading.group(1) or heading.group(2)
            continue
        match = _LINE.match(line)
        if match is None or name in applied:
            continue
        instruction, shape, opcode, operand, rest = match.groups()
        shapes[instruction] = shape
        if opcode in ("slice-start", "dynamic-slice-start", "dynamic-update-slice-start"):
            found += _async_move(instruction, opcode, shape)
            continue
        if opcode not in ("copy", "copy-start", "reshape", "transpose"):
            continue
        result = shape[1:].split(", ")[0] if opcode == "copy-start" else shape
        before, after = parse(shapes[operand]), parse(result)
        kind = _kind(opcode, before, after, rest)
        item = Counted(instruction, kind or "same layout", nbytes_of(before), nbytes_of(after), name in fused)
        if name in fused and kind in ("", "memory space", "same layout"):
            if opcode != "reshape":
                plain.setdefault(name, []).append(item)
        elif kind:
            changing.add(name)
            found.append(item)
    computations = _computations(text)
    for name, items in plain.items():
        if name not in changing and all(each.opcode in _MOVES for each in computations[name]):
            found.append(items[0])
    return found


class _Node(NamedTuple):
    """An instruction of a fusion, with the fusions within it written out; numbers are places in the list of nodes."""

    opcode: str
    shape: str
    operands: tuple[int, ...]
    instruction: str


class _Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool


def _computations(text: str) -> dict[str, list[_Instruction]]:
    found: dict[str, list[_Instruction]] = {}
    name = ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").lstrip("%").split(" ")[0]
            found[name] = []
        match = re.match(r"\s*(ROOT )?%?([\w.\-]+) = (\(.*?\)(?= [a-z])|\S+) ([a-z\-]+)\((.*)", line)
        if match:
            inside, _, rest = match[5].partition(")")
            names = re.findall(r"%([\w.\-]+)", inside)
            operands = tuple(names) if match[4] != "parameter" else (inside,)
            found[name].append(_Instruction(match[2], match[3], match[4], operands, rest, bool(match[1])))
    return found


def _write_out(
    computations: dict[str, list[_Instruction]], name: str, given: list[list[int]], nodes: list[_Node]
) -> list[int]:
    """Append the nodes of a computation; return those of its root, one for each element of a tuple."""
    places: dict[str, list[int]] = {}
    root: list[int] = []
    for item in computations[name]:
        operands = [places[operand] for operand in item.operands] if item.opcode != "parameter" else []
        if item.opcode == "parameter":
            made = given[int(item.operands[0])]
        elif item.opcode == "tuple":
            made = [place for operand in operands for place in operand]
        elif item.opcode == "get-tuple-element":
            number = re.search(r"index=(\d+)", item.rest)
            assert number is not None
            made = [operands[0][int(number[1])]]
        elif item.opcode == "fusion":
            callee = re.search(r"calls=%?([\w.\-]+)", item.rest)
            assert callee is not None
            made = _write_out(computations, callee[1], operands, nodes)
        else:
            nodes.append(
                _Node(item.opcode, item.shape, tuple(part for operand in operands for part in operand), item.name)
            )
            made = [len(nodes) - 1]
        places[item.name] = made
        if item.is_root:
            root = made
    return root


def _part_of(node: _Node, operand: int) -> str:
    """Whether an operand is an array that is looked into, written into, an update, or another."""
    if node.opcode in ("slice", "dynamic-slice", "gather"):
        return "read in part" if operand == node.operands[0] else "index"
    if node.opcode == "dynamic-update-slice":
        return {0: "all", 1: "update"}.get(node.operands.index(operand), "index")
    if node.opcode == "scatter":
        arrays = (len(node.operands) - 1) // 2
        place = node.operands.index(operand)
        return "all" if place < arrays else "index" if place == arrays else "update"
    return "all"


def _read(nodes: list[_Node], place: int, seen: set[int]) -> int:
    if place in seen:
        return 0
    seen.add(place)
    node = nodes[place]
    if node.opcode in ("constant", "iota", "broadcast", "partition-id", "replica-id", "rng"):
        return 0
    if node.opcode in ("given", "slice", "dynamic-slice", "gather"):
        return nbytes_of(parse(node.shape))
    return sum(_read(nodes, operand, seen) for operand in node.operands)


def _written(nodes: list[_Node], root: list[int], place: int) -> int:
    """Propagate forwards, in the order of the nodes: who holds the value, or a part of it."""
    holds, updates = {place}, 0
    for number, node in enumerate(nodes):
        parts = {_part_of(node, operand) for operand in node.operands if operand in holds}
        if parts & {"all", "read in part"}:
            holds.add(number)
        elif "update" in parts:
            held = {operand for operand in node.operands if operand in holds and _part_of(node, operand) == "update"}
            updates += sum(nbytes_of(parse(nodes[operand].shape)) for operand in held)
    return updates + sum(nbytes_of(parse(nodes[end].shape)) for end in root if end in holds)


_MOVES = {"parameter", "copy", "bitcast", "reshape", "transpose", "convert", "tuple", "get-tuple-element"}


def whole_fusions_of(text: str) -> set[str]:
    """Return the copies, reshapes and transposes that are all their fusion does; of several in a row, the last."""
    computations = _computations(text)
    fused = set(re.findall(r" fusion\(.*?calls=%?([\w.\-]+)", text))
    moving = {item.instruction for item in copies_of(text)}
    found: set[str] = set()
    for name in fused:
        items = computations[name]
        called = re.compile(rf"calls=%?{re.escape(name)}(?![\w.\-])")
        within = any(called.search(item.rest) for other in fused for item in computations[other])
        if within or any(item.opcode not in _MOVES for item in items):
            continue
        before: dict[str, set[str]] = {}
        for item in items:
            reached = set().union(*(before.get(operand, set()) for operand in item.operands))
            before[item.name] = {item.name} if item.name in moving else reached
        (root,) = [item for item in items if item.is_root]
        found |= before[root.name]
    return found


def fused_bytes_of(text: str) -> dict[str, tuple[int, int]]:
    """Return what each copy, reshape and transpose inside a fusion makes the fusion read and write."""
    computations = _computations(text)
    fused = set(re.findall(r" fusion\(.*?calls=%?([\w.\-]+)", text))
    found: dict[str, tuple[int, int]] = {}
    for name, instructions in computations.items():
        shapes = {item.name: item.shape for item in instructions}
        for item in instructions:
            callee = re.search(r"calls=%?([\w.\-]+)", item.rest)
            if name in fused or item.opcode != "fusion" or callee is None:
                continue
            nodes: list[_Node] = []
            given = []
            for operand in item.operands:
                parts = re.findall(r"[a-z]\w*\[[\d,]*\](?:\{[^}]*\})?", shapes[operand])
                given.append(list(range(len(nodes), len(nodes) + len(parts))))
                nodes += [_Node("given", part, (), "") for part in parts]
            root = _write_out(computations, callee[1], given, nodes)
            for place, node in enumerate(nodes):
                if node.opcode in ("copy", "reshape", "transpose"):
                    read = _read(nodes, node.operands[0], set())
                    found[node.instruction] = read, _written(nodes, root, place)
    return found
