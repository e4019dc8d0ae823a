"""Explanations of shapes, layouts and sharded arrays in sentences; the sizes of a shape as JSON-compatible data."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fastindex.core.integers import INT64_MAX, UNBOUNDED, counted
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import COMBINE, Axis, CountAxis, DimensionAxis, MergedAxis, OffsetAxis, tile_axes, tile_text
from fastindex.errors import ArgumentTypeError
from fastindex.sharding.sharding import Sharding, as_sharding
from fastindex.show.format_names import layout_name
from fastindex.show.padding import change_sentence, describe_step, padding_steps
from fastindex.show.spelling import bytes_text, listed


def info(shape: Shape | str) -> dict[str, Any]:
    """Return the sizes of a shape as JSON-compatible data.

    A combined axis of a tile is "*". A shape that is not an array only has text, element type and byte sizes; a tuple
    also has leaves.

    Raises
    ------
    ParseError
        The text is not a shape.
    UnsupportedError
        A dimension is unbounded, or an array is sparse.

    Examples
    --------
    >>> found = info("f32[3,5]{1,0:T(2,2)}")
    >>> found["slot_count"], found["nbytes"], found["tiles"]
    (24, 96, [[2, 2]])
    """
    shape = as_shape(shape)
    start = {"text": str(shape), "element_type": str(shape.element_type)}
    if shape.is_array:
        nbytes, logical_nbytes = (_nbytes(shape, count) for count in (shape.slot_count, shape.element_count))
    else:
        nbytes, logical_nbytes = shape.nbytes, shape.logical_nbytes
    # The ratio of a buffer of only padding is infinite, which JSON cannot represent.
    ratio = nbytes / logical_nbytes if logical_nbytes else None if nbytes else 1.0
    sizes = {"nbytes": nbytes, "logical_nbytes": logical_nbytes, "padding_ratio": ratio}
    if not shape.is_array:
        leaves = [str(leaf) for leaf in shape.leaves()] if shape.is_tuple else []
        return {**start, **({"leaves": leaves} if shape.is_tuple else {}), **sizes}
    return {
        **start,
        "dimensions": list(shape.dimensions),
        "minor_to_major": list(shape.layout.minor_to_major),
        "tiles": [["*" if size == COMBINE else size for size in tile] for tile in shape.layout.tiles],
        "rank": shape.rank,
        "true_rank": shape.true_rank,
        "element_count": shape.element_count,
        "slot_count": shape.slot_count,
        **sizes,
    }


def _nbytes(shape: Shape, slots: int) -> int:
    """Return the bytes of a number of slots, even if they do not fit int64: no buffer is so large, but indices work."""
    return -(-slots * shape.element_bits // 8)


_WHOLE = {
    "replicated": "every device holds the whole array",
    "manual": "the program itself divides the array; XLA sees the whole of what each device has",
    "unknown": "XLA has not decided yet; until then, every device holds the whole array",
    "unreduced": "every device holds a part of a {reduction}, of the whole shape",
}
_SUBGROUPS = {
    "replicated": "hold the same part",
    "manual": "are left to the program",
    "unreduced": "hold parts of a {reduction}",
}
_REDUCTIONS = {"sum": "sum", "max": "maximum", "min": "minimum"}

#: Maximum number of parts for which even divisors are searched.
_MOST_TRIED = 1 << 16


def sharding_sentences(shape: Shape, sharding: Sharding) -> list[str]:
    """Describe a sharded array: the parts, the bytes per device, the padding, and a sharding that reduces it.

    Raises
    ------
    LayoutError, UnsupportedError
        As `Sharding.shard_shape`.

    Examples
    --------
    >>> for line in sharding_sentences(Shape.parse("f32[17,4]"), Sharding.parse("{devices=[8,1]<=[8]}")):
    ...     print(line)
    {devices=[8,1]<=[8]} over 8 devices: dimension 0 is divided by 8.
    Each device holds f32[3,4]{1,0}, 48 B; a device with the whole array would hold 272 B.
    Dimension 0: 17 over 8 devices pads to 24: 29% of the buffers. Over 17 or 1 devices nothing is padded.
    Devices 6 and 7 hold only padding.
    Divided as {devices=[2,4]<=[8]}, each device holds 36 B, 25% less.
    """
    part = sharding.shard_shape(shape)
    count = sharding.device_count
    over = "" if count is None else f" over {count:,} device{'s' * (count != 1)}"
    sentences = [f"{sharding}{over}: {_division(sharding)}."]
    whole = f"; a device with the whole array would hold {bytes_text(shape.nbytes)}" if part != shape else ""
    sentences.append(f"Each device holds {part}, {bytes_text(part.nbytes)}{whole}.")
    for d, (size, parts) in enumerate(zip(shape.dimensions, sharding.parts, strict=False)):
        sentences += _padding_of(d, size, parts)
    sentences += _idle_devices(shape, sharding)
    logical = -(-part.element_count * part.element_bits // 8)
    if part.nbytes > logical:
        share = 100 * (part.nbytes - logical) / part.nbytes
        more = bytes_text(part.nbytes - logical)
        sentences.append(f"Tile padding comes on top: {more} ({share:.0f}%) of each buffer.")
    better = cheapest_division(shape, sharding)
    if better is not None:
        nbytes = better.shard_shape(shape).nbytes
        less = 100 * (part.nbytes - nbytes) / part.nbytes
        sentences.append(f"Divided as {better}, each device holds {bytes_text(nbytes)}, {less:.0f}% less.")
    return sentences


def _division(sharding: Sharding) -> str:
    if sharding.kind == "maximal":
        return f"only device {sharding.device} has the array; the buffers of others mean nothing"
    if sharding.kind in _WHOLE:
        return _WHOLE[sharding.kind].format(reduction=_REDUCTIONS[sharding.reduction])
    divided = [f"dimension {d} is divided by {n:,}" for d, n in enumerate(sharding.parts) if n > 1]
    text = listed(divided) if divided else "no dimension is divided"
    sizes = sharding.dimensions[len(sharding.parts) :]
    for kind, size in zip(sharding.subgroup_types, sizes, strict=True):
        text += f", {size:,} devices each " + _SUBGROUPS[kind].format(reduction=_REDUCTIONS[sharding.reduction])
    return text


def _padding_of(dimension: int, size: int, parts: int) -> list[str]:
    if parts == 1 or size % parts == 0:
        return []
    padded = -(-size // parts) * parts
    share = 100 * (padded - size) / padded
    sentence = (
        f"Dimension {dimension}: {size:,} over {parts:,} devices pads to {padded:,}: {share:.0f}% of the buffers."
    )
    if parts > _MOST_TRIED:
        return [sentence]
    below = next(n for n in range(parts, 0, -1) if size % n == 0)
    above = next((n for n in range(parts, min(size, 8 * parts) + 1) if size % n == 0), size)
    even = f"{above:,} or {below:,}" if above != below else f"{below:,}"
    return [f"{sentence} Over {even} device{'s' * (above > 1)} nothing is padded."]


def _idle_devices(shape: Shape, sharding: Sharding) -> list[str]:
    """Name the devices that hold only padding, or their number if there are many."""
    if sharding.kind != "tiled" or 0 in shape.dimensions or sharding.order is None:
        return []
    tile = sharding.shard_dimensions(shape)
    used = [-(-size // part) for size, part in zip(shape.dimensions, tile, strict=True)]
    replicas = sharding.order.count // math.prod(sharding.parts)
    idle = sharding.order.count - math.prod(used) * replicas
    if not idle:
        return []
    if idle > 4 or sharding.order.count > 4096:
        return [f"{idle:,} of the {sharding.order.count:,} devices hold only padding."]
    devices = sharding.devices
    assert devices is not None
    busy = set(devices[tuple(slice(n) for n in used)].reshape(-1).tolist())
    names = [str(device) for device in range(sharding.order.count) if device not in busy]
    return [f"Device{'s' * (idle > 1)} {listed(names)} hold{'s' * (idle == 1)} only padding."]


def cheapest_division(shape: Shape, sharding: Sharding) -> Sharding | None:
    """Return the sharding over the same number of devices with the smallest buffers, or None if none is smaller.

    The parts may be along other dimensions; the devices, subgroups and layout stay the same.

    Examples
    --------
    >>> str(cheapest_division(Shape.parse("f32[17,8]"), Sharding.parse("{devices=[8,1]<=[8]}")))
    '{devices=[1,8]<=[8]}'
    """
    if not sharding.parts or 0 in shape.dimensions:
        return None
    total, rank = math.prod(sharding.parts), len(sharding.parts)
    if total > _MOST_TRIED:
        return None
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    best, least = None, sharding.shard_shape(shape).nbytes
    for parts in itertools.islice(_divisions(total, rank, divisors), 5000):
        sizes = [-(-size // n) for size, n in zip(shape.dimensions, parts, strict=True)]
        if parts == sharding.parts or any(n > size for n, size in zip(parts, shape.dimensions, strict=True)):
            continue
        nbytes = Shape(shape.element_type, sizes, shape.layout).nbytes
        if nbytes < least:
            best, least = parts, nbytes
    if best is None:
        return None
    subgroups = sharding.dimensions[rank:]
    return Sharding("tiled", (*best, *subgroups), sharding.order, sharding.subgroup_types)


def _divisions(total: int, rank: int, divisors: list[int]) -> Iterator[tuple[int, ...]]:
    if rank == 1:
        yield (total,)
        return
    for first in divisors:
        if total % first == 0:
            for others in _divisions(total // first, rank - 1, divisors):
                yield (first, *others)


_WORD_BITS = 32
_STARTS_SHAPE = re.compile(r"\s*(?:\(|\w+\[)")


def explain(shape: Shape | str, sharding: Sharding | str | None = None) -> str:
    """Explain a layout in sentences: the order of the dimensions, the tiles, the padding and the strides.

    Parameters
    ----------
    shape : Shape or str
    sharding : Sharding or str, optional
        The sharding of the array. The sentences then describe it: the part of each device, the cost of padding, and
        the sharding over the same number of devices with the smallest buffers.

    Raises
    ------
    ParseError
        The text is not a shape, or not a sharding.
    LayoutError
        The sharding does not fit the shape.
    ArgumentTypeError
        `sharding` is another shape.

    Examples
    --------
    >>> import fastindex as fi
    >>> print(fi.explain("bf16[1024,1000]{1,0:T(8,128)(2,1)}"))
    bf16[1024,1000]{1,0:T(8,128)(2,1)}
    1,024,000 elements of bf16, 2 bytes each.
    Dimension 1 (x) is the most minor, then 0 (y).
    The tile (8,128) groups 8 along dimension 0 and 128 along dimension 1: 1,024 elements, 2,048 bytes, in one piece.
    The tile (2,1), within each (8,128), groups 2 along dimension 0: the two elements share a 32-bit word.
    1,048,576 slots, 2,097,152 bytes; 24,576 slots (2.3%) are padding.
    Of them: dimension 1 (size 1000) is padded to 1024 by the tile (8,128), 1.024 times its size.
    No byte strides: because of the tiles, neighbours along a dimension have no constant distance.
    These are the tiles that XLA's TPU compiler uses for such an array.
    """
    shape = as_shape(shape)
    if isinstance(sharding, Shape) or (isinstance(sharding, str) and _STARTS_SHAPE.match(sharding)):
        raise ArgumentTypeError(
            f"explain takes a shape and its sharding, got a second shape, {sharding!s:.200}: "
            "plan_relayout(a, b).describe() says how a buffer moves from one to the other"
        )
    if sharding is not None:
        return "\n".join([str(shape), *sharding_sentences(shape, as_sharding(sharding))])
    if not shape.is_array:
        return "\n".join(_other_sentences(shape))
    sentences = [*_element_sentences(shape), *_order_sentences(shape), *_tile_sentences(shape)]
    if _has_size(shape):
        sentences += [*_padding_sentences(shape), *_stride_sentences(shape), *_name_sentences(shape)]
    return "\n".join([str(shape), *sentences, *_attribute_sentences(shape)])


def _has_size(shape: Shape) -> bool:
    return UNBOUNDED not in shape.dimensions and not shape.layout.dimension_levels


def _other_sentences(shape: Shape) -> list[str]:
    text = str(shape)
    if shape.is_tuple:
        leaves = list(shape.leaves())
        leaves_text = "1 leaf" if len(leaves) == 1 else f"{len(leaves)} leaves"
        sentence = f"A tuple of {len(shape.tuple_shapes)}, with {leaves_text}, {counted(shape.nbytes, 'byte')} in all:"
        return [text, sentence, *(f"  {leaf}: {counted(leaf.nbytes, 'byte')}" for leaf in leaves)]
    if shape.is_buffer:
        return [text, "A buffer that holds the array:", explain(shape.tuple_shapes[0])]
    what = {"token": "orders side effects", "opaque": "only the device understands"}[str(shape.element_type)]
    return [text, f"A value that {what}; it has no elements."]


def _element_sentences(shape: Shape) -> list[str]:
    kind = shape.element_type
    bits = shape.element_bits
    width = _width_text(bits)
    if UNBOUNDED in shape.dimensions:
        return [f"Elements of {kind}, {width} each; their number is not known, because a dimension is unbounded (?)."]
    sentences = [f"{counted(shape.element_count, 'element')} of {kind}, {width} each."]
    if bits < 8:
        sentences.append(f"E({bits}): elements are packed, the first in the low bits of its byte.")
    elif bits != 8 * kind.nbytes:
        sentences.append(f"E({bits}): the value is in the low bits, and the other bits are zero.")
    bounds = [d for d in range(shape.rank) if shape.dynamic_dimensions[d]]
    if bounds:
        sentences.append(
            f"The size of {listed(f'dimension {d}' for d in bounds)} is an upper bound: the buffer is that large."
        )
    return sentences


def _order_sentences(shape: Shape) -> list[str]:
    order = shape.layout.minor_to_major
    letters = shape.dimension_letters
    names = [f"{d} ({letters[d]})" if letters else str(d) for d in order]
    if not names:
        return ["A scalar: one element, no dimensions."]
    if len(names) == 1:
        return [f"Dimension {names[0]} is the only one: its elements are contiguous."] if not shape.layout.tiles else []
    return [f"Dimension {names[0]} is the most minor, then {', then '.join(names[1:])}."]


def _tile_sentences(shape: Shape) -> list[str]:
    layout = shape.layout
    axes = axes_of(shape, 0)
    # The tile that created each axis.
    makers: dict[Axis, str] = {}
    sentences = []
    previous = ""
    for tile in layout.tiles:
        text = tile_text(tile)
        reached = axes[max(len(axes) - len(tile), 0) :]
        axes = tile_axes(axes, tile)
        made = [axis for axis in axes if axis not in makers and isinstance(axis, CountAxis | OffsetAxis)]
        counts = [axis for axis in made if isinstance(axis, CountAxis)]
        within = bool(previous) and all(isinstance(axis, OffsetAxis) for axis in reached)
        parts = [
            f"{axis.tile_size} along {_axis_text(axis.whole, within, makers)}" for axis in counts if axis.tile_size > 1
        ]
        groups = listed(parts) if parts else "single elements, which changes nothing"
        place = f", within each {previous}," if within else ""
        sentences.append(f"The tile {text}{place} groups {groups}: {_piece(shape, tile)}.")
        makers.update(dict.fromkeys(made, text))
        previous = text
    return sentences


def _axis_text(axis: Axis, within: bool, makers: dict[Axis, str]) -> str:
    """Describe an axis; `within` omits the tile that an axis is a position in."""
    match axis:
        case DimensionAxis(dimension=dimension):
            return f"dimension {dimension}"
        case MergedAxis(outer=outer, inner=inner):
            return f"{_axis_text(outer, within, makers)} combined with {_axis_text(inner, within, makers)}"
        case CountAxis(whole=whole):
            return f"the tiles {makers[axis]} of {_axis_text(whole, True, makers)}"
        case OffsetAxis(whole=whole):
            inner_text = _axis_text(whole, True, makers)
            return inner_text if within else f"the places in the tile {makers[axis]} of {inner_text}"
    return "the missing major dimension"


def _piece(shape: Shape, tile: Sequence[int]) -> str:
    """Describe the size of a tile."""
    count = math.prod(size for size in tile if size != COMBINE)
    bits = count * shape.element_bits
    if count == 1:
        return "one element"
    if bits == _WORD_BITS:
        number = {2: "two", 4: "four", 8: "eight", 16: "sixteen", 32: "thirty-two"}.get(count, str(count))
        return f"the {number} elements share a 32-bit word"
    return f"{count:,} elements, {_width_text(bits)}, in one piece"


def _width_text(bits: int) -> str:
    return counted(bits // 8, "byte") if bits % 8 == 0 else counted(bits, "bit")


def _padding_sentences(shape: Shape) -> list[str]:
    slots, elements = shape.slot_count, shape.element_count
    nbytes = _nbytes(shape, slots)
    sizes = f"{counted(slots, 'slot')}, {counted(nbytes, 'byte')}"
    large = ["No buffer can be that large: its bytes do not fit int64. Slots and indices do."] * (nbytes > INT64_MAX)
    if slots == elements:
        return [f"{sizes}; no padding.", *large]
    padding = slots - elements
    verb = "is" if padding == 1 else "are"
    sentences = [f"{sizes}; {counted(padding, 'slot')} ({padding / slots:.1%}) {verb} padding.", *large]
    steps = padding_steps(shape)
    lead = "Of them: " if len(steps) == 1 else "In this order: "
    sentences.append(f"{lead}{'; '.join(describe_step(shape, step) for step in steps)}.")
    advice = change_sentence(shape)
    return [*sentences, advice] if advice else sentences


def _stride_sentences(shape: Shape) -> list[str]:
    if shape.rank == 0:
        return []
    strides = shape.byte_strides
    if strides is not None:
        return [f"Byte strides: {', '.join(f'{stride:,}' for stride in strides)}."]
    if shape.element_bits % 8:
        return ["No byte strides: an element does not take a whole number of bytes."]
    return ["No byte strides: because of the tiles, neighbours along a dimension have no constant distance."]


def _name_sentences(shape: Shape) -> list[str]:
    name = layout_name(shape)
    # Names with a, b, c, ... are less informative than the layout.
    if name is None or "a" in name.lower():
        return []
    if name == "TPU":
        since = " from v5e on" if shape.element_bits == 2 else ""
        return [f"These are the tiles that XLA's TPU compiler uses for such an array{since}."]
    return [f"This layout is also called {name}."]


def _attribute_sentences(shape: Shape) -> list[str]:
    layout = shape.layout
    sentences = []
    if layout.padding_value is not None:
        sentences.append(f"PV: padding holds {layout.padding_value}.")
    if layout.memory_space:
        sentences.append(f"S({layout.memory_space}): the buffer is in memory space {layout.memory_space}.")
    if layout.split_configs:
        sentences.append("SC: the array is split into parts, which does not affect indices.")
    if layout.dynamic_shape_metadata_prefix_bytes:
        prefix = counted(layout.dynamic_shape_metadata_prefix_bytes, "byte")
        sentences.append(f"M: {prefix} before the data hold the actual sizes.")
    if layout.dimension_levels:
        sentences.append("D: the array is sparse; its size depends on its contents.")
    return sentences
