"""Shapes of other libraries' arrays: NumPy, CuPy, DLPack, JAX and PyTorch; and layouts in CuTe's notation.

Strides say where the elements of an array lie but not always in which order its dimensions are: where a dimension has
size 1, or an array no elements, the order that is nearest to the default is taken. No data is copied or read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.interop.host_arrays import host_array
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.layout import COMBINE, Layout
from fastindex.shapes.shape import Shape
from fastindex.tiling.digits import Variable, canonical, digit, slot_digits

CuteTuple = int | tuple["CuteTuple", ...]


def shape_from_numpy(array: Any) -> Shape:
    """Give the shape and layout of a strided array.

    Parameters
    ----------
    array : array
        A NumPy or CuPy array, or anything with ``__cuda_array_interface__``, ``__array_interface__``, ``__dlpack__`` on
        the CPU, or ``__array__``. Arrays of JAX and PyTorch have functions of their own, which know more types.

    Raises
    ------
    UnsupportedError
        No layout has these strides: negative, zero, overlapping or with gaps between; or bytes in foreign order.
    FastIndexError
        XLA has no such element type.

    Examples
    --------
    >>> import numpy as np
    >>> str(shape_from_numpy(np.zeros((3, 5), np.float32))), str(shape_from_numpy(np.zeros((3, 5)).T))
    ('f32[3,5]{1,0}', 'f64[5,3]{0,1}')
    """
    import numpy as np

    if isinstance(array, np.ndarray | np.generic):
        view = np.asarray(array)
        return strided_shape(_native_element_type(view.dtype), view.shape, view.strides)
    for name in ("__cuda_array_interface__", "__array_interface__"):
        described = getattr(array, name, None)
        if isinstance(described, dict):
            dtype = np.dtype(getattr(array, "dtype", described["typestr"]))
            strides = described.get("strides")
            kind = _native_element_type(dtype)
            return strided_shape(kind, described["shape"], strides or _descending_strides(kind, described["shape"]))
    if hasattr(array, "__dlpack__") or hasattr(array, "__array__"):
        return shape_from_numpy(host_array(array))
    raise TypeError(f"from_numpy takes an array, got {type(array).__name__}")


def strided_shape(element_type: ElementType, dimensions: Sequence[int], strides_bytes: Sequence[int]) -> Shape:
    """Give the shape whose elements lie at these strides.

    Raises
    ------
    UnsupportedError
        No layout has these strides.

    Examples
    --------
    >>> str(strided_shape(ElementType.of("f32"), (2, 3, 4), (48, 4, 12)))
    'f32[2,3,4]{1,2,0}'
    """
    sizes = tuple(dimensions)
    what = f"{element_type}[{','.join(map(str, sizes))}] with byte strides {tuple(strides_bytes)}"
    if 0 in sizes:
        return Shape(element_type, sizes)
    longer = [d for d in range(len(sizes)) if sizes[d] > 1]
    for d in longer:
        if strides_bytes[d] < 0:
            raise UnsupportedError(f"dimension {d} of {what} runs backwards, which no layout does; copy the array")
        if strides_bytes[d] == 0:
            raise UnsupportedError(f"dimension {d} of {what} is broadcast, which no layout does; copy the array")
    # Equal strides overlap and are found below.
    order = sorted(longer, key=lambda d: (strides_bytes[d], -d))
    expected = element_type.nbytes
    for d in order:
        if strides_bytes[d] != expected:
            words = "overlaps its neighbours" if strides_bytes[d] < expected else "has gaps"
            raise UnsupportedError(
                f"dimension {d} of {what} {words}: its stride would have to be {expected}; copy the array, "
                "or give padded_dimensions yourself if the buffer is padded"
            )
        expected *= sizes[d]
    return Shape(element_type, sizes, Layout(_with_size_1(order, sizes)))


def _with_size_1(order: list[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Put dimensions of size 1 into a minor-to-major order, each just major of the dimension that follows it."""
    complete = list(order)
    for d in range(len(sizes) - 1, -1, -1):
        if sizes[d] == 1:
            complete.insert(complete.index(d + 1) + 1 if d + 1 < len(sizes) else 0, d)
    return tuple(complete)


def _native_element_type(dtype: Any) -> ElementType:
    if not dtype.isnative:
        raise UnsupportedError(
            f"{dtype!r} has its bytes in foreign order; convert with astype(dtype.newbyteorder('='))"
        )
    return ElementType.from_numpy_dtype(dtype)


def _descending_strides(element_type: ElementType, dimensions: Sequence[int]) -> list[int]:
    return [element_type.nbytes * math.prod(dimensions[d + 1 :]) for d in range(len(dimensions))]


def shape_from_torch(tensor: Any) -> Shape:
    """Give the shape and layout of a PyTorch tensor, whatever its memory format and device.

    Raises
    ------
    UnsupportedError
        Not a strided tensor, a lazy conjugate or negative, or no layout has its strides.
    FastIndexError
        XLA has no such element type.

    Examples
    --------
    A process with PyTorch says::

        shape_from_torch(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
        Shape.parse('f32[2,3,4,5]{1,3,2,0}')
    """
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_nested:
        raise UnsupportedError(f"only strided tensors have an XLA layout, not {tensor.layout} {tensor.dtype}")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError("the tensor is a lazy conjugate or negative; call resolve_conj() or resolve_neg()")
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        kind = ElementType.of(_XLA_NAME_OF_TORCH.get(name, name))
    except FastIndexError:
        raise FastIndexError(f"XLA has no element type for the PyTorch dtype {tensor.dtype}") from None
    return strided_shape(kind, tuple(tensor.shape), [stride * tensor.element_size() for stride in tensor.stride()])


_XLA_NAME_OF_TORCH = {
    "bool": "pred",
    **{f"int{bits}": f"s{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e8m0fnu": "f8e8m0fnu",
}


def layout_from_jax(layout: Any) -> Layout:
    """Give the layout that a ``jax.experimental.layout.Layout``, or the one in a ``Format``, describes.

    Raises
    ------
    UnsupportedError
        The layout is left to the compiler.

    Examples
    --------
    Anything with the fields of JAX's class will do:

    >>> from types import SimpleNamespace
    >>> like_jax = SimpleNamespace(major_to_minor=(1, 0), tiling=((8, 128),), sub_byte_element_size_in_bits=0)
    >>> str(layout_from_jax(like_jax))
    '{0,1:T(8,128)}'
    """
    inner = getattr(layout, "layout", layout)
    if not hasattr(inner, "major_to_minor"):
        raise UnsupportedError(f"{inner!r} is no layout yet; the compiler chooses it")
    return Layout(
        tuple(inner.major_to_minor)[::-1],
        tiles=tuple(map(tuple, inner.tiling or ())),
        element_size_in_bits=inner.sub_byte_element_size_in_bits,
    )


def shape_from_jax(source: Any, dimensions: Iterable[SupportsIndex] | None = None, element_type: Any = None) -> Shape:
    """Give the shape and layout of a JAX array, or of a JAX format or layout and the array it is for.

    Parameters
    ----------
    source : jax.Array, jax.ShapeDtypeStruct with a format, Format or Layout
    dimensions, element_type : optional
        Of the array that a format or a layout is for.

    Raises
    ------
    UnsupportedError
        The layout is left to the compiler, or the array is sharded: each shard has a buffer of its own.
    FastIndexError
        A format or layout came without the array's dimensions and element type.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> like_jax = SimpleNamespace(major_to_minor=(1, 0), tiling=((8, 128),), sub_byte_element_size_in_bits=0)
    >>> str(shape_from_jax(like_jax, (3, 5), "f32"))
    'f32[3,5]{0,1:T(8,128)}'
    """
    if not hasattr(source, "dtype"):
        if dimensions is None or element_type is None:
            raise FastIndexError("a JAX format or layout does not know its array: give dimensions and element_type")
        return _jax_shape(ElementType.of(element_type), tuple(dimensions), source)
    sharding = getattr(source, "sharding", None)
    if sharding is not None and tuple(sharding.shard_shape(source.shape)) != tuple(source.shape):
        raise UnsupportedError(
            "the array is sharded, and each shard has a buffer of its own: pass array.addressable_shards[0].data"
        )
    return _jax_shape(ElementType.from_numpy_dtype(source.dtype), source.shape, source.format)


def _jax_shape(element_type: ElementType, dimensions: tuple[Any, ...], jax_layout: Any) -> Shape:
    layout = layout_from_jax(jax_layout)
    if element_type.is_sub_byte and not layout.element_size_in_bits:
        # XLA packs such elements in every buffer, which JAX's layout takes for granted.
        layout = replace(layout, element_size_in_bits=element_type.bits)
    return Shape(element_type, dimensions, layout)


def layout_to_jax(layout: Layout) -> Any:
    """Give a layout as a ``jax.experimental.layout.Layout``.

    Raises
    ------
    UnsupportedError
        JAX's layouts know the order, tiles of plain sizes and the bits of sub-byte elements, and nothing else.

    Examples
    --------
    A process with JAX says::

        layout_to_jax(Layout((0, 1), tiles=((8, 128),)))
        Layout(major_to_minor=(1, 0), tiling=((8, 128),), sub_byte_element_size_in_bits=0)
    """
    from jax.experimental import layout as jax_layout

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
            raise UnsupportedError(f"JAX's layouts have no {name}: {layout}")
    return jax_layout.Layout(layout.major_to_minor, layout.tiles, layout.element_size_in_bits)


@dataclass(frozen=True)
class CuteLayout:
    """A layout in CuTe's notation: nested sizes and the strides that go with them, in elements.

    A coordinate of dimension d is split over the sizes of entry d, the first of them fastest.

    Source: https://docs.nvidia.com/cutlass, "CuTe layouts".

    Attributes
    ----------
    shape, stride : nested tuples of int
    """

    shape: tuple[CuteTuple, ...]
    stride: tuple[CuteTuple, ...]

    def __str__(self) -> str:
        return f"{_cute_text(self.shape)}:{_cute_text(self.stride)}"


def to_cute(shape: Shape) -> CuteLayout:
    """Give a layout as nested sizes and strides, as CuTe writes it.

    Raises
    ------
    UnsupportedError
        Not an array, or a tile does not divide what it splits, so that no sizes and strides describe the layout.

    Examples
    --------
    >>> str(to_cute(Shape.parse("f32[4,8]{1,0:T(2,4)(2,1)}")))
    '((2,2),8):((1,16),2)'
    >>> str(to_cute(Shape.parse("f32[4,6]{0,1}")))
    '(4,6):(1,4)'
    """
    if not shape.is_array:
        raise UnsupportedError(f"only arrays have a CuTe layout, not {shape}")
    shape.slot_count  # noqa: B018 - raises where the shape has no size
    variables = [Variable(d, size, True) for d, size in enumerate(shape.dimensions)]
    digits = canonical(slot_digits(shape, [digit(1, variable, 1, None) for variable in variables], {}))
    sizes: list[CuteTuple] = []
    strides: list[CuteTuple] = []
    for variable, size in zip(variables, shape.dimensions, strict=True):
        mine = sorted((d for d in digits if d.variable == variable), key=lambda d: d.low)
        parts = [(d.high or size) // d.low for d in mine]
        whole = all(d.low * part == (d.high or size) for d, part in zip(mine, parts, strict=True))
        if not whole or (math.prod(parts) != size and size > 1):
            raise UnsupportedError(f"a tile does not divide dimension {variable.key} of {shape}, and CuTe cannot pad")
        sizes.append(tuple(parts) if len(parts) > 1 else size)
        strides.append(tuple(d.weight for d in mine) if len(mine) > 1 else (mine[0].weight if mine else 0))
    if not all(d.variable.is_coordinate for d in digits):
        raise UnsupportedError(f"the tiles of {shape} split unevenly what they merged, and CuTe cannot say so")
    return CuteLayout(tuple(sizes), tuple(strides))


def _cute_text(value: CuteTuple) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_cute_text, value))})"
    return str(value)
