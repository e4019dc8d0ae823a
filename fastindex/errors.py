"""The errors that fastindex raises; messages name the rule, the value and the input, and say what to do.

Also the checks of options, which take any object: comparing an array, or asking for its truth value, may raise.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

_SHOWN_COLUMNS = 100
#: Characters kept at the beginning and at the end of a message: longer ones repeat untrusted input.
_SHOWN_BEGIN, _SHOWN_END = 1500, 400

Index = int | tuple[int, int] | None


def _pointed_at(rule: str, text: str, position: int, hint: str = "") -> str:
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[begin : end if end >= 0 else len(text)]
    number = text.count("\n", 0, position) + 1
    column = position - begin
    where = f"column {column + 1}" if number == 1 else f"line {number}, column {column + 1}"
    cut = max(column - _SHOWN_COLUMNS // 2, 0) if len(line) > _SHOWN_COLUMNS else 0
    shown = line[cut : cut + _SHOWN_COLUMNS]
    before = "..." if cut else ""
    after = "..." if cut + _SHOWN_COLUMNS < len(line) else ""
    printable = "".join(c if c.isprintable() else " " for c in shown)
    caret = " " * (len(before) + column - cut) + "^"
    advice = f"; {hint}" if hint else ""
    return f"{rule}, at {where}{advice}\n  {before}{printable}{after}\n  {caret}"


def cut_message(message: str) -> str:
    """Return a message, with its middle cut out if it is too long.

    Examples
    --------
    >>> len(cut_message("x" * 100_000)) < 2000, cut_message("short")
    (True, 'short')
    """
    left_out = len(message) - _SHOWN_BEGIN - _SHOWN_END
    if left_out <= 0:
        return message
    return f"{message[:_SHOWN_BEGIN]} ... ({left_out} characters) ... {message[-_SHOWN_END:]}"


class FastIndexError(ValueError):
    """The base class of all errors that fastindex raises.

    Examples
    --------
    >>> import fastindex as fi
    >>> issubclass(fi.LayoutError, fi.FastIndexError) and issubclass(fi.FastIndexError, ValueError)
    True
    """

    def __str__(self) -> str:
        return cut_message(super().__str__())


class LayoutError(FastIndexError):
    """A shape, layout or sharding that cannot exist, or does not fit what it is used with.

    Attributes
    ----------
    field : str
        The constructor argument at fault, or "".
    index : int, pair of int or None
        Which entry of that argument, if one entry is at fault; for `tiles`, the tile and the entry in it.

    Examples
    --------
    >>> import fastindex as fi
    >>> try:
    ...     fi.Layout((0, 0))
    ... except fi.LayoutError as error:
    ...     print(error)
    minor_to_major must name each dimension once: 0 is twice in (0, 0)
    """

    def __init__(self, message: str, *, field: str = "", index: Index = None) -> None:
        super().__init__(message)
        self.field = field
        self.index = index


class ParseError(LayoutError):
    """Text that is not a shape, layout or sharding, or that describes one that cannot exist.

    Attributes
    ----------
    rule : str
        What the grammar expects and what the text has instead, or why it cannot exist.
    text : str
    position : int
        0-based offset of the first error in the text.
    hint : str
        What to write instead, or "".
    field, index
        As for `LayoutError`, of well-formed text.

    Examples
    --------
    >>> import fastindex as fi
    >>> try:
    ...     fi.Shape.parse("f32[3,x]")
    ... except fi.ParseError as error:
    ...     print(error.position)
    ...     print(error)
    6
    expected an integer, found 'x', at column 7
      f32[3,x]
            ^
    >>> try:
    ...     fi.sharding.Sharding.parse("{devices=[2,2]<=[5]}")
    ... except fi.ParseError as error:
    ...     print(error)
    the dimensions (2, 2) have 4 places, but there are 5 devices, at column 18
      {devices=[2,2]<=[5]}
                       ^
    """

    def __init__(
        self, rule: str, text: str, position: int, hint: str = "", *, field: str = "", index: Index = None
    ) -> None:
        # Not super(): the arguments must be all that pickling needs.
        ValueError.__init__(self, rule, text, position)
        self.rule = rule
        self.text = text
        self.position = position
        self.hint = hint
        self.field = field
        self.index = index

    def __str__(self) -> str:
        return _pointed_at(self.rule, self.text, self.position, self.hint)


class OutOfBoundsError(FastIndexError, IndexError):
    """An index outside its array.

    Examples
    --------
    >>> import fastindex as fi
    >>> issubclass(fi.OutOfBoundsError, IndexError)
    True
    """


class UnsupportedError(FastIndexError):
    """Valid input that fastindex does not support.

    Examples
    --------
    >>> import fastindex as fi
    >>> try:
    ...     fi.Shape.parse("f32[?]").nbytes
    ... except fi.UnsupportedError as error:
    ...     print(error)
    f32[?]{0} has an unbounded dimension and so no size; give it a size or a bound
    """


class DeviceMemoryError(FastIndexError, MemoryError):
    """The GPU does not have enough free memory.

    Examples
    --------
    >>> import fastindex as fi
    >>> issubclass(fi.cuda.DeviceMemoryError, MemoryError)
    True
    """


class ArgumentTypeError(FastIndexError, TypeError):
    """An argument of the wrong type, such as coordinates that are not integers.

    Examples
    --------
    >>> import fastindex as fi
    >>> try:
    ...     fi.linear_index("f32[3]", ([0.5],))
    ... except TypeError as error:
    ...     print(error)
    multi_index[0] must hold integers, got dtype float64
    """


def check_option(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise FastIndexError unless `value` is one of the texts that an option takes.

    Examples
    --------
    >>> check_option("unit", "byte", ("slot", "byte", "bit"))
    """
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise FastIndexError(f"{name} must be {', '.join(others)} or {last}, got {value!r:.80}")


def check_flag(name: str, value: object) -> None:
    """Raise ArgumentTypeError unless `value` is a boolean of Python or NumPy, or an integer.

    Examples
    --------
    >>> check_flag("flat", True)
    """
    if not isinstance(value, int) and not is_boolean(value):
        raise ArgumentTypeError(f"{name} must be True or False, got {value!r:.80}")


def is_boolean(value: object) -> bool:
    """Whether `value` is a boolean of Python or NumPy.

    Examples
    --------
    >>> import numpy as np
    >>> is_boolean(True), is_boolean(np.False_), is_boolean(1)
    (True, True, False)
    """
    return isinstance(value, bool) or (
        getattr(getattr(value, "dtype", None), "kind", None) == "b" and getattr(value, "shape", None) == ()
    )


def integer_of(value: Any) -> int | None:
    """Return an integer of any type as Python's; None for booleans and everything else.

    Examples
    --------
    >>> integer_of(3), integer_of(True), integer_of([3]), integer_of(3.0)
    (3, None, None, None)
    """
    try:
        # NumPy 2.0 to 2.2 take their own booleans for integers, with a warning.
        return None if is_boolean(value) else operator.index(value)
    except TypeError:
        return None
