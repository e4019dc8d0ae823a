"""JAX's arrays and layouts as plain data, and as layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastindex.core.element_types import ElementType
from fastindex.core.foreign_arrays import require_values
from fastindex.core.layout import Layout
from fastindex.core.tiles import COMBINE
from fastindex.errors import UnsupportedError


class JaxLayout(NamedTuple):
    """The contents of a ``jax.experimental.layout.Layout``."""

    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    #: 0 means the default of the element type: packed for sub-byte types.
    element_size_in_bits: int


def read_jax_layout(layout: Any) -> JaxLayout:
    """Return the contents of a ``jax.experimental.layout.Layout``, or of the one in a ``Format``.

    Raises
    ------
    UnsupportedError
        The compiler chooses the layout.

    Examples
    --------
    Any object with the attributes of JAX's class works:

    >>> from types import SimpleNamespace
    >>> like_jax = SimpleNamespace(major_to_minor=(1, 0), tiling=((8, 128),), sub_byte_element_size_in_bits=0)
    >>> read_jax_layout(like_jax)
    JaxLayout(minor_to_major=(0, 1), tiles=((8, 128),), element_size_in_bits=0)
    """
    inner = getattr(layout, "layout", layout)
    if not hasattr(inner, "major_to_minor"):
        raise UnsupportedError(f"{inner!r} is not a layout yet; the compiler chooses it")
    return JaxLayout(
        tuple(inner.major_to_minor)[::-1], tuple(map(tuple, inner.tiling or ())), inner.sub_byte_element_size_in_bits
    )


def read_jax_array(array: Any) -> tuple[Any, tuple[int, ...], JaxLayout]:
    """Return the dtype, sizes and layout of a ``jax.Array``, or of a ``jax.ShapeDtypeStruct`` with a format.

    Raises
    ------
    UnsupportedError
        The compiler chooses the layout, or the array is sharded: each shard has a separate buffer.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> layout = SimpleNamespace(major_to_minor=(1, 0), tiling=None, sub_byte_element_size_in_bits=0)
    >>> read_jax_array(SimpleNamespace(dtype="float32", shape=(3, 5), format=layout))
    ('float32', (3, 5), JaxLayout(minor_to_major=(0, 1), tiles=(), element_size_in_bits=0))
    """
    require_values(array)
    sizes = tuple(array.shape)
    sharding = getattr(array, "sharding", None)
    if sharding is not None and tuple(sharding.shard_shape(array.shape)) != sizes:
        raise UnsupportedError(
            "the array is sharded, and each shard has its own buffer: pass array.addressable_shards[0].data"
        )
    return array.dtype, sizes, read_jax_layout(array.format)


def make_jax_layout(
    major_to_minor: Sequence[int], tiles: Sequence[Sequence[int]], sub_byte_element_size_in_bits: int
) -> Any:
    """Return a ``jax.experimental.layout.Layout``. Imports JAX.

    Examples
    --------
    With JAX installed::

        make_jax_layout((1, 0), ((8, 128),), 0)
        Layout(major_to_minor=(1, 0), tiling=((8, 128),), sub_byte_element_size_in_bits=0)
    """
    from jax.experimental import layout as jax_layout

    return jax_layout.Layout(tuple(major_to_minor), tuple(map(tuple, tiles)), sub_byte_element_size_in_bits)


def layout_from_jax(jax_layout: JaxLayout, element_type: ElementType) -> Layout:
    """Return the layout of an array of this element type in a JAX layout.

    Examples
    --------
    >>> str(layout_from_jax(JaxLayout((0, 1), ((8, 128),), 0), ElementType.of("s4")))
    '{0,1:T(8,128)E(4)}'
    >>> str(layout_from_jax(JaxLayout((0, 1), ((8, 128), (4, 1)), 0), ElementType.of("f6e2m3fn")))
    '{0,1:T(8,128)(4,1)}'
    """
    order, tiles, bits = jax_layout
    # XLA packs elements that share a byte evenly, in every buffer; the layouts of some JAX versions do not say so.
    packed = element_type.bits if element_type.is_sub_byte and 8 % element_type.bits == 0 else 0
    return Layout(order, tiles, element_size_in_bits=bits or packed)


def layout_to_jax(layout: Layout) -> Any:
    """Return a layout as a ``jax.experimental.layout.Layout``. Imports JAX.

    Raises
    ------
    UnsupportedError
        JAX's layouts cannot express an attribute of the layout.
    """
    lost = [
        (layout.padded_dimensions is not None, "padded_dimensions"),
        (layout.padding_value is not None, "padding_value"),
        (any(COMBINE in tile for tile in layout.tiles), "* in a tile"),
        (layout.tail_padding_alignment_in_elements != 1, "L"),
        (layout.element_size_in_bits not in (0, 1, 2, 4), "E"),
        (layout.memory_space != 0, "S"),
        (bool(layout.split_configs), "SC"),
        (layout.dynamic_shape_metadata_prefix_bytes != 0, "M"),
        (bool(layout.dimension_levels), "D"),
    ]
    for is_lost, name in lost:
        if is_lost:
            raise UnsupportedError(f"JAX's layouts cannot express {name}: {layout}")
    return make_jax_layout(layout.major_to_minor, layout.tiles, layout.element_size_in_bits)
