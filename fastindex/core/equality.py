"""Equality of shapes that ignores some of their parts.

Source: ``Shape::Equal`` in ``xla/shape.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeVar

from fastindex.core.integers import UNBOUNDED
from fastindex.core.layout_fields import LAYOUT_PARTS, checked_parts, layouts_equal
from fastindex.core.sizes import SizedShape

S = TypeVar("S", bound=SizedShape)

#: The parts of a shape that a comparison can ignore, in addition to those of its layout.
SHAPE_PARTS: Final = frozenset(("layout", "element_type", "fp_precision", "dynamic_dimensions", "dimensions", "buffer"))


def shapes_equal(a: SizedShape, b: SizedShape, ignore: Collection[str]) -> bool:
    """Whether two shapes are equal, except for the parts in `ignore`; see `Shape.equals`.

    Examples
    --------
    >>> from fastindex import Shape
    >>> shapes_equal(Shape.parse("f32[2]"), Shape.parse("bf16[2]"), ("fp_precision",))
    True
    """
    ignored = checked_parts(ignore, LAYOUT_PARTS | SHAPE_PARTS)
    return same_tree(a, b, lambda left, right: _leaves_equal(left, right, ignored))


def same_tree(a: S, b: S, same_leaf: Callable[[S, S], bool]) -> bool:
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
        if left.is_tuple or right.is_tuple:
            if left.element_type != right.element_type or len(left.tuple_shapes) != len(right.tuple_shapes):
                return False
            pending.extend(zip(left.tuple_shapes, right.tuple_shapes, strict=True))
        elif not same_leaf(left, right):
            return False
    return True


def same_dimensions(a: SizedShape, b: SizedShape) -> bool:
    """Whether two shapes have the same sizes; ``?`` matches any.

    Examples
    --------
    >>> from fastindex import Shape
    >>> same_dimensions(Shape("f32", (2, 3)), Shape.parse("s8[2,?]"))
    True
    """
    return a.rank == b.rank and all(
        left == right or UNBOUNDED in (left, right) for left, right in zip(a.dimensions, b.dimensions, strict=True)
    )


def _leaves_equal(a: SizedShape, b: SizedShape, ignored: frozenset[str]) -> bool:
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
