"""Windows: a part of an array, as the coordinates along each of its dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.core.shape import Shape


@dataclass(frozen=True, slots=True)
class Window:
    """The elements whose coordinates are all in the ranges of their dimensions.

    Attributes
    ----------
    ranges : tuple of range
        One per dimension, within it.
    kept : tuple of bool
        Which dimensions are axes of the result; one that an integer picked from is not.

    Examples
    --------
    >>> Window((range(2, 8, 2), range(5, 6)), (True, False)).shape
    (3,)
    """

    ranges: tuple[range, ...]
    kept: tuple[bool, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the result."""
        return tuple(len(along) for along, kept in zip(self.ranges, self.kept, strict=True) if kept)


def whole_window(shape: Shape) -> Window:
    """Return the window of all elements.

    Examples
    --------
    >>> whole_window(Shape.parse("f32[3,5]")).shape
    (3, 5)
    """
    return Window(tuple(range(size) for size in shape.dimensions), (True,) * shape.rank)
