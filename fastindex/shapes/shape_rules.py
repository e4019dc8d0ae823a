"""The rules that a shape must satisfy: XLA's rules for dimensions, and for dimensions with a layout.

Source: ``ValidateDimensions`` and ``ValidateShapeSize`` in ``xla/shape_util.cc``, ``ValidateLayoutForShape``
in ``xla/layout_util.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastindex.errors import LayoutError
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.integers import INT64_MAX, UNBOUNDED, counted, spelled
from fastindex.shapes.layout_fields import LayoutFields
from fastindex.shapes.layout_rules import check_dimension_count

Ints = tuple[int, ...]
Bools = tuple[bool, ...]


def checked_dynamic(sizes: Ints, dynamic: Iterable[bool] | None) -> Bools:
    if dynamic is None:
        return tuple([size == UNBOUNDED for size in sizes])
    flags = tuple([bool(flag) for flag in dynamic])
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
            f"int64 overflow: the bytes of {element_type}{spelled(sizes)}", field="dimensions", index=None
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
