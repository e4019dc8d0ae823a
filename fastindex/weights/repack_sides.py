"""Formats as sides of a move: their dimensions in common letters, codes or bits as elements, batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fastindex.algebra.sides import RegroupedShape
from fastindex.core.digits import Backwards, Digit, Digits, Variable, digit
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.patterns.named_formats import Chosen, format_side, in_bits, of_bits, plain_side
from fastindex.weights.found_formats import FoundChosen, found_shape

ONEDNN = "onednn"
#: The variable of the batch: arrays stored one after the other.
BATCH = "batch"
#: The variable of the bits of a code.
_BIT = "b"


def side_of(row: Chosen | None, ordered: Sequence[Variable], width: int, by_bits: bool) -> RegroupedShape:
    """Return a format as a side of a move of codes or of bits; `row` is None for the plain array."""
    bit = Variable(_BIT, width, True)
    if row is None:
        everything = (*ordered, bit) if by_bits else tuple(ordered)
        return plain_side(width, [v.extent for v in ordered], everything, by_bits)
    if isinstance(row, FoundChosen):
        stream = row.found.stream
        whole = [_stream(v, width) if d == stream else v for d, v in enumerate(ordered)]
        side = row.side(whole, bit if row.found.is_of_bits and stream is None else None)
    else:
        table = dict(zip(row.letters, ordered, strict=True)) | ({_BIT: bit} if of_bits(row.row.text) else {})
        side = format_side(row, {k: v.extent for k, v in table.items()}, table)
    return in_bits(side, width, bit) if by_bits and not is_of_bits(row) else side


def streams_of(rows: Sequence[Chosen | None], letters: Sequence[str]) -> set[str]:
    """Return the dimension whose codes are one stream of bits in a discovered format, if there is one.

    Raises
    ------
    UnsupportedError
        There are two.
    """
    found = {
        spelled[row.found.stream]
        for row, spelled in zip(rows, letters, strict=True)
        if isinstance(row, FoundChosen) and row.found.stream is not None
    }
    if len(found) > 1:
        raise UnsupportedError("both formats have streams of bits, along two dimensions; move to 'plain', then from it")
    return found


def is_of_bits(one: Chosen) -> bool:
    """Whether a format has elements of single bits of codes."""
    return one.found.is_of_bits if isinstance(one, FoundChosen) else of_bits(one.row.text)


def _stream(code: Variable, width: int) -> Variable:
    """Return the variable that numbers the bits of all codes along a dimension."""
    return Variable((code.key, "bits"), code.extent * width, True)


def as_stream(side: RegroupedShape, code: Variable, width: int) -> RegroupedShape:
    """Return a side with the codes of a dimension, and their bits, as digits of one stream of bits."""
    stream, bit = _stream(code, width), Variable(_BIT, width, True)

    def replaced(one: Digit) -> Digits:
        if one.variable == code:
            return digit(one.weight, stream, one.low * width, one.high and one.high * width)
        return digit(one.weight, stream, one.low, one.high or width) if one.variable == bit else (one,)

    coordinates = tuple(tuple(made for one in digits for made in replaced(one)) for digits in side.coordinates)
    variables = dict.fromkeys(stream if v in (code, bit) else v for v in side.variables)
    return RegroupedShape(side.shape, coordinates, tuple(variables))


def parts_backwards(rows: Sequence[Chosen | None], letters: Sequence[str]) -> dict[str, tuple[Variable, ...]]:
    """Return a variable for each part of the dimensions in which parts of a discovered format run backwards.

    Raises
    ------
    UnsupportedError
        Both formats have these in one dimension.
    """
    found: dict[str, tuple[Variable, ...]] = {}
    for row, spelled in zip(rows, letters, strict=True):
        if not isinstance(row, FoundChosen) or not row.found.backwards:
            continue
        sizes, at = found_shape(row.found, row.sizes).dimensions, 0
        for letter, parts in zip(spelled, row.found.split, strict=False):
            numbers = range(at, at + len(parts))
            at += len(parts)
            if set(row.found.backwards).isdisjoint(numbers):
                continue
            if letter in found:
                raise UnsupportedError("digits of both formats run backwards; move to 'plain', then from it")
            keys = [Backwards((letter, n)) if n in row.found.backwards else (letter, n) for n in numbers]
            found[letter] = tuple(Variable(key, sizes[n], True) for key, n in zip(keys, numbers, strict=True))
    return found


def in_parts(side: RegroupedShape, whole: Variable, parts: Sequence[Variable]) -> RegroupedShape:
    """Return a side with the digits of a variable as digits of its parts, the most major part first.

    Raises
    ------
    UnsupportedError
        A digit does not divide a part.
    """

    def replaced(one: Digit) -> Digits:
        if one.variable != whole:
            return (one,)
        made: Digits = ()
        weight = whole.extent
        for part in parts:
            top, weight = weight, weight // part.extent
            low, high = max(one.low, weight), min(one.high or whole.extent, top)
            if low >= high:
                continue
            if any(top % edge or edge % weight for edge in (low, high)):
                raise UnsupportedError(
                    f"a digit of {part.extent} runs backwards or is beside one that does, and the other format splits "
                    "it at other places; move to 'plain', then from it"
                )
            made += digit(one.weight * (low // one.low), part, low // weight, high // weight)
        return made

    coordinates = tuple(tuple(made for one in digits for made in replaced(one)) for digits in side.coordinates)
    variables = tuple(one for v in side.variables for one in (parts if v == whole else (v,)))
    return RegroupedShape(side.shape, coordinates, variables)


def letters_of(rows: Sequence[Chosen | None], rank: int) -> tuple[str, str]:
    """Return the dimensions of both ends in the same letters."""
    first, last = rows
    if first is None and last is None:
        return ("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:rank],) * 2
    if first is None or last is None:
        known = first or last
        assert known is not None
        return known.letters, known.letters
    names = first.row.name, last.row.name
    if ONEDNN in names and len(first.letters) == len(last.letters):
        # The letters of a tag number dimensions: they are not the B, D and K of other formats.
        return first.letters, first.letters
    return common_letters(first.letters, last.letters, names)


def common_letters(first: str, last: str, names: tuple[str, str]) -> tuple[str, str]:
    """Return the dimensions of two formats in the letters of the first.

    Examples
    --------
    >>> common_letters("KN", "MK", ("awq", "mlx"))
    ('KN', 'NK')
    """
    if len(first) != len(last):
        raise FastIndexError(f"{names[0]} is of {first}, {names[1]} of {last}")
    own = [letter for letter in first if letter not in last]
    theirs = [letter for letter in last if letter not in first]
    renamed = dict(zip(theirs, own, strict=True))
    return first, "".join(renamed.get(letter, letter) for letter in last)


def sizes_by_letter(letters: str, shape: tuple[int, ...]) -> tuple[dict[str, int], int]:
    """Return the size of each dimension by its letter, and the number of arrays in the batch."""
    if len(letters) == 1:
        return {letters: math.prod(shape)}, 1
    missing = len(letters) - len(shape)
    if missing > 1 or (missing == 1 and letters[-1] != "K"):
        raise FastIndexError(f"the shape has the dimensions {', '.join(letters)}, got {shape}")
    if missing == 1:
        return dict(zip(letters, (1, *shape), strict=True)), 1
    return dict(zip(letters, shape[-missing or len(shape) - len(letters) :], strict=True)), math.prod(
        shape[: len(shape) - len(letters)]
    )


def batched(side: RegroupedShape, count: int) -> RegroupedShape:
    """Return a side with a batch of `count` arrays as its outermost dimension."""
    if count == 1:
        return side
    variable = Variable(BATCH, count, True)
    layout = side.layout
    order = (*(d + 1 for d in layout.minor_to_major), 0)
    shape = Shape(side.element_type, (count, *side.dimensions), replace(layout, minor_to_major=order))
    coordinates = (digit(1, variable, 1, None), *side.coordinates)
    return RegroupedShape(shape, coordinates, (variable, *side.variables))
