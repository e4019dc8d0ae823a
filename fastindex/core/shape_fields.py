"""The fields of a shape, the rules they satisfy, and the constructors.

Source: ``ValidateDimensions`` and ``ValidateShapeSize`` in ``xla/shape_util.cc``, ``ValidateLayoutForShape``
in ``xla/layout_util.cc``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn, Self, SupportsIndex, TypeVar

from fastindex.core.element_types import BY_NAME, ElementType
from fastindex.core.integers import INT64_MAX, UNBOUNDED, as_integers, counted, spelled
from fastindex.core.layout import Layout
from fastindex.core.layout_fields import LayoutFields, check_dimension_count
from fastindex.errors import ArgumentTypeError, FastIndexError, LayoutError

Ints = tuple[int, ...]
Bools = tuple[bool, ...]


def checked_dynamic(sizes: Ints, dynamic: Iterable[bool] | None) -> Bools:
    if dynamic is None:
        return tuple([size == UNBOUNDED for size in sizes])
    try:
        flags = tuple([bool(flag) for flag in dynamic])
    except (TypeError, ValueError):
        # ValueError: the truth value of an array.
        raise ArgumentTypeError(f"dynamic_dimensions must be a sequence of flags, got {dynamic!r:.80}") from None
    if len(flags) != len(sizes):
        raise LayoutError(
            f"dynamic_dimensions must have one flag per dimension: {len(flags)} for {counted(len(sizes), 'dimension')}",
            field="dynamic_dimensions",
        )
    for i, size in enumerate(sizes):
        if size == UNBOUNDED and not flags[i]:
            raise LayoutError("an unbounded dimension is dynamic", field="dynamic_dimensions", index=i)
    return flags


def check_dimensions(element_type: ElementType, sizes: Ints) -> None:
    check_dimension_count(len(sizes), "dimensions")
    count = 1
    for i, size in enumerate(sizes):
        if size < 0:
            if size == UNBOUNDED:
                continue
            raise LayoutError(f"dimensions must be at least 0: {size} in {spelled(sizes)}", field="dimensions", index=i)
        # Left to right, like XLA: a 0 prevents an overflow only if it comes first.
        count *= size
        if count > INT64_MAX:
            raise LayoutError(f"int64 overflow: the elements of {spelled(sizes)}", field="dimensions", index=i)
    if count * element_type.nbytes > INT64_MAX:
        raise LayoutError(
            f"int64 overflow: the bytes of {spelled(sizes)} elements of {element_type}", field="dimensions", index=None
        )


def check_fit(sizes: Ints, layout: LayoutFields) -> None:
    if layout.rank != len(sizes):
        raise LayoutError(
            f"minor_to_major must name every dimension: {counted(layout.rank, 'entry')}"
            f" for {counted(len(sizes), 'dimension')}",
            field="layout",
        )
    if layout.padded_dimensions is not None:
        for i, (size, padded) in enumerate(zip(sizes, layout.padded_dimensions, strict=True)):
            if padded < size:
                raise LayoutError(
                    f"a padded dimension must be at least its dimension: {padded} for {size}",
                    field="padded_dimensions",
                    index=i,
                )
    for i, split in enumerate(layout.split_configs):
        size = sizes[layout.minor_to_major[layout.rank - 1 - split.dimension]]
        # This includes unbounded dimensions, which cannot be split.
        if split.split_indices and split.split_indices[-1] >= size:
            raise LayoutError(
                f"split indices must lie below the dimension's size {size}: SC{split}",
                field="split_configs",
                index=i,
            )


def fitting_layout(layout: Layout | str | None, sizes: Ints) -> Layout:
    """Return a layout, or the default one, if it fits an array of these sizes."""
    if layout is None:
        return Layout.descending(len(sizes))
    layout = Layout.parse(layout) if isinstance(layout, str) else layout
    if not isinstance(layout, Layout):
        raise ArgumentTypeError(f"layout must be a Layout or its text such as '{{1,0}}', got {layout!r}")
    if sizes and layout.memory_space and not layout.minor_to_major:
        # From jaxlib 0.12 on, XLA omits the default order of a layout with a memory space.
        layout = replace(layout, minor_to_major=tuple(range(len(sizes)))[::-1])
    check_fit(sizes, layout)
    return layout


class ShapeFields:
    """The fields of a `Shape`, which documents them and adds text, protos and conversions."""

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
    tuple_shapes: builtins.tuple[Self, ...]
    _layout: Layout | None
    _hash: int
    _slot_count: int | None

    def __init__(
        self,
        element_type: ElementType | str | Any,
        dimensions: Iterable[SupportsIndex] = (),
        layout: Layout | str | None = None,
        dynamic_dimensions: Iterable[bool] | None = None,
    ) -> None:
        if isinstance(element_type, list | builtins.tuple):
            _fail_for_order(element_type, dimensions)
        kind = ElementType.of(element_type)
        if not kind.is_array:
            raise LayoutError(f"{kind} has no dimensions; use Shape.{kind}()", field="element_type")
        sizes = as_integers(dimensions, "dimensions")
        dynamic = checked_dynamic(sizes, dynamic_dimensions)
        check_dimensions(kind, sizes)
        self._fill(kind, sizes, dynamic, fitting_layout(layout, sizes), ())

    def _fill(
        self,
        element_type: ElementType,
        dimensions: Ints,
        dynamic_dimensions: Bools,
        layout: Layout | None,
        tuple_shapes: builtins.tuple[Self, ...],
    ) -> None:
        put = object.__setattr__
        put(self, "element_type", element_type)
        put(self, "dimensions", dimensions)
        put(self, "dynamic_dimensions", dynamic_dimensions)
        put(self, "_layout", layout)
        put(self, "tuple_shapes", tuple_shapes)
        put(self, "_hash", hash((element_type.number, dimensions, dynamic_dimensions, layout, tuple_shapes)))
        put(self, "_slot_count", None)

    @classmethod
    def _other(cls, element_type: str, tuple_shapes: builtins.tuple[Self, ...] = ()) -> Self:
        shape = object.__new__(cls)
        shape._fill(BY_NAME[element_type], (), (), None, tuple_shapes)
        return shape

    @classmethod
    def tuple(cls, shapes: Iterable[Self] = ()) -> Self:
        """Return the shape of a tuple.

        Examples
        --------
        >>> from fastindex import Shape
        >>> str(Shape.tuple([Shape("f32", (2,)), Shape.token()]))
        '(f32[2]{0}, token[])'
        """
        elements = builtins.tuple(shapes)
        for element in elements:
            if not isinstance(element, cls):
                raise ArgumentTypeError(f"a tuple must hold shapes, got {element!r}")
        return cls._other("tuple", elements)

    @classmethod
    def token(cls) -> Self:
        """Return the shape of a token.

        Examples
        --------
        >>> from fastindex import Shape
        >>> str(Shape.token())
        'token[]'
        """
        return cls._other("token")

    @classmethod
    def opaque(cls) -> Self:
        """Return the shape of an opaque value.

        Examples
        --------
        >>> from fastindex import Shape
        >>> str(Shape.opaque())
        'opaque[]'
        """
        return cls._other("opaque")

    @classmethod
    def buffer(cls, shape: Self) -> Self:
        """Return the shape of a buffer that holds an array.

        Examples
        --------
        >>> from fastindex import Shape
        >>> str(Shape.buffer(Shape("f32", (2,))))
        'b(f32[2]{0})'
        """
        if not isinstance(shape, cls):
            raise ArgumentTypeError(f"a buffer must hold a shape, got {shape!r}")
        if shape._layout is None:
            raise LayoutError(f"a buffer must hold an array, got {shape.element_type}", field="tuple_shapes")
        return cls._other("buffer", (shape,))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeFields):
            return NotImplemented
        # No recursion: tuples can nest thousands of levels deep.
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


_Shape = TypeVar("_Shape", bound=ShapeFields)


def same_tree(a: _Shape, b: _Shape, same_leaf: Callable[[_Shape, _Shape], bool]) -> bool:
    """Whether two shapes have the same tuples, and `same_leaf` is true for each pair of leaves.

    Examples
    --------
    >>> from fastindex import Shape
    >>> same_tree(Shape.parse("(f32[2], ())"), Shape.parse("(token[], ())"), lambda a, b: True)
    True
    """
    pending = [(a, b)]
    while pending:
        left, right = pending.pop()
        if "tuple" in (left.element_type.name, right.element_type.name):
            if left.element_type != right.element_type or len(left.tuple_shapes) != len(right.tuple_shapes):
                return False
            pending.extend(zip(left.tuple_shapes, right.tuple_shapes, strict=True))
        elif not same_leaf(left, right):
            return False
    return True


def same_dimensions(a: ShapeFields, b: ShapeFields) -> bool:
    """Whether two shapes have the same sizes; ``?`` matches any.

    Examples
    --------
    >>> from fastindex import Shape
    >>> same_dimensions(Shape("f32", (2, 3)), Shape.parse("s8[2,?]"))
    True
    """
    return len(a.dimensions) == len(b.dimensions) and all(
        left == right or UNBOUNDED in (left, right) for left, right in zip(a.dimensions, b.dimensions, strict=True)
    )


def _fail_for_order(sizes: object, element_type: object) -> NoReturn:
    try:
        name: object = ElementType.of(element_type).name
    except FastIndexError:
        name = "f32"
    raise ArgumentTypeError(f"the element type comes before the dimensions: write Shape({name!r}, {sizes!r})")
