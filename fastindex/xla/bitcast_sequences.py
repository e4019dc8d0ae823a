"""Bitcasts as what they do to the elements: padding, a reshape, a transpose, a reshape, and a slice.

A layout without uneven splits puts an element into the slot that is a weighted sum of digits of its coordinates. Two
layouts of one buffer cut its slots into digits at certain weights; at all of them together, both are made of the same
digits. The dimensions of the first are split into these, which are put in the order of the second and joined.
`fastindex.xla.decompose_bitcast`, which is XLA's, begins with a transpose and cannot take tiles apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from fastindex.shapes.shape import Shape, as_shape
from fastindex.shapes.shape_sizes import axes_of, check_placed
from fastindex.tiling.digits import Variable, canonical, digit, slot_digits

#: A digit of the buffer within a dimension: what it counts there, and its weight in slots.
_Part = tuple[int, int]


@dataclass(frozen=True, slots=True)
class BitcastSequence:
    """A bitcast as steps that, all together, leave every element in its slot.

    Attributes
    ----------
    padded_dimensions : tuple of int
        To what the dimensions of the source are padded.
    split_dimensions : tuple of int
        What the first reshape makes of these.
    permutation : tuple of int
        Dimension i after the transpose is dimension ``permutation[i]`` before it.
    joined_dimensions : tuple of int
        What the second reshape makes of that.
    dimensions : tuple of int
        To what these are cut: the dimensions of the result.
    """

    padded_dimensions: tuple[int, ...]
    split_dimensions: tuple[int, ...]
    permutation: tuple[int, ...]
    joined_dimensions: tuple[int, ...]
    dimensions: tuple[int, ...]


def bitcast_sequence(a: Shape | str, b: Shape | str) -> BitcastSequence | None:
    """Return the steps that a bitcast from `a` to `b` amounts to.

    Return None if the two differ in the width of their elements or the size of their buffers, if an element of the
    one with fewer lies in padding of the other, or if tile sizes of one split a dimension, or the tiles of the other,
    unevenly.

    Raises
    ------
    UnsupportedError
        A shape is not an array, is sparse, or has an unbounded dimension.

    Examples
    --------
    Tiles taken apart, and rows of padding cut off, as XLA's TPU compiler does:

    >>> bitcast_sequence("f32[16,256]{1,0:T(8,128)}", "f32[2,2,8,128]").permutation
    (0, 2, 1, 3)
    >>> found = bitcast_sequence("bf16[38,8,3,128]{3,1,2,0:T(8,128)(2,1)}", "bf16[384,300]{0,1:T(8,128)(2,1)}")
    >>> found.joined_dimensions, found.dimensions
    ((384, 304), (384, 300))
    >>> bitcast_sequence("f32[8,3]{1,0:T(8,128)}", "f32[3,8]{1,0:T(8,128)}") is None
    True
    """
    a, b = as_shape(a), as_shape(b)
    check_placed(a)
    check_placed(b)
    if a.element_bits != b.element_bits or a.slot_count != b.slot_count:
        return None
    of_a, of_b = _weights(a), _weights(b)
    if of_a is None or of_b is None:
        return None
    cuts = sorted({1, a.slot_count, *of_a, *of_b})
    if cuts[0] == 0 or any(more % less for less, more in pairwise(cuts)):
        return None
    sizes = {less: more // less for less, more in pairwise(cuts)}
    before, after = _parts(a, of_a, sizes), _parts(b, of_b, sizes)
    smaller = (after, b, before, a) if b.element_count <= a.element_count else (before, a, after, b)
    if not _lies_within(*smaller, sizes):
        return None
    places = {weight: place for place, (_, weight) in enumerate(part for parts in before for part in parts)}
    order = [weight for parts in after for _, weight in parts]
    return BitcastSequence(
        tuple(math.prod(sizes[weight] for _, weight in parts) for parts in before),
        tuple(sizes[weight] for weight in places),
        tuple(places[weight] for weight in order),
        tuple(math.prod(sizes[weight] for _, weight in parts) for parts in after),
        b.dimensions,
    )


def _weights(shape: Shape) -> dict[int, tuple[int, int]] | None:
    """Return the dimension and what it counts of each digit, by its weight in slots; None if they leave gaps."""
    variables = [Variable(number, max(size, 1), True) for number, size in enumerate(shape.dimensions)]
    coordinates = [digit(1, variable, 1, None) for variable in variables]
    slots = canonical(slot_digits(axes_of(shape), coordinates, {}))
    if any(not part.variable.is_coordinate for part in slots) or len({part.weight for part in slots}) != len(slots):
        return None
    parts = sorted(slots, key=lambda part: part.weight)
    if parts and parts[0].weight != 1:
        return None
    ends = [*(part.weight for part in parts[1:]), shape.slot_count][: len(parts)]
    for part, end in zip(parts, ends, strict=True):
        room, rest = divmod(end, part.weight)
        # Between two digits of one dimension there is no padding; above the last there may be.
        if rest or part.largest >= room or (part.high is not None and room != part.high // part.low):
            return None
    return {part.weight: (variables.index(part.variable), part.low) for part in parts}


def _parts(shape: Shape, weights: dict[int, tuple[int, int]], sizes: dict[int, int]) -> list[list[_Part]]:
    """Return the digits of the buffer that each dimension is made of, most major first."""
    found: list[list[_Part]] = [[] for _ in shape.dimensions] or [[]]
    known = sorted(weights)
    for weight in sorted(sizes):
        own = max((item for item in known if item <= weight), default=0)
        # A buffer of one element: its first dimension, if any, is padded.
        dimension, low = weights[own] if own else (0, 1)
        found[dimension].append((low * (weight // own if own else weight), weight))
    for parts in found:
        parts.sort(reverse=True)
    return found


def _lies_within(
    inner: list[list[_Part]], inner_shape: Shape, outer: list[list[_Part]], outer_shape: Shape, sizes: dict[int, int]
) -> bool:
    """Whether all elements of one shape are elements of the other, given the digits of both."""
    if inner_shape.element_count == 0:
        return True
    limits = outer_shape.dimensions or (1,)
    for parts, limit in zip(outer, limits, strict=True):
        counts = {weight: low for low, weight in parts}
        most = 0
        for own, size in zip(inner, inner_shape.dimensions or (1,), strict=True):
            most += _largest([(low, sizes[weight], counts.get(weight, 0)) for low, weight in own], size - 1)
        if most >= limit:
            return False
    return True


def _largest(digits: list[tuple[int, int, int]], top: int) -> int:
    """Return the largest weighted sum of the digits of a number from 0 to `top`; digits are (low, size, weight)."""
    values = [(top // low % size, size, weight) for low, size, weight in digits]
    best = sum(value * weight for value, _, weight in values)
    above = 0
    for number, (value, _, weight) in enumerate(values):
        if value:
            rest = sum((size - 1) * less for _, size, less in values[number + 1 :])
            best = max(best, above + (value - 1) * weight + rest)
        above += value * weight
    return best
