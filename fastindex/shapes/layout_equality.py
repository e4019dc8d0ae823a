"""Equality of layouts, ignoring some of their parts.

Source: ``Layout::Equal`` in ``xla/layout.h``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fastindex.errors import FastIndexError
from fastindex.shapes.layout_fields import LayoutFields

#: The parts of a layout that a comparison can ignore: all but the order of dimensions.
LAYOUT_PARTS: Final = frozenset(
    (
        "tiles",
        "padded_dimensions",
        "padding_value",
        "element_size_in_bits",
        "memory_space",
        "tail_padding_alignment_in_elements",
        "split_configs",
        "dimension_levels",
        "index_primitive_type",
        "pointer_primitive_type",
    )
)


def checked_parts(ignore: Collection[str], known: frozenset[str]) -> frozenset[str]:
    """Return `ignore` as a set, checked to hold names from `known`.

    Raises
    ------
    FastIndexError
        A name is not in `known`.

    Examples
    --------
    >>> checked_parts(["tiles"], LAYOUT_PARTS)
    frozenset({'tiles'})
    """
    unknown = sorted(set(ignore) - known)
    if isinstance(ignore, str) or unknown:
        raise FastIndexError(f"cannot ignore {unknown or ignore}; what can be ignored: {', '.join(sorted(known))}")
    return frozenset(ignore)


def layouts_equal(a: LayoutFields, b: LayoutFields, ignored: frozenset[str]) -> bool:
    """Whether two layouts are equal, apart from the parts in `ignored` (names from `LAYOUT_PARTS`).

    Examples
    --------
    >>> layouts_equal(LayoutFields((1, 0)), LayoutFields((1, 0), memory_space=1), frozenset(("memory_space",)))
    True
    """
    compared = LAYOUT_PARTS - ignored
    return a.minor_to_major == b.minor_to_major and all(getattr(a, name) == getattr(b, name) for name in compared)
