"""Compatibility of shapes, as XLA defines it.

Source: the ``Compatible`` family in ``xla/shape_util.h``, ``LayoutsInShapesEqual`` in ``xla/layout_util.h``.
"""

from __future__ import annotations

from collections.abc import Collection

from fastindex.core import shape_fields as shape_equality
from fastindex.core.layout_fields import LAYOUT_PARTS, checked_parts, layouts_equal
from fastindex.core.shape import Shape, as_shape
from fastindex.core.shape_fields import same_tree


def same_dimensions(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes have the same sizes; ``?`` matches any.

    Examples
    --------
    >>> same_dimensions("f32[2,3]", "s8[2,?]")
    True
    """
    return shape_equality.same_dimensions(as_shape(a), as_shape(b))


def compatible(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes are equal, ignoring layouts and dynamic dimensions.

    Examples
    --------
    >>> compatible("f32[2,3]{1,0}", "f32[<=2,3]{0,1}")
    True
    """
    return as_shape(a).equals(b, ("layout", "dynamic_dimensions"))


def compatible_ignoring_element_type(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes are equal, ignoring layouts, dynamic dimensions and element types.

    Examples
    --------
    >>> compatible_ignoring_element_type("f32[2]", "s8[2]")
    True
    """
    return as_shape(a).equals(b, ("layout", "dynamic_dimensions", "element_type"))


def compatible_ignoring_fp_precision(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes are equal, ignoring layouts, dynamic dimensions and floating-point precision.

    Examples
    --------
    >>> compatible_ignoring_fp_precision("f32[2]", "bf16[2]")
    True
    """
    return as_shape(a).equals(b, ("layout", "dynamic_dimensions", "fp_precision"))


def compatible_kind(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes have the same structure and kinds: arrays of the same rank, tuples, tokens, and so on.

    Examples
    --------
    >>> compatible_kind("(f32[2], token[])", "(s8[9], token[])")
    True
    """
    return as_shape(a).equals(b, ("layout", "dynamic_dimensions", "element_type", "dimensions"))


def equal_structure(a: Shape | str, b: Shape | str) -> bool:
    """Whether two shapes have the same nested tuples, ignoring their leaves.

    Examples
    --------
    >>> equal_structure("(f32[2], ())", "(token[], ())")
    True
    """
    return same_tree(as_shape(a), as_shape(b), lambda left, right: True)


def layouts_in_shapes_equal(a: Shape | str, b: Shape | str, ignore: Collection[str] = ()) -> bool:
    """Whether the arrays of two shapes have the same layouts, ignoring their types and sizes.

    Source: ``LayoutUtil::LayoutsInShapesEqual``. Unlike in XLA, `ignore` also applies inside tuples.

    Parameters
    ----------
    a, b : Shape or str
    ignore : collection of str
        Fields of the layouts to ignore, as for `Layout.equals`.

    Raises
    ------
    FastIndexError
        `ignore` has an unknown name.

    Examples
    --------
    >>> layouts_in_shapes_equal("(f32[2,3]{0,1})", "(s8[4,5]{0,1})")
    True
    """
    ignored = checked_parts(ignore, LAYOUT_PARTS)

    def same_layout(left: Shape, right: Shape) -> bool:
        if not (left.is_array and right.is_array):
            return left.is_array == right.is_array
        return left.rank == right.rank and layouts_equal(left.layout, right.layout, ignored)

    return same_tree(as_shape(a), as_shape(b), same_layout)
