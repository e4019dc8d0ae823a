"""Names of layouts in other libraries, such as ``NHWC``, ``nChw16c`` and ``OIhw16i16o``.

The letters stand for dimensions, most major first; ``16c`` is a block of 16 of dimension c. As in oneDNN and PyTorch,
a name gives the order in memory. The order of the dimensions themselves is always N, C, D, H, W for activations and
G, O, I, D, H, W for weights. Capital letters mark the dimensions that have blocks (oneDNN), or are used throughout
(TVM).

Three names depend on the array: ``TPU``, the default of XLA's TPU compiler; ``TILE``, Tenstorrent's tiles of 32 by 32
with faces of 16 by 16; and ``NZ``, also ``FRACTAL_NZ``, Ascend's fractals of 16 rows by 32 bytes, ordered down the
columns first.

Sources: for the spelling, oneDNN's ``dnnl_format_tag_t`` in ``dnnl_types.h`` and TVM's ``tir/data_layout.h``; for TILE
and NZ, "Tiles" and "TransdataOperation":
https://docs.tenstorrent.com/tt-metal/latest/tt-metalium/tt_metal/advanced_topics/tiles.html
https://www.hiascend.com/document/detail/en/CANNCommunityEdition/900/API/ascendtb/ascendtb_01_0083.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from fastindex.core.digits import dimension_digits, slot_digits
from fastindex.core.integers import counted
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of, slots_before_tail
from fastindex.core.tiles import COMBINE
from fastindex.errors import ArgumentTypeError, FastIndexError, LayoutError
from fastindex.patterns.format_table import BY_BITS
from fastindex.patterns.named_formats import single_layout
from fastindex.show.tpu_layouts import is_tpu_default, tpu_layout

_ACTIVATIONS = "tncdhw"
_WEIGHTS = "goidhw"
_ANY = "abcdefghijkl"
_TPU, _TILE, _NZ = "TPU", "TILE", "NZ"
#: Names whose layouts depend on the array.
_OF_ARRAYS = {"TPU": _TPU, "TILE": _TILE, "NZ": _NZ, "FRACTAL_NZ": _NZ}
_NZ_ROWS = 16
#: Elements per row of a fractal, 32 bytes, by the bits of an element.
_NZ_COLUMNS = BY_BITS["fractal_nz", "c0"]
_PARTS = re.compile(r"([A-Za-z]+)((?:[0-9]+[a-z])*)")
#: Decimal digits that always fit int64.
_MOST_DIGITS = 18
_BLOCK = re.compile(r"([0-9]+)([a-z])")

Block = tuple[int, int]


def named_layout(name: str, shape: Shape | str | None = None, *, logical: str | None = None) -> Layout:
    """Return the layout with the given name.

    Parameters
    ----------
    name : str
        ``NHWC``, ``nhwc``, ``nChw16c``, ``NCHW16c``, ``OIhw4i16o4i``, ``aBcd16b``; or ``TPU``, ``TILE``, ``NZ`` for
        the layouts of XLA's TPU compiler, Tenstorrent and Ascend; or a name that `fastindex.weights.formats` lists, if
        it splits no dimension, with the default parameters: ``gptq``, ``col32``, ``vllm_paged_key``.
    shape : Shape or str, optional
        The array that the layout is for; its own layout is ignored. Required for ``TPU``, ``TILE`` and ``NZ``;
        otherwise only its rank is checked against the name.
    logical : str, optional
        The order of the dimensions of the array, such as ``"NHWC"`` if dimension 3 is the channel. By default,
        N, C, D, H, W, or G, O, I, D, H, W, or a, b, c, ..., whichever has the letters of the name.

    Raises
    ------
    FastIndexError
        The name is not valid; the message says why.
    LayoutError
        The rank of the array differs from that of the name.

    Examples
    --------
    >>> str(named_layout("NHWC")), str(named_layout("nChw16c")), str(named_layout("OIhw16i16o"))
    ('{1,3,2,0}', '{3,2,1,0:T(16,1,1)}', '{3,2,1,0:T(16,16,1,1)(16,1,1,1)}')
    >>> str(named_layout("NHWC", logical="NHWC"))
    '{3,2,1,0}'
    >>> str(named_layout("TPU", "bf16[1000,1024]")), str(named_layout("TILE", "bf16[1000,1024]"))
    ('{1,0:T(8,128)(2,1)}', '{1,0:T(32,32)(16,16)}')
    >>> str(named_layout("vllm_paged_key")), str(named_layout("gptq"))
    ('{1,3,2,0:T(8,1)}', '{1,0:T(8,1)E(4)}')
    >>> str(named_layout("NZ", "f16[8,100,30]"))
    '{1,2,0:T(16,16)(16,1)}'
    """
    _require_text("name", name)
    _require_text("logical", "" if logical is None else logical)
    if "[" in name:
        raise FastIndexError(f"{name!r} is not a format name; the name comes first: named_layout('NHWC', {name!r})")
    array = None if shape is None else as_shape(shape)
    of_arrays = _OF_ARRAYS.get(name.upper())
    if of_arrays is not None:
        if array is None:
            raise FastIndexError(f"the layout {name} depends on the array: give its shape, as in 'bf16[1000,1024]'")
        return (
            tpu_layout(array.element_type, array.dimensions) if of_arrays == _TPU else _matrix_layout(of_arrays, array)
        )
    single = single_layout(name, None if array is None else array.element_bits)
    if single is not None:
        return single
    outer, blocks = _parse(name)
    if array is not None and array.rank != len(outer):
        raise LayoutError(f"{name} has {counted(len(outer), 'dimension')}, {array.cut_text()} has {array.rank}")
    order = _logical_order(name, outer, logical)
    places = [order.index(letter) for letter in outer]
    tiles = _tiles(places, [(size, order.index(letter)) for size, letter in blocks])
    return Layout(tuple(reversed(places)), tiles=tiles)


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{what} must be text such as 'NHWC', got {value!r}")


def layout_name(shape: Shape | str, *, logical: str | None = None) -> str | None:
    """Return the name of the layout of an array, or None if it has none.

    Parameters
    ----------
    shape : Shape or str
    logical : str, optional
        The letters of the dimensions, in order. By default, ``TPU``, ``TILE`` and ``NZ`` are tried first; then N, C, H,
        W or N, C, D, H, W for rank 4 and 5, or the letters of weights if dimension 0 or 2 has blocks; then a, b, c, ...
        for other blocks.

    Examples
    --------
    >>> layout_name("f32[8,64,7,7]{1,3,2,0}"), layout_name("f32[8,64,7,7]{3,2,1,0:T(16,1,1)}")
    ('NHWC', 'nChw16c')
    >>> layout_name("bf16[1024,1000]{1,0:T(8,128)(2,1)}")
    'TPU'
    """
    shape = as_shape(shape)
    layout = shape.layout
    _require_text("logical", "" if logical is None else logical)
    if logical is not None and len(logical) != shape.rank:
        raise FastIndexError(f"logical={logical!r} must have one letter for each of the {shape.rank} dimensions")
    if not _is_plain(layout):
        return None
    if logical is None and layout.tiles and is_tpu_default(shape):
        return _TPU
    if logical is None and len(layout.tiles) == 2 and shape.rank >= 2:
        for name in (_TILE, _NZ):
            if (name == _TILE or shape.element_type.bits in _NZ_COLUMNS) and _matrix_layout(name, shape) == layout:
                return name
    return _spelled(layout, logical)


def _matrix_layout(name: str, array: Shape) -> Layout:
    """Return the TILE or NZ layout of the matrices in the last two dimensions."""
    if array.rank < 2:
        raise LayoutError(f"{name} lays out matrices, and {array.cut_text()} has {counted(array.rank, 'dimension')}")
    if name == _TILE:
        return Layout(tuple(range(array.rank - 1, -1, -1)), tiles=((32, 32), (16, 16)))
    bits = array.element_type.bits
    columns = _NZ_COLUMNS.get(bits)
    if columns is None:
        raise FastIndexError(f"NZ is defined for elements of 4, 8, 16 and 32 bits, not for {array.element_type}")
    order = (array.rank - 2, array.rank - 1, *range(array.rank - 3, -1, -1))
    return Layout(order, tiles=((columns, _NZ_ROWS), (columns, 1)), element_size_in_bits=bits if bits < 8 else 0)


def _parse(name: str) -> tuple[str, list[tuple[int, str]]]:
    """Split a name into the lower-case letters of the dimensions, and the blocks."""
    parts = _PARTS.fullmatch(name)
    if parts is None:
        raise FastIndexError(
            f"{name!r} is not a format name: letters, then blocks such as 16c, as in NHWC, nChw16c or OIhw16i16o"
        )
    letters = parts.group(1)
    outer = letters.lower()
    for letter in outer:
        if outer.count(letter) > 1:
            raise FastIndexError(f"{name!r} names the dimension {letter!r} twice")
    found = _BLOCK.findall(parts.group(2))
    if any(len(size) > _MOST_DIGITS for size, _ in found):
        raise FastIndexError(f"the size of a block must fit int64: {name[:80]!r}")
    blocks = [(int(size), letter) for size, letter in found]
    for size, letter in blocks:
        if letter not in outer:
            raise FastIndexError(f"{name!r} has blocks of {letter!r}, which is not among its dimensions")
        if size < 2:
            raise FastIndexError(f"{name!r} has blocks of {size}; a block holds at least 2")
    blocked = {letter for _, letter in blocks}
    spelled = "".join(letter.upper() if letter in blocked else letter for letter in outer)
    if letters not in (spelled, outer.upper()) or (blocks and letters == outer):
        blocks_text = parts.group(2)
        in_onednn, in_tvm = spelled + blocks_text, outer.upper() + blocks_text
        raise FastIndexError(f"{name!r} must be spelled {in_onednn!r} as in oneDNN or {in_tvm!r} as in TVM")
    return outer, blocks


def _logical_order(name: str, outer: str, logical: str | None) -> str:
    if logical is not None:
        if sorted(logical.lower()) != sorted(outer):
            raise FastIndexError(f"logical={logical!r} must have the letters of {name!r}")
        return logical.lower()
    for family in (_ACTIVATIONS, _WEIGHTS):
        if set(outer) <= set(family):
            return "".join(letter for letter in family if letter in outer)
    if set(outer) == set(_ANY[: len(outer)]):
        return _ANY[: len(outer)]
    raise FastIndexError(
        f"{name!r} is not a format name: its letters must be among N, C, D, H, W, or among G, O, I, D, H, W, "
        "or a, b, c, ..."
    )


def _tiles(places: Sequence[int], blocks: Sequence[Block]) -> tuple[tuple[int, ...], ...]:
    """Return the tiles that put `blocks` inside the dimensions in the order `places`, most major first.

    The first tile splits the full block of every dimension off, in the order of the dimensions. Blocks that are then in
    position stay; each further tile moves one block, or a part of one, to the most minor position.
    """
    if not blocks:
        return ()
    whole = {place: math.prod(size for size, other in blocks if other == place) for place in places}
    first = next(i for i, place in enumerate(places) if whole[place] > 1)
    tiles = [tuple(whole[place] for place in places[first:])]
    # The axes after the tile counts, most major first: dimension and size.
    axes = [(place, whole[place]) for place in places[first:]]
    staying, reached = 0, -1
    for _, place in blocks:
        at = next(i for i, axis in enumerate(axes) if axis[0] == place)
        if at <= reached:
            break
        staying, reached = staying + 1, at
    for i, (_, place) in enumerate(blocks[staying:], staying):
        part = math.prod(size for size, other in blocks[i:] if other == place)
        at = max(k for k, axis in enumerate(axes) if axis[0] == place and axis[1] > 1)
        inner = axes[at + 1 :]
        tiles.append((part, *(1 for _ in inner)))
        axes[at] = (place, axes[at][1] // part)
        axes += [(place, part), *((other, 1) for other, _ in inner)]
    return tuple(tiles)


def _is_plain(layout: Layout) -> bool:
    """Whether a layout has only an order and tiles."""
    return (
        layout.padded_dimensions is None
        and layout.tail_padding_alignment_in_elements == 1
        and not layout.dimension_levels
        and not any(COMBINE in tile for tile in layout.tiles)
    )


def _spelled(layout: Layout, logical: str | None) -> str | None:
    """Return the name of a layout by the order of its digits, or None if they are not dimensions and then blocks."""
    rank = layout.rank
    # A size that every tile divides, so that the name depends only on the layout.
    size = 2 * math.prod(max(tile) for tile in layout.tiles)
    if rank == 0 or size**rank >= 2**62:
        return None
    representative = Shape("s8", (size,) * rank, Layout(layout.minor_to_major, tiles=layout.tiles))
    if slots_before_tail(representative) != representative.element_count:
        return None
    _, coordinates = dimension_digits(representative.dimensions)
    digits = slot_digits(axes_of(representative), coordinates, {})
    ordered = sorted(digits, key=lambda d: -d.weight)
    outer, blocks = ordered[:rank], ordered[rank:]
    if any(d.high is not None for d in outer) or any(d.high is None for d in blocks):
        return None
    if not all(d.variable.is_coordinate for d in digits):
        return None
    blocked = {int(str(d.variable.key)) for d in blocks}
    letters = logical.lower() if logical is not None else _letters(rank, blocked)
    if letters is None:
        return None
    names = [letters[int(str(d.variable.key))] for d in ordered]
    if not blocks:
        return "".join(names).upper()
    capitals = {letters[d] for d in blocked}
    heads = "".join(name.upper() if name in capitals else name for name in names[:rank])
    sizes = [(d.high or 0) // d.low for d in blocks]
    return heads + "".join(f"{size}{name}" for size, name in zip(sizes, names[rank:], strict=True))


def _letters(rank: int, blocked: set[int]) -> str | None:
    """Return default letters for the dimensions of an array; None if there are none for this rank."""
    if not blocked:
        return {4: "nchw", 5: "ncdhw"}.get(rank)
    if 2 in blocked:
        return {4: "goiw", 5: "goihw", 6: "goidhw"}.get(rank, _ANY[:rank])
    if 0 in blocked:
        return {3: "oiw", 4: "oihw", 5: "oidhw"}.get(rank, _ANY[:rank])
    return {3: "ncw", 4: "nchw", 5: "ncdhw"}.get(rank, _ANY[:rank])
