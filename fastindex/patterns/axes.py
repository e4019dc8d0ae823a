"""From a pattern and dimensions to coordinates: each axis as a digit of a variable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastindex.algebra.sides import Coordinates
from fastindex.core.digits import Backwards, Digits, Variable, canonical, digit, reshaped_digits, scaled
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.patterns.grammar import OPTIONS, Group, Pattern

Ints = tuple[int, ...]

#: Unsigned type by element size (c128 for 16 bytes), for moves that ignore the value.
MOVED_AS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "c128"}


@dataclass(frozen=True, slots=True)
class Sides:
    """Source and destination of a move, over the same variables.

    Attributes
    ----------
    dimensions : (tuple of int, tuple of int)
        Dimensions of the source and of the destination.
    coordinates : (tuple of Digits, tuple of Digits)
        Each dimension's coordinate as a sum of digits.
    variables : tuple of Variable
    """

    dimensions: tuple[Ints, Ints]
    coordinates: tuple[Coordinates, Coordinates]
    variables: tuple[Variable, ...]

    def turned(self) -> Sides:
        """Return the inverse move: source and destination swapped."""
        return Sides(self.dimensions[::-1], self.coordinates[::-1], self.variables)


def sides_of(
    pattern: Pattern,
    source: Sequence[int],
    sizes: Mapping[str, int],
    destination: Sequence[int] | None = None,
    pad: bool = False,
) -> Sides:
    """Return the sides of a pattern.

    Parameters
    ----------
    pattern : Pattern
    source : sequence of int
        The dimensions of the source.
    sizes : mapping
        The given sizes of axes.
    destination : sequence of int, optional
        The dimensions of the destination; default: the products of their axes.
    pad : bool
        Whether the product of axes may exceed the dimension; indices beyond the dimension are padding.

    Raises
    ------
    FastIndexError
        The sizes are inconsistent.

    Examples
    --------
    >>> from fastindex.patterns.grammar import parse_pattern
    >>> found = sides_of(parse_pattern("(a b) c -> b (c a)"), (70, 3), {"b": 32}, pad=True)
    >>> found.dimensions
    ((70, 3), (32, 9))
    """
    pattern, known = solved(pattern, source, sizes, destination, pad)
    made = tuple(math.prod(known[name] for name in group) for group in pattern.destination)
    return _with_digits(pattern, (tuple(source), made if destination is None else tuple(destination)), known)


def solved(
    pattern: Pattern,
    source: Sequence[int],
    sizes: Mapping[str, int],
    destination: Sequence[int] | None = None,
    pad: bool = False,
) -> tuple[Pattern, dict[str, int]]:
    """Return a pattern without its ellipsis, and the sizes of all its axes.

    Parameters and errors as for `sides_of`.

    Examples
    --------
    >>> from fastindex.patterns.grammar import parse_pattern
    >>> solved(parse_pattern("(a b) c -> b (c a)"), (64, 3), {"b": 32})[1]
    {'b': 32, 'a': 2, 'c': 3}
    """
    pattern = _without_ellipsis(pattern, len(source))
    known = dict(sizes)
    if destination is not None and len(destination) != len(pattern.destination):
        raise FastIndexError(
            f"the right side of {pattern.text!r} has {len(pattern.destination)} dimensions, the destination "
            f"{len(destination)}"
        )
    for group, size in zip(pattern.source, source, strict=True):
        _solve(group, size, known, pattern, pad, final=destination is None)
    for group, size in zip(pattern.destination, destination or (), strict=False):
        _solve(group, size, known, pattern, pad, final=True)
    for group, size in zip(pattern.source, source, strict=True):
        _solve(group, size, known, pattern, pad, final=True)
    return pattern, known


def _without_ellipsis(pattern: Pattern, rank: int) -> Pattern:
    named = sum(group != ("...",) for group in pattern.source)
    has_ellipsis = named < len(pattern.source)
    if rank < named or (rank > named and not has_ellipsis):
        least = " or more" if has_ellipsis else ""
        raise FastIndexError(f"{pattern.text!r} is for {named}{least} dimensions, the array has {rank}")
    return pattern.with_axes(rank - named)


def _solve(group: Group, size: int, known: dict[str, int], pattern: Pattern, pad: bool, final: bool) -> None:
    """Solve for the size of a dimension's only unknown axis, and check the dimension."""
    unknown = [name for name in group if name not in known]
    if len(unknown) > 1:
        if not final:
            return
        options = OPTIONS.intersection(unknown)
        example = next((name for name in reversed(unknown) if name not in options), None)
        how = (
            f"give all but one of them, as in {example}=..." if example else "give the axes names that are not options"
        )
        raise FastIndexError(
            f"the sizes of {' and '.join(unknown)} cannot be inferred from a dimension of {size}: {how}; "
            f"in {pattern.text!r}"
        )
    others = math.prod(known[name] for name in group if name in known)
    if unknown and others == 0:
        raise FastIndexError(f"the size of {unknown[0]} cannot be inferred where the others are 0; in {pattern.text!r}")
    is_padded = pad and len(group) > 1
    if unknown:
        if size % others and not is_padded:
            raise FastIndexError(
                f"a dimension of {size} is not divisible by {others}, the size of ({' '.join(group)}) without "
                f"{unknown[0]}; pad=True pads it; in {pattern.text!r}"
            )
        known[unknown[0]] = -(-size // others)
        return
    if size != others and not (is_padded and size < others):
        why = "" if group else ", and 1 stands for a dimension of size 1"
        more = "; pad=True pads it" if len(group) > 1 and size < others and not pad else ""
        raise FastIndexError(
            f"({' '.join(group) or '1'}) has {others} elements, the dimension {size}{why}{more}; in {pattern.text!r}"
        )


def _with_digits(pattern: Pattern, dimensions: tuple[Ints, Ints], known: Mapping[str, int]) -> Sides:
    groups = pattern.source, pattern.destination
    cut: dict[Group, int] = {}
    for side, sizes in zip(groups, dimensions, strict=True):
        for group, size in zip(side, sizes, strict=True):
            if size < math.prod(known[name] for name in group):
                cut[group] = min(size, cut.get(group, size))
    axes: dict[str, Digits] = {}
    variables: list[Variable] = []
    for group, size in cut.items():
        check_not_padded(pattern, group)
        joint = Variable(group, size, True)
        variables.append(joint)
        low = 1
        for name in reversed(group):
            if name in axes:
                raise UnsupportedError(
                    f"the axis {name} is in two dimensions that are both cut, ({' '.join(group)}) and another; pad one "
                    f"of them first; in {pattern.text!r}"
                )
            axes[name] = digit(1, joint, low, low * known[name])
            low *= known[name]
    for name in (name for group in pattern.source for name in group):
        if name not in axes:
            key = Backwards((name,)) if name in pattern.backwards else (name,)
            variables.append(Variable(key, known[name], True))
            axes[name] = digit(1, variables[-1], 1, None)
    coordinates = tuple(tuple(_composed(group, axes, known) for group in side) for side in groups)
    return Sides(dimensions, (coordinates[0], coordinates[1]), tuple(variables))


def check_not_padded(pattern: Pattern, group: Group) -> None:
    """Reject a dimension that is padded if one of its axes runs backwards.

    Raises
    ------
    UnsupportedError
    """
    if not pattern.backwards.isdisjoint(group):
        raise UnsupportedError(
            f"({' '.join(group)}) is padded, so no axis of it runs backwards; pad the array first; in {pattern.text!r}"
        )


def _composed(group: Group, axes: Mapping[str, Digits], known: Mapping[str, int]) -> Digits:
    total: Digits = ()
    weight = 1
    for name in reversed(group):
        total += scaled(axes[name], weight)
        weight *= known[name]
    return canonical(total)


def reshaped_sides(source: Sequence[int], destination: Sequence[int]) -> Sides:
    """Return the sides of a reshape, which keeps the linear order of elements.

    Raises
    ------
    FastIndexError
        The numbers of elements differ.

    Examples
    --------
    >>> found = reshaped_sides((4, 6, 5), (24, 5))
    >>> [v.extent for v in found.variables]
    [24, 5]
    """
    if math.prod(source) != math.prod(destination):
        raise FastIndexError(
            f"a reshape keeps the elements: {tuple(source)} has {math.prod(source)}, {tuple(destination)} has "
            f"{math.prod(destination)}"
        )
    variables, before, after = reshaped_digits(source, destination)
    return Sides((tuple(source), tuple(destination)), (before, after), variables)
