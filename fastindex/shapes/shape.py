"""Shapes: an element type, dimensions and a layout; or a tuple, token, opaque value or buffer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, SupportsIndex

from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.interop.cute import CuteLayout, cute_layout
from fastindex.interop.jax import JaxLayout, make_jax_layout, read_jax_array, read_jax_layout
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.layout import Layout
from fastindex.shapes.proto import shape_from_bytes, shape_to_bytes
from fastindex.shapes.reading import parse_shape
from fastindex.shapes.shape_sizes import SizedShape, axes_of, check_placed
from fastindex.shapes.wire import bytes_of_message
from fastindex.shapes.writing import format_shape
from fastindex.tiling.definition import COMBINE

if TYPE_CHECKING:
    from fastindex.interop.strided import StridedArray

Reduced = tuple[Any, ...]


class Shape(SizedShape):
    """The shape of an array and how it lies in memory; frozen, hashable, validated once.

    Tuples, tokens, opaque values and buffers come from `Shape.tuple`, `Shape.token`, `Shape.opaque` and
    `Shape.buffer`.

    Source: ``ShapeProto`` in ``xla/xla_data.proto``, ``ShapeUtil::ValidateShape``.

    Parameters
    ----------
    element_type : ElementType, str or NumPy dtype
    dimensions : sequence of int
        Sizes; `fastindex.shapes.shape_rules.UNBOUNDED` for ``?``.
    layout : Layout, optional
        Absent: the last dimension is the most minor.
    dynamic_dimensions : sequence of bool, optional
        Which dimensions are upper bounds, ``<=N`` in text.

    Raises
    ------
    LayoutError
        A dimension is negative, the layout does not fit the dimensions, or the bytes do not fit int64.
    TypeError
        A dimension is not an integer.

    Examples
    --------
    >>> s = Shape("bf16", (1024, 1000), Layout((1, 0), tiles=((8, 128), (2, 1))))
    >>> str(s)
    'bf16[1024,1000]{1,0:T(8,128)(2,1)}'
    >>> s.slot_count, s.nbytes, s.logical_nbytes
    (1048576, 2097152, 2048000)
    """

    __slots__ = ()

    @staticmethod
    def parse(text: str) -> Shape:
        """Read a shape from XLA's text.

        Raises
        ------
        ShapeSyntaxError
            Not a shape; its `position` says where.

        Examples
        --------
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").slot_count
        24
        """
        return parse_shape(text, Shape)

    @staticmethod
    def from_proto(proto: object) -> Shape:
        """Read a ``ShapeProto``: its bytes, or a message object of the protobuf library.

        Legacy padding (``padded_dimensions``, ``padding_value``) is read; unknown fields are skipped.

        Raises
        ------
        FastIndexError
            The bytes are not a proto, or not of a valid shape.

        Examples
        --------
        >>> Shape.from_proto(Shape("f32", (3,)).to_proto())
        Shape.parse('f32[3]{0}')
        """
        return shape_from_bytes(bytes_of_message(proto), Shape)

    def to_proto(self) -> bytes:
        """Serialise as a ``ShapeProto``, byte for byte as XLA.

        Examples
        --------
        >>> Shape("f32", (3,)).to_proto().hex()
        '100b1a01032a060a0100800101320100'
        """
        return shape_to_bytes(self)

    @staticmethod
    def from_numpy(array: Any) -> Shape:
        """Give the shape and layout of a strided array: NumPy's, CuPy's, or what describes itself like them.

        Where a dimension has size 1 its place in the order is free, and the nearest to the default is taken.

        Raises
        ------
        UnsupportedError
            No layout has these strides: negative, zero, overlapping or with gaps between; or bytes in foreign order.
        FastIndexError
            XLA has no such element type.

        Examples
        --------
        >>> import numpy as np
        >>> import fastindex as fi
        >>> str(fi.Shape.from_numpy(np.zeros((3, 5), np.float32, order="F")))
        'f32[3,5]{0,1}'
        """
        from fastindex.interop.strided import read_strided

        return _from_strides(read_strided(array), "NumPy")

    @staticmethod
    def from_torch(tensor: Any) -> Shape:
        """Give the shape and layout of a PyTorch tensor, whatever its memory format and device.

        Raises
        ------
        UnsupportedError
            Not a strided tensor, a lazy conjugate or negative, or no layout has its strides.
        FastIndexError
            XLA has no such element type.
        """
        from fastindex.interop.strided import read_torch

        return _from_strides(read_torch(tensor), "PyTorch")

    @staticmethod
    def from_jax(source: Any, dimensions: Iterable[SupportsIndex] | None = None, element_type: Any = None) -> Shape:
        """Give the shape and layout of a JAX array, or of a JAX ``Format`` or ``Layout`` and the array it is for.

        Raises
        ------
        UnsupportedError
            The layout is left to the compiler, or the array is sharded.
        FastIndexError
            A format or layout came without `dimensions` and `element_type`.
        """
        if hasattr(source, "dtype"):
            dtype, sizes, jax_layout = read_jax_array(source)
            kind = ElementType.from_numpy_dtype(dtype)
            return Shape(kind, sizes, _from_jax(jax_layout, kind))
        if dimensions is None or element_type is None:
            raise FastIndexError("a JAX format or layout does not know its array: give dimensions and element_type")
        kind = ElementType.of(element_type)
        return Shape(kind, dimensions, _from_jax(read_jax_layout(source), kind))

    def to_jax(self) -> Any:
        """Give the layout as a ``jax.experimental.layout.Layout``.

        Raises
        ------
        UnsupportedError
            Not an array, or the layout has attributes that JAX's layouts do not have.
        """
        layout = self.layout
        _check_jax_has(layout)
        return make_jax_layout(layout.major_to_minor, layout.tiles, layout.element_size_in_bits)

    def to_cute(self) -> CuteLayout:
        """Give the layout as nested sizes and strides, as CuTe writes it.

        Raises
        ------
        UnsupportedError
            Not an array, or a tile does not divide what it splits.

        Examples
        --------
        >>> import fastindex as fi
        >>> str(fi.Shape.parse("f32[4,8]{1,0:T(2,4)}").to_cute())
        '((2,2),(4,2)):((4,16),(1,8))'
        """
        if not self.is_array:
            raise UnsupportedError(f"only arrays have a CuTe layout, not {self}")
        check_placed(self)
        return cute_layout(self.dimensions, axes_of(self), str(self))

    def _repr_html_(self) -> str:
        from fastindex.pictures.picture import shape_html

        return shape_html(self)

    def __str__(self) -> str:
        return format_shape(self)

    def __repr__(self) -> str:
        return f"Shape.parse({str(self)!r})"

    def __reduce__(self) -> Reduced:
        return Shape.parse, (str(self),)


def as_shape(shape: Shape | str) -> Shape:
    """Return a shape, read from its text where it is text.

    Raises
    ------
    ShapeSyntaxError
        Text that is not a shape.
    ArgumentTypeError
        Neither a shape nor text.

    Examples
    --------
    >>> as_shape("f32[3,5]").rank
    2
    """
    if isinstance(shape, Shape):
        return shape
    if isinstance(shape, str):
        return _parsed(shape)
    raise ArgumentTypeError(f"a shape must be a Shape or its text, got {shape!r}")


_parsed = lru_cache(maxsize=1024)(Shape.parse)


def _from_strides(array: StridedArray, library: str) -> Shape:
    from fastindex.interop.strided import minor_to_major_of

    kind = ElementType.from_dtype_name(array.dtype_name, library)
    order = minor_to_major_of(array, kind.name)
    return Shape(kind, array.sizes, None if order is None else Layout(order))


def _from_jax(jax_layout: JaxLayout, element_type: ElementType) -> Layout:
    order, tiles, bits = jax_layout
    # XLA packs elements below a byte in every buffer, which JAX's layout takes for granted.
    return Layout(order, tiles, element_size_in_bits=bits or (element_type.bits if element_type.is_sub_byte else 0))


def _check_jax_has(layout: Layout) -> None:
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
