"""Conversion of layouts from and to JAX."""

from __future__ import annotations

from typing import Any

from fastindex.errors import UnsupportedError
from fastindex.interop.jax import JaxLayout, make_jax_layout
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.layout import Layout
from fastindex.tiling.definition import COMBINE


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
