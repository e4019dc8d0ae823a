"""Einops patterns: ``b (h d) -> h b d`` as groups of axis names, and with dimensions as digits of variables.

Source of the grammar: ``einops/parsing.py``, and the docstring of `einops.rearrange`. One addition: on the right side,
``-d`` is the axis d in reverse order; einops has no such name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fastindex.algebra.sides import Coordinates
from fastindex.core.digits import Backwards, Digits, Variable, canonical, digit, reshaped_digits, scaled
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError

#: The axis name of an ellipsis.
ELLIPSIS = "..."

#: The keyword options of `rearrange` and `plan_rearrange`; axes with these names cannot get a size.
OPTIONS = frozenset({"casting", "destination", "dtype", "fill", "out", "pad", "source", "threads"})

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The two sides of a pattern: the axis names of each dimension, most major first; empty for a 1.

    Attributes
    ----------
    text : str
    source, destination : tuple of tuples of str
    backwards : frozenset of str
        The axes that run backwards in the destination.
    """

    text: str
    source: tuple[Group, ...]
    destination: tuple[Group, ...]
    backwards: frozenset[str] = frozenset()

    def with_axes(self, count: int) -> Pattern:
        """Return the pattern with the ellipsis expanded to `count` axes.

        Examples
        --------
        >>> parse_pattern("... a -> (... a)").with_axes(2).destination
        (('...0', '...1', 'a'),)
        """
        source, destination = (_spelled(side, count) for side in (self.source, self.destination))
        return Pattern(self.text, source, destination, self.backwards)


def _spelled(side: tuple[Group, ...], count: int) -> tuple[Group, ...]:
    names = tuple(f"{ELLIPSIS}{i}" for i in range(count))
    found: list[Group] = []
    for group in side:
        if group == (ELLIPSIS,):
            found += [(name,) for name in names]
        elif group == ("(", ELLIPSIS, ")"):
            found.append(names)
        else:
            found.append(
                tuple(n for name in group if name not in "()" for n in (names if name == ELLIPSIS else (name,)))
            )
    return tuple(found)


def parse_pattern(text: object) -> Pattern:
    """Parse a pattern.

    Raises
    ------
    FastIndexError
        The text is not a pattern of `rearrange`; the message says why.
    ArgumentTypeError
        The pattern is not a string.

    Examples
    --------
    >>> parse_pattern("b (h d) 1 -> h b d")
    Pattern(text='b (h d) 1 -> h b d', source=(('b',), ('h', 'd'), ()), destination=(('h',), ('b',), ('d',)), \
backwards=frozenset())
    """
    if not isinstance(text, str):
        hint = "; the array comes first, then the pattern" if hasattr(text, "dtype") else ""
        raise ArgumentTypeError(f"a pattern must be text such as 'b (h d) -> h b d', got {type(text).__name__}{hint}")
    return _parsed(text)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Pattern:
    sides = text.split("->")
    if len(sides) != 2:
        raise FastIndexError(f"a pattern has one '->' between its two sides; in {text!r}")
    source, destination = (_side(side, text) for side in sides)
    backwards = frozenset(name[1:] for group in destination for name in group if name[0] == "-")
    if any(name[0] == "-" for group in source for name in group):
        raise FastIndexError(f"an axis runs backwards on the right side, as in 'a -> -a'; in {text!r}")
    destination = tuple(tuple(name.removeprefix("-") for name in group) for group in destination)
    names = [{name for group in side for name in group if name not in "()"} for side in (source, destination)]
    for own, other, where, instead in (
        (names[0], names[1], "right", "it does not reduce as einops.reduce does: call sum or mean of the array"),
        (names[1], names[0], "left", "it does not repeat as einops.repeat does: call numpy.broadcast_to"),
    ):
        missing = sorted(own - other)
        if missing:
            raise FastIndexError(
                f"every axis is on both sides of a rearrangement: {', '.join(missing)} is not on the {where}; "
                f"{instead}; in {text!r}"
            )
    if any(ELLIPSIS in group and group != (ELLIPSIS,) for group in source):
        raise FastIndexError(f"an ellipsis in brackets cannot give sizes on the left side; in {text!r}")
    source, destination = (tuple(_kept(group) for group in side) for side in (source, destination))
    return Pattern(text, source, destination, backwards)


def _kept(group: Group) -> Group:
    """Return a group without its parentheses, except for ``(...)``, which differs from ``...``."""
    return group if group == ("(", ELLIPSIS, ")") else tuple(name for name in group if name not in "()")


def _side(text: str, pattern: str) -> tuple[Group, ...]:
    spaced = text.replace("…", ELLIPSIS)
    for symbol in ("(", ")", ELLIPSIS):
        spaced = spaced.replace(symbol, f" {symbol} ")
    groups: list[Group] = []
    inside: list[str] | None = None
    seen: set[str] = set()
    for token in spaced.split():
        if token == "(":
            if inside is not None:
                raise FastIndexError(f"brackets are not nested; in {pattern!r}")
            inside = []
        elif token == ")":
            if inside is None:
                raise FastIndexError(f"a bracket is closed that was not opened; in {pattern!r}")
            groups.append(("(", *inside, ")"))
            inside = None
        else:
            name = _checked_name(token, pattern)
            if name.removeprefix("-") in seen:
                raise FastIndexError(f"the axis {name} is twice on one side; in {pattern!r}")
            seen |= {name.removeprefix("-")} - {""}
            if inside is not None:
                inside += [name] if name else []
            else:
                groups.append((name,) if name else ())
    if inside is not None:
        raise FastIndexError(f"a bracket is not closed; in {pattern!r}")
    return tuple(groups)


def _checked_name(token: str, pattern: str) -> str:
    """Validate and return the name of an axis, with a "-" before it if it has one; an empty string for 1."""
    name = token
    if token == "1":
        return ""
    if token == ELLIPSIS:
        return token
    if token.isdecimal():
        raise FastIndexError(
            f"a number other than 1 has no name that both sides know: write h with h={token} instead of {token}, on "
            f"both sides, since rearrange does not repeat as einops.repeat does; "
            f"in {pattern!r}"
        )
    token = token.removeprefix("-")
    if not token.isidentifier() or token.startswith("_") or token.endswith("_"):
        raise FastIndexError(
            f"{token!r} is not the name of an axis: letters, digits and underscores, none of these at its ends; "
            f"in {pattern!r}"
        )
    return name


def checked_sizes(pattern: Pattern, sizes: Iterable[tuple[str, object]]) -> dict[str, int]:
    """Validate and return the axis sizes that a caller gives.

    Raises
    ------
    FastIndexError
        The pattern does not have the axis, or a size is below 0.
    ArgumentTypeError
        A size that is not an integer.

    Examples
    --------
    >>> checked_sizes(parse_pattern("(a b) -> a b"), [("b", 4)])
    {'b': 4}
    """
    known = {name for group in pattern.source for name in group}
    found: dict[str, int] = {}
    for name, size in sizes:
        if name not in known:
            raise FastIndexError(f"{name}={size!r:.80} is not an axis of {pattern.text!r}")
        try:
            number = size.__index__()  # type: ignore[attr-defined]
        except (AttributeError, TypeError):
            # An array with dimensions has __index__ too, but it raises TypeError.
            raise ArgumentTypeError(f"the size of an axis must be an integer, got {name}={size!r:.80}") from None
        if isinstance(size, bool) or number < 0:
            raise FastIndexError(f"the size of an axis must be 0 or more, got {name}={size!r}")
        found[name] = int(number)
    return found


def check_options(pattern: Pattern, given: Iterable[tuple[str, bool]]) -> None:
    """Reject an option that is also the name of an axis: its value may be meant as the size of that axis.

    Parameters
    ----------
    pattern : Pattern
    given : iterable of (str, bool)
        The options, and whether the caller set them.

    Raises
    ------
    FastIndexError
    """
    axes = {name for group in pattern.source for name in group}
    for name, is_given in given:
        if is_given and name in axes:
            raise FastIndexError(
                f"{name} is an option, so {name}= is not the size of an axis: give the axis {name} of {pattern.text!r} "
                "another name"
            )


# Coordinates: each axis as a digit of a variable.

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
