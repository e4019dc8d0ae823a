"""Layouts in CuTe's notation.

Source: "CuTe Layouts", https://docs.nvidia.com/cutlass/media/docs/cpp/cute/01_layout.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastindex.core.digits import Variable, canonical, digit, slot_digits
from fastindex.core.tiles import Axis
from fastindex.errors import UnsupportedError

CuteTuple = int | tuple["CuteTuple", ...]


@dataclass(frozen=True)
class CuteLayout:
    """A layout in CuTe's notation: nested sizes and their strides, in elements.

    The coordinate of dimension d is split over the sizes in entry d, of which the first varies fastest. Where their
    product is more than the dimension, the layout is padded: coordinates beyond the dimension are padding.

    Attributes
    ----------
    shape, stride : nested tuples of int
    """

    shape: tuple[CuteTuple, ...]
    stride: tuple[CuteTuple, ...]

    def __str__(self) -> str:
        return f"{_cute_text(self.shape)}:{_cute_text(self.stride)}"


def cute_layout(sizes: Sequence[int], axes: Sequence[Axis], what: str) -> CuteLayout:
    """Return a layout as nested sizes and strides in CuTe's notation.

    Parameters
    ----------
    sizes : sequence of int
        Logical sizes, one per dimension.
    axes : sequence of Axis
        The axes of the physical array, from `fastindex.core.tiles.physical_axes`.
    what : str
        The shape, for error messages.

    Raises
    ------
    UnsupportedError
        The digits of a dimension do not continue each other, so sizes and strides cannot describe the layout.

    Examples
    --------
    >>> from fastindex.core.tiles import physical_axes
    >>> str(cute_layout((4, 8), physical_axes((4, 8), (1, 0), None, ((2, 4), (2, 1))), "f32[4,8]"))
    '((2,2),8):((1,16),2)'
    >>> str(cute_layout((4, 6), physical_axes((4, 6), (0, 1), None, ()), "f32[4,6]"))
    '(4,6):(1,4)'
    >>> str(cute_layout((3, 5), physical_axes((3, 5), (1, 0), None, ((2, 2),)), "f32[3,5]"))
    '((2,2),(2,3)):((2,12),(1,4))'
    """
    variables = [Variable(d, size, True) for d, size in enumerate(sizes)]
    digits = canonical(slot_digits(axes, [digit(1, variable, 1, None) for variable in variables], {}))
    cute_sizes: list[CuteTuple] = []
    strides: list[CuteTuple] = []
    for variable, size in zip(variables, sizes, strict=True):
        mine = sorted((d for d in digits if d.variable == variable), key=lambda d: d.low)
        parts = [(d.high or size) // d.low for d in mine]
        inner = all(d.low * part == d.high for d, part in zip(mine[:-1], parts[:-1], strict=True))
        if mine and mine[-1].high is None:
            # A tile that does not divide the dimension pads it: the last coordinates of the layout are padding.
            parts[-1] = -(-size // mine[-1].low)
        if not inner or (mine and (mine[-1].high is not None or mine[0].low != 1)):
            raise UnsupportedError(f"the digits of dimension {variable.key} of {what} do not continue each other")
        cute_sizes.append(tuple(parts) if len(parts) > 1 else size)
        strides.append(tuple(d.weight for d in mine) if len(mine) > 1 else (mine[0].weight if mine else 0))
    if not all(d.variable.is_coordinate for d in digits):
        raise UnsupportedError(f"the tiles of {what} split combined dimensions unevenly, which CuTe cannot express")
    return CuteLayout(tuple(cute_sizes), tuple(strides))


def _cute_text(value: CuteTuple) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_cute_text, value))})"
    return str(value)
