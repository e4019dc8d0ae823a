"""Shapes: an element type, dimensions and a layout; or a tuple, token, opaque value or buffer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from fastindex.errors import LayoutError, OutOfBoundsError, UnsupportedError
from fastindex.shapes.element_types import BY_NAME, ElementType
from fastindex.shapes.integers import as_integer, as_integers
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape_conversions import ShapeConversions
from fastindex.shapes.shape_rules import Bools, Ints, check_dimensions, check_fit, checked_dynamic
from fastindex.shapes.writing import format_shape
from fastindex.xla.sizes import bytes_of, check_sized, count_slots, sum_bytes

Shapes = tuple["Shape", ...]
Letters = tuple[str, ...]
Reduced = tuple[Any, ...]

_LETTERS: tuple[tuple[str, ...], ...] = ((), ("x",), ("y", "x"), ("z", "y", "x"), ("p", "z", "y", "x"))


class Shape(ShapeConversions):
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

    __slots__ = (
        "_hash",
        "_layout",
        "_slot_count",
        "dimensions",
        "dynamic_dimensions",
        "element_type",
        "tuple_shapes",
    )

    element_type: ElementType
    dimensions: Ints
    dynamic_dimensions: Bools
    tuple_shapes: Shapes
    _layout: Layout | None
    _hash: int
    _slot_count: int | None

    def __init__(
        self,
        element_type: ElementType | str | Any,
        dimensions: Iterable[SupportsIndex] = (),
        layout: Layout | None = None,
        dynamic_dimensions: Iterable[bool] | None = None,
    ) -> None:
        kind = ElementType.of(element_type)
        if not kind.is_array:
            raise LayoutError(f"{kind} has no dimensions; use Shape.{kind}()", field="element_type")
        sizes = as_integers(dimensions, "dimensions")
        dynamic = checked_dynamic(sizes, dynamic_dimensions)
        check_dimensions(kind, sizes)
        if layout is None:
            layout = Layout.descending(len(sizes))
        elif not isinstance(layout, Layout):
            raise TypeError(f"layout must be a Layout, got {layout!r}; Layout.parse reads text")
        else:
            check_fit(sizes, layout)
        self._fill(kind, sizes, dynamic, layout, ())

    def _fill(
        self,
        element_type: ElementType,
        dimensions: Ints,
        dynamic_dimensions: Bools,
        layout: Layout | None,
        tuple_shapes: Shapes,
    ) -> None:
        put = object.__setattr__
        put(self, "element_type", element_type)
        put(self, "dimensions", dimensions)
        put(self, "dynamic_dimensions", dynamic_dimensions)
        put(self, "_layout", layout)
        put(self, "tuple_shapes", tuple_shapes)
        put(self, "_hash", hash((element_type.number, dimensions, dynamic_dimensions, layout, tuple_shapes)))
        put(self, "_slot_count", None)

    @staticmethod
    def _other(element_type: str, tuple_shapes: Shapes = ()) -> Shape:
        shape = object.__new__(Shape)
        shape._fill(BY_NAME[element_type], (), (), None, tuple_shapes)
        return shape

    @staticmethod
    def tuple(shapes: Iterable[Shape] = ()) -> Shape:
        """Give the shape of a tuple.

        Examples
        --------
        >>> str(Shape.tuple([Shape("f32", (2,)), Shape.token()]))
        '(f32[2]{0}, token[])'
        """
        elements = tuple(shapes)
        for element in elements:
            if not isinstance(element, Shape):
                raise TypeError(f"a tuple must hold shapes, got {element!r}")
        return Shape._other("tuple", elements)

    @staticmethod
    def token() -> Shape:
        """Give the shape of a token.

        Examples
        --------
        >>> str(Shape.token())
        'token[]'
        """
        return Shape._other("token")

    @staticmethod
    def opaque() -> Shape:
        """Give the shape of an opaque value.

        Examples
        --------
        >>> str(Shape.opaque())
        'opaque[]'
        """
        return Shape._other("opaque")

    @staticmethod
    def buffer(shape: Shape) -> Shape:
        """Give the shape of a buffer that holds an array.

        Examples
        --------
        >>> str(Shape.buffer(Shape("f32", (2,))))
        'b(f32[2]{0})'
        """
        if not isinstance(shape, Shape):
            raise TypeError(f"a buffer must hold a shape, got {shape!r}")
        if not shape.is_array:
            raise LayoutError(f"a buffer must hold an array, got {shape.element_type}", field="tuple_shapes")
        return Shape._other("buffer", (shape,))

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
        from fastindex.shapes.reading import parse_shape

        return parse_shape(text)

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
        from fastindex.shapes.proto import bytes_of_message, shape_from_bytes

        return shape_from_bytes(bytes_of_message(proto))

    def to_proto(self) -> bytes:
        """Serialise as a ``ShapeProto``, byte for byte as XLA.

        Examples
        --------
        >>> Shape("f32", (3,)).to_proto().hex()
        '100b1a01032a060a0100800101320100'
        """
        from fastindex.shapes.proto import shape_to_bytes

        return shape_to_bytes(self)

    @property
    def is_array(self) -> bool:
        """Whether this is an array.

        Examples
        --------
        >>> Shape("f32").is_array, Shape.token().is_array
        (True, False)
        """
        return self._layout is not None

    @property
    def is_tuple(self) -> bool:
        """Whether this is a tuple.

        Examples
        --------
        >>> Shape.tuple().is_tuple
        True
        """
        return self.element_type.name == "tuple"

    @property
    def is_buffer(self) -> bool:
        """Whether this is a buffer.

        Examples
        --------
        >>> Shape.buffer(Shape("f32", (2,))).is_buffer
        True
        """
        return self.element_type.name == "buffer"

    @property
    def layout(self) -> Layout:
        """How the dimensions lie in memory.

        Raises
        ------
        UnsupportedError
            Not an array.

        Examples
        --------
        >>> str(Shape("f32", (2, 3)).layout)
        '{1,0}'
        """
        if self._layout is None:
            raise UnsupportedError(f"only arrays have a layout, not {self.cut_text()}")
        return self._layout

    @property
    def rank(self) -> int:
        """Number of dimensions.

        Examples
        --------
        >>> Shape("f32", (1, 3)).rank
        2
        """
        return len(self.dimensions)

    @property
    def true_rank(self) -> int:
        """Number of dimensions whose size is not 1.

        Examples
        --------
        >>> Shape("f32", (1, 3)).true_rank
        1
        """
        return sum(size != 1 for size in self.dimensions)

    @property
    def dimension_letters(self) -> Letters:
        """The letters the documents give the dimensions, up to rank 4; () beyond.

        Examples
        --------
        >>> Shape("f32", (2, 3, 4)).dimension_letters
        ('z', 'y', 'x')
        """
        return _LETTERS[self.rank] if self.rank < len(_LETTERS) else ()

    def dimension(self, number: SupportsIndex) -> int:
        """Give the size of a dimension; negative numbers count from the last.

        Raises
        ------
        OutOfBoundsError
            No such dimension.

        Examples
        --------
        >>> Shape("f32", (2, 3)).dimension(-1)
        3
        """
        return self.dimensions[self.dimension_number(number)]

    def dimension_number(self, number: SupportsIndex) -> int:
        """Give the number of a dimension counted from the first; negative numbers count from the last.

        Raises
        ------
        OutOfBoundsError
            No such dimension.

        Examples
        --------
        >>> Shape("f32", (2, 3)).dimension_number(-1)
        1
        """
        checked = as_integer(number, "dimension")
        if not -self.rank <= checked < self.rank:
            raise OutOfBoundsError(f"dimension {checked} is out of bounds for {self.cut_text()} of rank {self.rank}")
        return checked % self.rank

    @property
    def element_bits(self) -> int:
        """Bits one slot takes in the buffer.

        Examples
        --------
        >>> Shape.parse("s4[8]{0:E(4)}").element_bits, Shape.parse("s4[8]").element_bits
        (4, 8)
        """
        return self.layout.element_size_in_bits or 8 * self.element_type.nbytes

    @property
    def element_count(self) -> int:
        """Number of logical elements, an upper bound of a dynamic dimension counted in full.

        Raises
        ------
        UnsupportedError
            Not an array, or a dimension is unbounded.

        Examples
        --------
        >>> Shape("f32", (3, 5)).element_count
        15
        """
        check_sized(self)
        return math.prod(self.dimensions)

    @property
    def slot_count(self) -> int:
        """Number of slots of the buffer, every kind of padding included.

        Raises
        ------
        UnsupportedError
            Not an array, a sparse one, or a dimension is unbounded.
        LayoutError
            The slots do not fit int64.

        Examples
        --------
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").slot_count
        24
        """
        slots = self._slot_count
        if slots is None:
            slots = count_slots(self)
            object.__setattr__(self, "_slot_count", slots)
        return slots

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer, every kind of padding included.

        Of a tuple, the sum over its arrays, without the pointers to them; of a token or an opaque value, 0.

        Raises
        ------
        UnsupportedError
            A dimension is unbounded, or an array sparse.
        LayoutError
            The bytes do not fit int64.

        Examples
        --------
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").nbytes
        96
        >>> Shape.parse("s4[3]{0:E(4)}").nbytes
        2
        """
        if not self.is_array:
            return sum_bytes(self, logical=False)
        return bytes_of(self, self.slot_count)

    @property
    def logical_nbytes(self) -> int:
        """Bytes of the elements alone, as wide as they are in the buffer.

        Raises
        ------
        UnsupportedError
            A dimension is unbounded.

        Examples
        --------
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").logical_nbytes
        60
        """
        if not self.is_array:
            return sum_bytes(self, logical=True)
        return bytes_of(self, self.element_count)

    @property
    def padding_ratio(self) -> float:
        """Bytes of the buffer per byte of its elements: 1.0 without padding, infinite where all is padding.

        Examples
        --------
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").padding_ratio
        1.6
        """
        nbytes, logical_nbytes = self.nbytes, self.logical_nbytes
        if logical_nbytes == 0:
            return math.inf if nbytes else 1.0
        return nbytes / logical_nbytes

    def leaves(self) -> Iterator[Shape]:
        """Give the shapes below all tuples, in order; a shape that is not a tuple gives itself.

        Examples
        --------
        >>> [str(leaf) for leaf in Shape.parse("(f32[2], (token[], s8[]))").leaves()]
        ['f32[2]{0}', 'token[]', 's8[]']
        """
        pending = [self]
        while pending:
            shape = pending.pop()
            if shape.is_tuple:
                pending.extend(reversed(shape.tuple_shapes))
            else:
                yield shape

    def cut_text(self) -> str:
        """The text, cut where it is too long for a message.

        Examples
        --------
        >>> Shape("f32", (2, 3)).cut_text()
        'f32[2,3]{1,0}'
        """
        text = str(self)
        return text if len(text) <= 200 else text[:200] + "..."

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        # No recursion, since tuples nest thousands deep.
        pending = [(self, other)]
        while pending:
            a, b = pending.pop()
            if a is b:
                continue
            if (
                a._hash != b._hash
                or a.element_type != b.element_type
                or a.dimensions != b.dimensions
                or a.dynamic_dimensions != b.dynamic_dimensions
                or a._layout != b._layout
                or len(a.tuple_shapes) != len(b.tuple_shapes)
            ):
                return False
            pending.extend(zip(a.tuple_shapes, b.tuple_shapes, strict=True))
        return True

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"shapes are frozen, {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"shapes are frozen, {name} cannot be deleted")

    def __str__(self) -> str:
        return format_shape(self)

    def __repr__(self) -> str:
        return f"Shape.parse({str(self)!r})"

    def __reduce__(self) -> Reduced:
        return Shape.parse, (str(self),)
