"""JAX's arrays and layouts as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastindex.errors import UnsupportedError


class JaxLayout(NamedTuple):
    """What a ``jax.experimental.layout.Layout`` says."""

    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    #: 0: the type's unpacked width; of types below a byte, their packed width.
    element_size_in_bits: int


def read_jax_layout(layout: Any) -> JaxLayout:
    """Read a ``jax.experimental.layout.Layout``, or the one in a ``Format``.

    Raises
    ------
    UnsupportedError
        The layout is left to the compiler.

    Examples
    --------
    Anything with the fields of JAX's class will do:

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
    """Read the dtype, the sizes and the layout of a ``jax.Array``, or of a ``jax.ShapeDtypeStruct`` with a format.

    Raises
    ------
    UnsupportedError
        The layout is left to the compiler, or the array is sharded: each shard has a buffer of its own.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> layout = SimpleNamespace(major_to_minor=(1, 0), tiling=None, sub_byte_element_size_in_bits=0)
    >>> read_jax_array(SimpleNamespace(dtype="float32", shape=(3, 5), format=layout))
    ('float32', (3, 5), JaxLayout(minor_to_major=(0, 1), tiles=(), element_size_in_bits=0))
    """
    sizes = tuple(array.shape)
    sharding = getattr(array, "sharding", None)
    if sharding is not None and tuple(sharding.shard_shape(array.shape)) != sizes:
        raise UnsupportedError(
            "the array is sharded, and each shard has a buffer of its own: pass array.addressable_shards[0].data"
        )
    return array.dtype, sizes, read_jax_layout(array.format)


def make_jax_layout(
    major_to_minor: Sequence[int], tiles: Sequence[Sequence[int]], sub_byte_element_size_in_bits: int
) -> Any:
    """Return a ``jax.experimental.layout.Layout``; imports JAX.

    Examples
    --------
    A process with JAX says::

        make_jax_layout((1, 0), ((8, 128),), 0)
        Layout(major_to_minor=(1, 0), tiling=((8, 128),), sub_byte_element_size_in_bits=0)
    """
    from jax.experimental import layout as jax_layout

    return jax_layout.Layout(tuple(major_to_minor), tuple(map(tuple, tiles)), sub_byte_element_size_in_bits)
