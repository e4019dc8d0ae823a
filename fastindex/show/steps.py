"""A layout as the pads, reshapes and transposes that turn an array into its buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of, check_placed, slots_before_tail
from fastindex.core.tiles import COMBINE, Axis, CountAxis, tile_text

Kind = Literal["pad", "reshape", "transpose"]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on the whole array.

    Attributes
    ----------
    kind : {"pad", "reshape", "transpose"}
        The name of NumPy's function.
    argument : tuple
        For a pad, a ``(low, high)`` pair for each axis; for a reshape, the new dimensions; for a transpose, the axes in
        their new order.
    cause : str
        The part of the layout that causes the step: ``"{0,1}"``, ``"PAD(3,5)"``, ``"T(8,128)"`` or ``"L(1024)"``.

    Examples
    --------
    >>> print(Step("pad", ((0, 1), (0, 3)), "T(2,4)"))
    x = np.pad(x, ((0, 1), (0, 3)))
    """

    kind: Kind
    argument: tuple[int, ...] | tuple[tuple[int, int], ...]
    cause: str

    def __str__(self) -> str:
        if self.kind == "pad":
            pairs = ", ".join(map(str, self.argument))
            return f"x = np.pad(x, ({pairs}{',' if len(self.argument) == 1 else ''}))"
        return f"x = x.{self.kind}({', '.join(map(str, self.argument))})"


class Steps(tuple[Step, ...]):
    """The steps of a layout, in order. ``print`` shows them as NumPy code; the last line flattens the array.

    Examples
    --------
    >>> print(Steps([Step("transpose", (1, 0), "{0,1}")]))
    x = x.transpose(1, 0)
    x = x.reshape(-1)
    """

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join([*map(str, self), "x = x.reshape(-1)"])


def steps(shape: Shape | str) -> Steps:
    """Return the steps whose composition is the layout of `shape`.

    Applied in order to an array and flattened, they produce the buffer of `fastindex.pack`, including padding. A pad
    writes zeros, or the padding value of the layout. Packed sub-byte elements take one byte each in the result.

    Parameters
    ----------
    shape : Shape or str

    Returns
    -------
    Steps
        A tuple of `Step`, without identity steps.

    Raises
    ------
    UnsupportedError
        The shape is not an array, it is sparse, or a dimension is unbounded.

    Notes
    -----
    Source of the rule: XLA "Tiled layout", https://openxla.org/xla/tiled_layout

    Examples
    --------
    >>> import fastindex as fi
    >>> print(fi.layouts.steps("f32[3,5]{1,0:T(2,2)}"))
    x = np.pad(x, ((0, 1), (0, 1)))
    x = x.reshape(2, 2, 3, 2)
    x = x.transpose(0, 2, 1, 3)
    x = x.reshape(-1)
    >>> [step.kind for step in fi.layouts.steps("f32[3,5]{0,1}")]
    ['transpose']
    """
    described = as_shape(shape)
    check_placed(described)
    return Steps(_steps(described))


def _steps(shape: Shape) -> Iterator[Step]:
    layout = shape.layout
    order = tuple(reversed(layout.minor_to_major))
    sizes = tuple(shape.dimensions[d] for d in order)
    if order != tuple(range(shape.rank)):
        yield Step("transpose", order, "{" + ",".join(map(str, layout.minor_to_major)) + "}")
    axes = axes_of(shape, 0)
    if layout.padded_dimensions is not None:
        cause = f"PAD({','.join(map(str, layout.padded_dimensions))})"
        yield from _padded(sizes, tuple(axis.size for axis in axes), cause)
    for number, tile in enumerate(layout.tiles):
        tiled = axes_of(shape, number + 1)
        kept = sum(size != COMBINE for size in tile)
        yield from _tile_steps(tuple(axis.size for axis in axes), tiled, kept, f"T{tile_text(tile)}")
        axes = tiled
    slots = slots_before_tail(shape)
    if shape.slot_count > slots:
        cause = f"L({layout.tail_padding_alignment_in_elements})"
        if len(axes) != 1:
            yield Step("reshape", (slots,), cause)
        yield from _padded((slots,), (shape.slot_count,), cause)


def _padded(sizes: Sequence[int], padded: Sequence[int], cause: str) -> Iterator[Step]:
    if tuple(padded) != tuple(sizes):
        yield Step("pad", tuple((0, more - size) for size, more in zip(sizes, padded, strict=True)), cause)


def _tile_steps(sizes: tuple[int, ...], tiled: Sequence[Axis], kept: int, cause: str) -> Iterator[Step]:
    """Yield the steps of one tile; its result `tiled` ends with `kept` tile counts, then `kept` tile sizes."""
    untouched = len(tiled) - 2 * kept
    counts = [axis for axis in tiled[untouched : untouched + kept] if isinstance(axis, CountAxis)]
    before = tuple(axis.size for axis in tiled[:untouched])
    merged = before + tuple(count.whole.size for count in counts)
    if merged != sizes:
        yield Step("reshape", merged, cause)
    yield from _padded(merged, before + tuple(count.size * count.tile_size for count in counts), cause)
    split = before + tuple(size for count in counts for size in (count.size, count.tile_size))
    yield Step("reshape", split, cause)
    order = (
        *range(untouched),
        *range(untouched, len(split), 2),
        *range(untouched + 1, len(split), 2),
    )
    if order != tuple(range(len(split))):
        yield Step("transpose", order, cause)
