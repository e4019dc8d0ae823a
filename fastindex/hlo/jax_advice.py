"""A layout change as a line of JAX, and what it costs elsewhere.

JAX accepts layouts of arguments and results with tiles (`jax.experimental.layout.Format`), and of values inside a
program without (`with_layout_constraint`); there XLA chooses the tiles.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastindex.advice.changes import Change
from fastindex.advice.spelling import bytes_text
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape

_CALLERS = frozenset(("argument", "output"))


def jax_lines(shape: Shape, change: Change, roles: Iterable[str]) -> tuple[str, ...]:
    """Return lines of JAX that apply a change to an array `x` in a program, or to an argument of `f`.

    Parameters
    ----------
    shape : Shape
    change : Change
        Of that shape.
    roles : iterable of str
        The roles of the buffers; the caller can choose the layouts of arguments and outputs.

    Examples
    --------
    >>> from fastindex.advice.changes import cheapest_change
    >>> shape = Shape.parse("f32[1000,3]{1,0:T(8,128)}")
    >>> jax_lines(shape, cheapest_change(shape), ["temporary"])
    ('x = jax.numpy.swapaxes(x, 0, 1)',)
    """
    after = change.shape
    if after.dimensions != shape.dimensions:
        return (f"x = x.reshape({_tuple_text(after.dimensions)})",)
    lines = []
    roles = set(roles)
    before_order, order = shape.layout.minor_to_major, after.layout.minor_to_major
    if roles & _CALLERS and (order != before_order or after.layout.tiles != shape.layout.tiles):
        where = "in_shardings" if "argument" in roles else "out_shardings"
        lines.append(f"jax.jit(f, {where}=Format({_layout_text(after.layout, tiles=True)}, sharding))")
    if order != before_order and roles - _CALLERS:
        moved = [d for d, other in zip(order, before_order, strict=True) if d != other]
        # If the array lies in the order of its dimensions, exchanging two of them does the same.
        if len(moved) == 2 and before_order == tuple(range(shape.rank))[::-1]:
            lines.append(f"x = jax.numpy.swapaxes(x, {min(moved)}, {max(moved)})")
        else:
            lines.append(f"x = with_layout_constraint(x, {_layout_text(after.layout, tiles=False)})")
    return tuple(lines)


def _layout_text(layout: Layout, tiles: bool) -> str:
    order = _tuple_text(layout.major_to_minor)
    if tiles and layout.tiles and all(size > 0 for tile in layout.tiles for size in tile):
        return f"Layout({order}, {_tuple_text(map(_tuple_text, layout.tiles))})"
    return f"Layout({order})"


def _tuple_text(items: Iterable[object]) -> str:
    parts = [str(item) for item in items]
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def cost_text(shape: Shape, change: Change, nbytes: int, copies: Iterable[tuple[str, Shape]]) -> str:
    """Say what a change costs if a consumer needs the old order.

    The module shows its copies between layouts; what fusions and other consumers need is not in the text.

    Parameters
    ----------
    shape : Shape
    change : Change
        Of that shape.
    nbytes : int
        Of one such buffer.
    copies : iterable of (str, Shape)
        Copies of it into other layouts: the instruction and its shape.
    """
    gone = [name for name, copy in copies if copy.equals(change.shape, ignore=("memory_space",))]
    if gone:
        return f"no longer needed: {', '.join(gone[:3])}, which now copies it into this layout"
    if (
        change.shape.dimensions == shape.dimensions
        and change.shape.layout.minor_to_major == shape.layout.minor_to_major
    ):
        return "the order stays the same, so consumers read it as before"
    return (
        f"a consumer that wants the old order copies it back, {bytes_text(nbytes)} each; whether one does is not known"
    )
