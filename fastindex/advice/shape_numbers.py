"""The numbers of a shape, as JSON takes them."""

from __future__ import annotations

from typing import Any

from fastindex.core.shape import Shape, as_shape
from fastindex.core.tiles import COMBINE


def info(shape: Shape | str) -> dict[str, Any]:
    """Return the numbers of a shape as JSON takes them.

    A combined axis of a tile is "*". A shape that is not an array only has a text, an element type and bytes, and a
    tuple also has leaves.

    Raises
    ------
    ParseError
        The text is not a shape.
    UnsupportedError
        A dimension is unbounded, or an array is sparse.

    Examples
    --------
    >>> found = info("f32[3,5]{1,0:T(2,2)}")
    >>> found["slot_count"], found["nbytes"], found["tiles"]
    (24, 96, [[2, 2]])
    """
    shape = as_shape(shape)
    start = {"text": str(shape), "element_type": str(shape.element_type)}
    sizes = {
        "nbytes": shape.nbytes,
        "logical_nbytes": shape.logical_nbytes,
        # JSON has no infinity, which is the ratio of a buffer that is all padding.
        "padding_ratio": shape.padding_ratio if shape.logical_nbytes or not shape.nbytes else None,
    }
    if not shape.is_array:
        leaves = [str(leaf) for leaf in shape.leaves()] if shape.is_tuple else []
        return {**start, **({"leaves": leaves} if shape.is_tuple else {}), **sizes}
    return {
        **start,
        "dimensions": list(shape.dimensions),
        "minor_to_major": list(shape.layout.minor_to_major),
        "tiles": [["*" if size == COMBINE else size for size in tile] for tile in shape.layout.tiles],
        "rank": shape.rank,
        "true_rank": shape.true_rank,
        "element_count": shape.element_count,
        "slot_count": shape.slot_count,
        **sizes,
    }
