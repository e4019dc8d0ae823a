"""`Shape`: an element type, dimensions and a layout; or a tuple, token, opaque value or buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, SupportsIndex

from fastindex.core.element_types import ElementType
from fastindex.core.integers import UNBOUNDED, checked_permutation, inverse, permuted
from fastindex.core.layout import Layout
from fastindex.core.layout_fields import LAYOUT_PARTS, checked_parts, layouts_equal
from fastindex.core.shape_fields import fitting_layout, same_dimensions, same_tree
from fastindex.core.shape_text import format_shape, parse_shape
from fastindex.core.sizes import SizedShape, axes_of, check_placed
from fastindex.core.wire import bytes_of_message
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.first_use import load
from fastindex.lazy import hook
from fastindex.terminal import ShownInNotebooks

if TYPE_CHECKING:
    from fastindex.core.digits import CuteLayout
    from fastindex.core.foreign_arrays import StridedArray

Reduced = tuple[Any, ...]

#: The parts of a shape that a comparison can ignore, in addition to those of its layout.
SHAPE_PARTS: Final = frozenset(("layout", "element_type", "fp_precision", "dynamic_dimensions", "dimensions", "buffer"))


class Shape(SizedShape, ShownInNotebooks):
    """The element type, dimensions and memory layout of an array. Immutable, hashable, and always valid.

    Tuples, tokens, opaque values and buffers are made by `Shape.tuple`, `Shape.token`, `Shape.opaque` and
    `Shape.buffer`.

    Source: ``ShapeProto`` in ``xla/xla_data.proto``, ``ShapeUtil::ValidateShape``.

    Parameters
    ----------
    element_type : ElementType, str or NumPy dtype
    dimensions : sequence of int
        Sizes; `Shape.UNBOUNDED` stands for ``?``.
    layout : Layout or str, optional
        By default, the last dimension is the most minor.
    dynamic_dimensions : sequence of bool, optional
        Which sizes are upper bounds, ``<=N`` in text.

    Raises
    ------
    LayoutError
        A dimension is negative, the layout does not fit the dimensions, or the number of bytes does not fit int64.
    ArgumentTypeError
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

    #: The size of an unbounded dimension, ``?`` in text.
    UNBOUNDED: ClassVar[int] = UNBOUNDED

    @staticmethod
    def parse(text: str) -> Shape:
        """Parse a shape from XLA's text.

        Raises
        ------
        ParseError
            The text is not a shape; `position` says where it goes wrong.

        Examples
        --------
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").slot_count
        24
        """
        return parse_shape(text, Shape)

    @staticmethod
    def from_proto(proto: object) -> Shape:
        """Read a ``ShapeProto``: its bytes, or a message object of the protobuf library.

        Legacy padding (``padded_dimensions``, ``padding_value``) is supported; unknown fields are ignored.

        Raises
        ------
        FastIndexError
            The bytes are not a proto, or the shape is not valid.

        Examples
        --------
        >>> Shape.from_proto(Shape("f32", (3,)).to_proto())
        Shape.parse('f32[3]{0}')
        """
        load("fastindex.core.proto")
        from fastindex.core.proto import shape_from_bytes

        return shape_from_bytes(bytes_of_message(proto), Shape)

    def to_proto(self) -> bytes:
        """Serialise as a ``ShapeProto``, byte for byte like XLA.

        Examples
        --------
        >>> Shape("f32", (3,)).to_proto().hex()
        '100b1a01032a060a0100800101320100'
        """
        load("fastindex.core.proto")
        from fastindex.core.proto import shape_to_bytes

        return shape_to_bytes(self)

    @staticmethod
    def from_numpy(array: Any) -> Shape:
        """Return the shape and layout of a strided array.

        The position of a dimension of size 1 in the order is arbitrary; the one closest to the default order is used.

        Parameters
        ----------
        array : array
            A NumPy or CuPy array, or any object with ``__cuda_array_interface__``, ``__array_interface__``,
            ``__dlpack__`` on the CPU, or ``__array__``. No data is copied from a device.

        Raises
        ------
        UnsupportedError
            No layout has these strides (negative, zero, overlapping or with gaps), or the byte order is not native.
        FastIndexError
            XLA does not have this element type.

        Examples
        --------
        >>> import numpy as np
        >>> import fastindex as fi
        >>> str(fi.Shape.from_numpy(np.zeros((3, 5), np.float32, order="F")))
        'f32[3,5]{0,1}'
        """
        load("fastindex.core.foreign_arrays")
        from fastindex.core.foreign_arrays import read_strided

        return _from_strides(read_strided(array), "NumPy")

    @staticmethod
    def from_torch(tensor: Any) -> Shape:
        """Return the shape and layout of a PyTorch tensor, in any memory format and on any device.

        Raises
        ------
        UnsupportedError
            The tensor is not strided, it is a lazy conjugate or negative, or no layout has its strides.
        FastIndexError
            XLA does not have this element type.
        """
        load("fastindex.core.foreign_arrays")
        from fastindex.core.foreign_arrays import read_torch

        return _from_strides(read_torch(tensor), "PyTorch")

    @staticmethod
    def from_jax(source: Any, dimensions: Iterable[SupportsIndex] | None = None, element_type: Any = None) -> Shape:
        """Return the shape and layout of a JAX array, or of an array that a JAX ``Format`` or ``Layout`` is for.

        Parameters
        ----------
        source : jax.Array, jax.ShapeDtypeStruct, or jax.experimental.layout.Format or Layout
        dimensions : sequence of int, optional
            Of the array that a format or layout is for.
        element_type : ElementType, str or dtype, optional
            Of that array.

        Raises
        ------
        UnsupportedError
            The compiler has not chosen the layout yet, or the array is sharded: each shard has a separate buffer.
        FastIndexError
            `source` is a format or layout, and `dimensions` or `element_type` is missing.
        """
        load("fastindex.core.foreign_arrays")
        from fastindex.core.foreign_arrays import layout_from_jax, read_jax_array, read_jax_layout

        if hasattr(source, "dtype"):
            dtype, sizes, jax_layout = read_jax_array(source)
            kind = ElementType.from_numpy_dtype(dtype)
            return Shape(kind, sizes, layout_from_jax(jax_layout, kind))
        if dimensions is None or element_type is None:
            raise FastIndexError(
                "a JAX format or layout does not say its array's shape: pass dimensions and element_type"
            )
        kind = ElementType.of(element_type)
        return Shape(kind, dimensions, layout_from_jax(read_jax_layout(source), kind))

    def to_jax(self) -> Any:
        """Return the layout as a ``jax.experimental.layout.Layout``.

        Raises
        ------
        UnsupportedError
            This is not an array, or JAX's layouts cannot express an attribute of the layout.
        """
        load("fastindex.core.foreign_arrays")
        from fastindex.core.foreign_arrays import layout_to_jax

        return layout_to_jax(self.layout)

    def to_cute(self) -> CuteLayout:
        """Return the layout as nested sizes and strides in CuTe's notation.

        Raises
        ------
        UnsupportedError
            This is not an array, or tiles split it unevenly.

        Examples
        --------
        >>> import fastindex as fi
        >>> str(fi.Shape.parse("f32[4,8]{1,0:T(2,4)}").to_cute())
        '((2,2),(4,2)):((4,16),(1,8))'
        >>> str(fi.Shape.parse("f32[100]{0:T(64)}").to_cute()), str(fi.Shape.parse("f32[3,5]{1,0:T(2,2)}").to_cute())
        ('(100):(1)', '((2,2),(2,3)):((2,12),(1,4))')
        """
        load("fastindex.core.digits")
        from fastindex.core.digits import cute_layout

        if not self.is_array:
            raise UnsupportedError(f"only arrays have a CuTe layout, not {self}")
        check_placed(self)
        return cute_layout(self.dimensions, axes_of(self), str(self))

    @property
    def byte_strides(self) -> tuple[int, ...] | None:
        """Distance in bytes between neighbours along each dimension, or None if it is not constant.

        It is None if tiles reorder elements or if an element does not take a whole number of bytes. A dimension of
        size 1 has the stride that it would have if it were longer.

        Raises
        ------
        UnsupportedError
            This is not an array, it is sparse, or a dimension is unbounded.

        Examples
        --------
        >>> Shape.parse("f32[3,5]{0,1}").byte_strides, Shape.parse("f32[3,5]{1,0:T(2,2)}").byte_strides
        ((4, 12), None)
        """
        load("fastindex.core.digits")
        from fastindex.core.digits import slot_strides

        strides = slot_strides(self)
        if strides is None or self.element_bits % 8:
            return None
        return tuple([stride * (self.element_bits // 8) for stride in strides])

    def with_layout(self, layout: Layout | str) -> Shape:
        """Return the same array in another layout.

        Parameters
        ----------
        layout : Layout or str
            Text in braces: ``{1,0:T(8,128)}``.

        Raises
        ------
        LayoutError
            The layout does not fit the dimensions.
        ParseError
            The text is not a layout.
        UnsupportedError
            This is not an array.

        Examples
        --------
        >>> Shape("f32", (2, 3)).with_layout("{0,1}")
        Shape.parse('f32[2,3]{0,1}')
        """
        self._check_array()
        shape, made = object.__new__(Shape), fitting_layout(layout, self.dimensions)
        shape._fill(self.element_type, self.dimensions, self.dynamic_dimensions, made, ())
        return shape

    def with_element_type(self, element_type: ElementType | str | Any) -> Shape:
        """Return the same array with elements of another type, in the same layout.

        An element size in bits, ``E(...)``, is kept only for sub-byte types, as in XLA.

        Parameters
        ----------
        element_type : ElementType, str or NumPy dtype

        Raises
        ------
        LayoutError
            Arrays cannot have this element type.
        UnsupportedError
            This is not an array.

        Examples
        --------
        >>> Shape.parse("s4[8]{0:T(8)E(4)}").with_element_type("f32")
        Shape.parse('f32[8]{0:T(8)}')
        """
        self._check_array()
        kind = ElementType.of(element_type)
        layout = self.layout if kind.is_sub_byte else replace(self.layout, element_size_in_bits=0)
        return Shape(kind, self.dimensions, layout, self.dynamic_dimensions)

    def transposed(self, order: Iterable[SupportsIndex]) -> Shape:
        """Return the shape of the transposed array in the same buffer: every element keeps its slot.

        Parameters
        ----------
        order : sequence of int
            Dimension i of the result is dimension ``order[i]`` of this, as in `numpy.transpose`.

        Raises
        ------
        LayoutError
            `order` is not a permutation of the dimensions.
        UnsupportedError
            This is not an array.

        Examples
        --------
        >>> Shape.parse("f32[2,3,5]{2,1,0:T(2,4)}").transposed((2, 0, 1))
        Shape.parse('f32[5,2,3]{0,2,1:T(2,4)}')
        """
        self._check_array()
        checked = checked_permutation(order, self.rank)
        places = inverse(checked)
        padded = self.layout.padded_dimensions
        moved = replace(
            self.layout,
            minor_to_major=tuple([places[d] for d in self.layout.minor_to_major]),
            padded_dimensions=None if padded is None else permuted(padded, checked),
        )
        return Shape(
            self.element_type,
            permuted(self.dimensions, checked),
            moved,
            permuted(self.dynamic_dimensions, checked),
        )

    def equals(self, other: Shape | str, ignore: Collection[str] = ()) -> bool:
        """Whether this shape equals another, except for the parts in `ignore`.

        Source: ``Shape::Equal`` in ``xla/shape.h``.

        Parameters
        ----------
        other : Shape or str
        ignore : collection of str
            "layout", or parts of it as for `Layout.equals`; "element_type"; "fp_precision" (all real floating-point
            types are equal); "dimensions" (ranks are still compared); "dynamic_dimensions"; "buffer" (a buffer equals
            the array in it).

        Raises
        ------
        FastIndexError
            `ignore` has an unknown name.

        Examples
        --------
        >>> shape = Shape.parse("f32[2,3]{1,0}")
        >>> shape.equals("bf16[2,3]{0,1}", ignore=("layout",))
        False
        >>> shape.equals("bf16[2,3]{0,1}", ignore=("layout", "fp_precision"))
        True
        """
        ignored = checked_parts(ignore, LAYOUT_PARTS | SHAPE_PARTS)
        return same_tree(self, as_shape(other), lambda a, b: _leaves_equal(a, b, ignored))

    def _check_array(self) -> None:
        if not self.is_array:
            raise UnsupportedError(f"only arrays have a layout, not {self.cut_text()}")

    def _repr_html_(self) -> str:
        return str(hook("shape_html")(self))

    def __str__(self) -> str:
        return format_shape(self)

    def __repr__(self) -> str:
        return f"Shape.parse({str(self)!r})"

    def __reduce__(self) -> Reduced:
        return Shape.parse, (str(self),)


def as_shape(shape: Shape | str) -> Shape:
    """Return a shape, parsed if it is given as text.

    Raises
    ------
    ParseError
        The text is not a shape.
    ArgumentTypeError
        `shape` is neither a shape nor text.

    Examples
    --------
    >>> as_shape("f32[3,5]").rank
    2
    """
    if isinstance(shape, Shape):
        return shape
    if isinstance(shape, str):
        return _parsed(shape)
    raise ArgumentTypeError(f"a shape must be a Shape or its text, got {_described(shape)}")


def as_placed(shape: Shape | str) -> Shape:
    """Return a shape whose elements have fixed slots, parsed if it is given as text.

    Raises
    ------
    UnsupportedError
        This is not an array, it is sparse, or a dimension is unbounded.

    Examples
    --------
    >>> as_placed("f32[3,5]").rank
    2
    """
    shape = as_shape(shape)
    check_placed(shape)
    return shape


def plain_shape(shape: Shape, fortran_order: bool = False) -> Shape:
    """Return the shape of a contiguous array of NumPy's: unpacked, without tiles.

    Examples
    --------
    >>> str(plain_shape(Shape.parse("u8[2,3]{0,1:T(2,2)}")))
    'u8[2,3]{1,0}'
    """
    order = Layout.ascending if fortran_order else Layout.descending
    return shape.with_layout(order(shape.rank))


def _leaves_equal(a: Shape, b: Shape, ignored: frozenset[str]) -> bool:
    if "buffer" in ignored:
        a = a.tuple_shapes[0] if a.is_buffer else a
        b = b.tuple_shapes[0] if b.is_buffer else b
    if a.is_buffer and b.is_buffer:
        a, b = a.tuple_shapes[0], b.tuple_shapes[0]
    if not (a.is_array and b.is_array):
        return a.element_type == b.element_type
    same_precision = "fp_precision" not in ignored or not (a.element_type.is_floating and b.element_type.is_floating)
    if "element_type" not in ignored and same_precision and a.element_type != b.element_type:
        return False
    if not (a.rank == b.rank if "dimensions" in ignored else same_dimensions(a, b)):
        return False
    if "dynamic_dimensions" not in ignored and a.dynamic_dimensions != b.dynamic_dimensions:
        return False
    return "layout" in ignored or layouts_equal(a.layout, b.layout, ignored & LAYOUT_PARTS)


def _described(value: object) -> str:
    is_array = hasattr(value, "dtype")
    return f"{type(value).__name__}; Shape.from_numpy(array) is its shape" if is_array else f"{value!r}"


_parsed = lru_cache(maxsize=1024)(Shape.parse)


def _from_strides(array: StridedArray, library: str) -> Shape:
    from fastindex.core.foreign_arrays import minor_to_major_of

    kind = ElementType.from_dtype_name(array.dtype_name, library)
    order = minor_to_major_of(array, kind.name)
    return Shape(kind, array.sizes, None if order is None else Layout(order))
