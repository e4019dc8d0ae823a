"""Explanations of shapes and layouts in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from fastindex.advice.changes import cheapest_change
from fastindex.advice.format_names import layout_name
from fastindex.advice.padding import describe_step, padding_steps
from fastindex.advice.sharding_sentences import sharding_sentences
from fastindex.advice.spelling import listed, tile_text
from fastindex.core.integers import UNBOUNDED, counted
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import COMBINE, Axis, CountAxis, DimensionAxis, MergedAxis, OffsetAxis, tile_axes
from fastindex.sharding.sharding import Sharding, as_sharding

_WORD_BITS = 32


def explain(shape: Shape | str, sharding: Sharding | str | None = None) -> str:
    """Explain a layout in sentences: the order of the dimensions, the tiles, the padding and the strides.

    Parameters
    ----------
    shape : Shape or str
    sharding : Sharding or str, optional
        How it is divided over devices. Then the sentences are about that: what each device holds, what padding costs,
        and which division over as many devices needs least.

    Raises
    ------
    ParseError
        The text is not a shape, or not a sharding.
    LayoutError
        The sharding does not fit the shape.

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
    No byte strides: because of the tiles, neighbours along a dimension are not equally far apart.
    These are the tiles that XLA's TPU compiler uses for such an array.
    """
    shape = as_shape(shape)
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
    width = counted(bits // 8, "byte") if bits % 8 == 0 else counted(bits, "bit")
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
            f"The size of {listed(f'dimension {d}' for d in bounds)} is an upper bound, for which the buffer has room."
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
    # The tile that made each axis.
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
    """Return an axis in words; `within` leaves out that it is a position in the previous tile."""
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
    """Return the size of a tile in words."""
    count = 1
    for size in tile:
        count *= size if size != COMBINE else 1
    bits = count * shape.element_bits
    if count == 1:
        return "one element"
    if bits == _WORD_BITS:
        number = {2: "two", 4: "four", 8: "eight", 16: "sixteen", 32: "thirty-two"}.get(count, str(count))
        return f"the {number} elements share a 32-bit word"
    size_text = counted(bits // 8, "byte") if bits % 8 == 0 else counted(bits, "bit")
    return f"{count:,} elements, {size_text}, in one piece"


def _padding_sentences(shape: Shape) -> list[str]:
    slots, elements = shape.slot_count, shape.element_count
    sizes = f"{counted(slots, 'slot')}, {counted(shape.nbytes, 'byte')}"
    if slots == elements:
        return [f"{sizes}; no padding."]
    padding = slots - elements
    verb = "is" if padding == 1 else "are"
    sentences = [f"{sizes}; {counted(padding, 'slot')} ({padding / slots:.1%}) {verb} padding."]
    steps = padding_steps(shape)
    lead = "Of them: " if len(steps) == 1 else "In this order: "
    sentences.append(f"{lead}{'; '.join(describe_step(shape, step) for step in steps)}.")
    change = cheapest_change(shape)
    if change is not None:
        smaller = f"{change.shape} is {counted(change.saved_nbytes, 'byte')} smaller"
        sentences.append(f"If you lay it out yourself, {change.description}: {smaller}.")
    return sentences


def _stride_sentences(shape: Shape) -> list[str]:
    if shape.rank == 0:
        return []
    strides = shape.byte_strides
    if strides is not None:
        return [f"Byte strides: {', '.join(f'{stride:,}' for stride in strides)}."]
    if shape.element_bits % 8:
        return ["No byte strides: an element does not take a whole number of bytes."]
    return ["No byte strides: because of the tiles, neighbours along a dimension are not equally far apart."]


def _name_sentences(shape: Shape) -> list[str]:
    name = layout_name(shape)
    # Names with a, b, c, ... say less than the layout.
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
