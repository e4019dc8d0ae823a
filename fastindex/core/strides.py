"""Strides in slots, for layouts whose strides are constant."""

from __future__ import annotations

import itertools

from fastindex.core.digits import Variable, canonical, digit, slot_digits
from fastindex.core.sizes import SizedShape, axes_of, check_placed
from fastindex.core.tiles import slot_of

#: If digits prove nothing, arrays of up to this many elements are checked element by element.
MOST_ELEMENTS_VISITED = 100_000


def slot_strides(shape: SizedShape) -> tuple[int, ...] | None:
    """Return the distance in slots between neighbours along each dimension, or None if it is not constant.

    It is None if tiles reorder elements. A dimension of size 1 has the stride that it would have if it were longer.

    Raises
    ------
    UnsupportedError
        This is not an array, it is sparse, or a dimension is unbounded.

    Examples
    --------
    >>> from fastindex import Shape
    >>> slot_strides(Shape.parse("f32[3,100]{1,0:T(8,128)}"))
    (128, 1)
    """
    check_placed(shape)
    if 0 in shape.dimensions:
        return _closed(shape, [None] * shape.rank)
    variables = [Variable(number, size, True) for number, size in enumerate(shape.dimensions)]
    digits = slot_digits(axes_of(shape), [digit(1, variable, 1, None) for variable in variables], {})
    strides: list[int | None] = [None] * shape.rank
    whole = True
    for d in canonical(digits):
        if d.low == 1 and d.high is None and d.variable.is_coordinate:
            strides[variables.index(d.variable)] = d.weight
        else:
            whole = False
    if whole:
        return _closed(shape, strides)
    if all(d.variable.is_coordinate for d in digits) or shape.element_count > MOST_ELEMENTS_VISITED:
        return None
    return _strides_of_every_element(shape)


def _closed(shape: SizedShape, strides: list[int | None]) -> tuple[int, ...]:
    """Fill in the strides of dimensions of size 0 or 1."""
    sizes = shape.layout.padded_dimensions or shape.dimensions
    filled = [0] * shape.rank
    following = 1
    for number in shape.layout.minor_to_major:
        stride = strides[number]
        filled[number] = following if stride is None else stride
        following = filled[number] * sizes[number]
    return tuple(filled)


def _strides_of_every_element(shape: SizedShape) -> tuple[int, ...] | None:
    axes = axes_of(shape)
    strides: list[int | None] = [None] * shape.rank
    for number, size in enumerate(shape.dimensions):
        if size > 1:
            strides[number] = slot_of(axes, [int(other == number) for other in range(shape.rank)])
    for index in itertools.product(*map(range, shape.dimensions)):
        if slot_of(axes, index) != sum(i * (stride or 0) for i, stride in zip(index, strides, strict=True)):
            return None
    return _closed(shape, strides)
