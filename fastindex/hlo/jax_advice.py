"""Express a layout change as a line of JAX, and state its cost for consumers.

JAX accepts layouts for arguments and results (`jax.experimental.layout.Format`). Inside a program XLA chooses: swapping
logical dimensions has no effect, and a constraint helps or harms depending on its position.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastindex.core.shape import Shape
from fastindex.show.padding import Change
from fastindex.show.spelling import bytes_text
from fastindex.show.tpu_layouts import is_tpu_default

#: Roles of buffers whose layouts the caller can choose.
CALLERS_ROLES = frozenset(("argument", "output"))
#: The advice for a value inside a program.
INSIDE = (
    "a value inside the compiled program: the compiler chooses its layout, and compiling again shows what another one "
    "does (fastindex.hlo.try_layouts)"
)


def jax_lines(shape: Shape, change: Change, roles: Iterable[str]) -> tuple[str, ...]:
    """Return lines of JAX that apply a change to an argument or a result of `f`; empty for values inside a program.

    A ``Layout`` without tiles gets the compiler's own tiles. The compiler rejects other tiles in many programs, so
    there is no line for a layout with those.

    Parameters
    ----------
    shape : Shape
    change : Change
        A change of that shape.
    roles : iterable of str
        Roles of the buffers; the caller can choose the layouts of arguments and outputs.

    Examples
    --------
    >>> from fastindex.show.padding import cheapest_change
    >>> shape = Shape.parse("f32[1000,3]{1,0:T(8,128)}")
    >>> jax_lines(shape, cheapest_change(shape), ["argument"])
    ('jax.jit(f, in_shardings=Format(Layout((1, 0)), sharding))',)
    >>> jax_lines(shape, cheapest_change(shape), ["temporary"])
    ()
    """
    after = change.shape
    roles = set(roles)
    if not roles & CALLERS_ROLES:
        return ()
    if after.dimensions != shape.dimensions:
        return (f"x = x.reshape({after.dimensions})",)
    layout = after.layout
    if (layout.minor_to_major, layout.tiles) == (shape.layout.minor_to_major, shape.layout.tiles):
        return ()
    if layout.tiles and not is_tpu_default(after):
        return ()
    where = "in_shardings" if "argument" in roles else "out_shardings"
    return (f"jax.jit(f, {where}=Format(Layout({layout.major_to_minor}), sharding))",)


def cost_text(shape: Shape, change: Change, nbytes: int, copies: Iterable[tuple[str, Shape]]) -> str:
    """Describe the cost of a change if a consumer needs the old dimension order.

    The text shows a module's copies between layouts, but not what fusions and other consumers need.

    Parameters
    ----------
    shape : Shape
    change : Change
        A change of that shape.
    nbytes : int
        Size of one such buffer.
    copies : iterable of (str, Shape)
        Copies of the buffer to other layouts: instruction name and shape.
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
