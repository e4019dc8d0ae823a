"""Equality of layouts and shapes that overlooks what it is told to.

Source: ``Layout::Equal`` in ``xla/layout.h``, ``Shape::Equal`` in ``xla/shape.h``, the ``Compatible`` family
in ``xla/shape_util.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from fastindex.errors import FastIndexError
from fastindex.shapes.integers import UNBOUNDED
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape

#: What `layouts_equal` can overlook: every field but the order.
LAYOUT_FIELDS: Final = frozenset(
    (
        "tiles",
        "padded_dimensions",
        "padding_value",
        "element_size_in_bits",
        "memory_space",
        "tail_padding_alignment_in_elements",
        "split_configs",
        "dimension_levels",
    )
)
#: What `shapes_equal` can overlook besides.
SHAPE_FIELDS: Final = frozenset(
    ("layout", "element_type", "fp_precision", "dynamic_dimensions", "dimensions", "buffer")
)


def _checked(ignore: Collection[str], known: frozenset[str]) -> frozenset[str]:
    unknown = sorted(set(ignore) - known)
    if isinstance(ignore, str) or unknown:
        raise FastIndexError(f"cannot ignore {unknown or ignore}; what can be ignored: {', '.join(sorted(known))}")
    return frozenset(ignore)


def layouts_equal(a: Layout, b: Layout, ignore: Collection[str] = ()) -> bool:
    """Tell whether two layouts are equal but for the fields in `ignore`.

    Parameters
    ----------
    a, b : Layout
    ignore : collection of str
        Names from `LAYOUT_FIELDS`; all of them leave the order alone.

    Raises
    ------
    FastIndexError
        `ignore` names something else.

    Examples
    --------
    >>> a, b = Layout((1, 0), tiles=((8, 128),)), Layout((1, 0), memory_space=1)
    >>> layouts_equal(a, b), layouts_equal(a, b, ("tiles", "memory_space")), layouts_equal(a, b, LAYOUT_FIELDS)
    (False, True, True)
    """
    compared = LAYOUT_FIELDS - _checked(ignore, LAYOUT_FIELDS)
    return a.minor_to_major == b.minor_to_major and all(getattr(a, name) == getattr(b, name) for name in compared)


def shapes_equal(a: Shape, b: Shape, ignore: Collection[str] = ()) -> bool:
    """Tell whether two shapes are equal but for what is in `ignore`.

    Parameters
    ----------
    a, b : Shape
    ignore : collection of str
        Names from `LAYOUT_FIELDS` and `SHAPE_FIELDS`. "dimensions" still compares ranks; "fp_precision" takes
        all real floating-point types for one; "dynamic_dimensions" lets ``?`` match any size; "buffer" takes
        a buffer for the array in it.

    Raises
    ------
    FastIndexError
        `ignore` names something else.

    Examples
    --------
    >>> a, b = Shape.parse("f32[2,3]{1,0}"), Shape.parse("bf16[2,3]{0,1}")
    >>> shapes_equal(a, b, ignore=("layout",)), shapes_equal(a, b, ignore=("layout", "fp_precision"))
    (False, True)
    """
    ignored = _checked(ignore, LAYOUT_FIELDS | SHAPE_FIELDS)
    return _same_tree(a, b, lambda left, right: _leaves_equal(left, right, ignored))


def _same_tree(a: Shape, b: Shape, same_leaf: Callable[[Shape, Shape], bool]) -> bool:
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
    if not (same_rank(a, b) if "dimensions" in ignored else same_dimensions(a, b)):
        return False
    if "dynamic_dimensions" not in ignored and a.dynamic_dimensions != b.dynamic_dimensions:
        return False
    return "layout" in ignored or layouts_equal(a.layout, b.layout, ignored & LAYOUT_FIELDS)


def same_rank(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes have the same number of dimensions.

    Examples
    --------
    >>> same_rank(Shape("f32", (2, 3)), Shape("s8", (4, 5)))
    True
    """
    return a.rank == b.rank


def same_dimensions(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes have the same sizes; ``?`` is the same as any.

    Examples
    --------
    >>> same_dimensions(Shape("f32", (2, 3)), Shape.parse("s8[2,?]"))
    True
    """
    return a.rank == b.rank and all(
        left == right or UNBOUNDED in (left, right) for left, right in zip(a.dimensions, b.dimensions, strict=True)
    )


def same_element_type(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes have the same element type.

    Examples
    --------
    >>> same_element_type(Shape("f32", (2, 3)), Shape("f32"))
    True
    """
    return a.element_type == b.element_type


def compatible(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes are the same but for layouts and dynamic dimensions.

    Examples
    --------
    >>> compatible(Shape.parse("f32[2,3]{1,0}"), Shape.parse("f32[<=2,3]{0,1}"))
    True
    """
    return shapes_equal(a, b, ("layout", "dynamic_dimensions"))


def compatible_ignoring_element_type(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes are the same but for layouts, dynamic dimensions and element types.

    Examples
    --------
    >>> compatible_ignoring_element_type(Shape("f32", (2,)), Shape("s8", (2,)))
    True
    """
    return shapes_equal(a, b, ("layout", "dynamic_dimensions", "element_type"))


def compatible_ignoring_fp_precision(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes are the same but for layouts, dynamic dimensions and floating-point precision.

    Examples
    --------
    >>> compatible_ignoring_fp_precision(Shape("f32", (2,)), Shape("bf16", (2,)))
    True
    """
    return shapes_equal(a, b, ("layout", "dynamic_dimensions", "fp_precision"))


def compatible_kind(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes are trees of the same kinds: arrays of the same rank, tuples, tokens, and so
    on.

    Examples
    --------
    >>> compatible_kind(Shape.parse("(f32[2], token[])"), Shape.parse("(s8[9], token[])"))
    True
    """
    return shapes_equal(a, b, ("layout", "dynamic_dimensions", "element_type", "dimensions"))


def equal_structure(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes are the same tree of tuples, whatever is below.

    Examples
    --------
    >>> equal_structure(Shape.parse("(f32[2], ())"), Shape.parse("(token[], ())"))
    True
    """
    return _same_tree(a, b, lambda left, right: True)


def layouts_in_shapes_equal(a: Shape, b: Shape, ignore: Collection[str] = ()) -> bool:
    """Tell whether the arrays of two shapes have the same layouts, whatever their types and sizes.

    Source: ``LayoutUtil::LayoutsInShapesEqual``; here `ignore` reaches below tuples.

    Raises
    ------
    FastIndexError
        `ignore` names something else than `LAYOUT_FIELDS`.

    Examples
    --------
    >>> layouts_in_shapes_equal(Shape.parse("(f32[2,3]{0,1})"), Shape.parse("(s8[4,5]{0,1})"))
    True
    """
    ignored = _checked(ignore, LAYOUT_FIELDS)

    def same_layout(left: Shape, right: Shape) -> bool:
        if not (left.is_array and right.is_array):
            return left.is_array == right.is_array
        return left.rank == right.rank and layouts_equal(left.layout, right.layout, ignored)

    return _same_tree(a, b, same_layout)
