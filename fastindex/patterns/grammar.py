"""Parser of einops patterns: ``b (h d) -> h b d`` as groups of axis names.

Source of the grammar: ``einops/parsing.py``, and the docstring of `einops.rearrange`. One addition: on the right side,
``-d`` is the axis d in reverse order; einops has no such name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from fastindex.errors import ArgumentTypeError, FastIndexError

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
