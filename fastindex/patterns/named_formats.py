"""From a format name to a side of a move: a shape whose dimensions are digits of the array's coordinates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fastindex.algebra.sides import RegroupedShape
from fastindex.core.digits import Digits, Variable, digit
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.patterns.format_rows import Row
from fastindex.patterns.format_table import BY_BITS, BY_ROWS, DEFAULT_BITS, LAST_BLOCKS, PARAMETERS, ROWS, VALUES
from fastindex.patterns.known_names import names

_TEXT = re.compile(r"(u\d+|e)\[([^]]*)\]\{(.*)\}")
_NAME = re.compile(r"[A-Za-z]\w*")
_BIT = "b"


@dataclass(frozen=True)
class Chosen:
    """A row with resolved parameters.

    Attributes
    ----------
    row : Row
    bits : int
    values : dict
        All parameters; a pair also as two numbered entries, such as ``block0`` and ``block1``.
    letters : str
        The dimensions, in order.
    """

    row: Row
    bits: int
    values: dict[str, Any]
    letters: str


def chosen(name: str, bits: int | None, given: Mapping[str, Any]) -> Chosen:
    """Return the row of a format for the given parameters.

    Raises
    ------
    FastIndexError
        The format does not have a parameter, a value of a parameter, or the number of bits.

    Examples
    --------
    >>> chosen("marlin", 8, {"activation_bits": 8}).row.text
    'u8[K/32,2,4,4,N/32,2,2,8]{3,1,6,5,2,7,4,0}'
    """
    values = dict(PARAMETERS.get(name, {}))
    by_rows = BY_ROWS.get(name)
    if by_rows is not None:
        values[by_rows] = True
    for parameter, value in given.items():
        if parameter not in values:
            raise FastIndexError(f"{name} has no parameter {parameter}; it has {', '.join(values) or 'none'}")
        if value is None and values[parameter] is None:
            continue
        default = 1 if (name, parameter) in BY_BITS else values[parameter]
        values[parameter] = _checked_value(name, parameter, value, default)
    rows = [row for row in ROWS if row.name == name and _is_for(row, values)]
    if not rows:
        known = _conditions([row for row in ROWS if row.name == name])
        raise FastIndexError(f"{name} is supported with {known}, got {_spelled(values)}")
    widths = [row.bits for row in rows]
    if bits is None:
        bits = DEFAULT_BITS.get(name, 4 if 4 in widths else rows[0].bits or 8)
    row = next((row for row in rows if row.bits == bits), None)
    if row is None and None in widths and bits in (8, 16, 32, 64):
        row = rows[widths.index(None)]
    if row is None:
        others = [row for row in ROWS if row.name == name and row.bits == bits]
        if others:
            raise FastIndexError(
                f"{name} of {bits} bits is supported with {_conditions(others)}, got {_spelled(values)}"
            )
        listed = ", ".join("8, 16, 32, 64" if width is None else str(width) for width in dict.fromkeys(widths))
        raise FastIndexError(f"{name} has {listed} bits, got bits={bits}")
    for (of, parameter), by_bits in BY_BITS.items():
        if of == name and values[parameter] is None:
            if bits not in by_bits:
                raise FastIndexError(
                    f"{name} has no default {parameter} for elements of {bits} bits; give {parameter}="
                )
            values[parameter] = by_bits[bits]
    pairs = {f"{k}{i}": v for k, pair in values.items() if isinstance(pair, tuple) for i, v in enumerate(pair)}
    return Chosen(row, bits, {**values, **pairs, "chunk": max(128 // bits, 1)}, row_letters(row.text))


def row_letters(text: str) -> str:
    """Return the letters of the dimensions in the text of a row, in order.

    Examples
    --------
    >>> row_letters("u4[K/8,4,2,N]{1,2,3,0:E(4)}")
    'KN'
    """
    return "".join(re.findall(r"[A-Z]", _parts(text)[1]))


def _checked_value(name: str, parameter: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(default):
            raise FastIndexError(f"{name}: {parameter} must be {len(default)} sizes such as {default}, got {value!r}")
        return tuple(_checked_value(name, parameter, one, 1) for one in value)
    if isinstance(default, str) or default is None:
        if not isinstance(value, str):
            raise ArgumentTypeError(f"{name}: {parameter} must be text, got {value!r}")
        value = value.lower() if isinstance(default, str) or (name, parameter) in VALUES else value
        return _listed_value(name, parameter, value)
    if isinstance(default, bool):
        if value not in (False, True):
            raise ArgumentTypeError(f"{name}: {parameter} must be True or False, got {value!r}")
        return bool(value)
    try:
        number = int(value.__index__())
    except AttributeError:
        raise ArgumentTypeError(f"{name}: {parameter} must be an integer, got {value!r}") from None
    if number < 1 and (name, parameter) not in VALUES:
        raise FastIndexError(f"{name}: {parameter} must be above 0, got {value!r}")
    return _listed_value(name, parameter, number)


def _listed_value(name: str, parameter: str, value: Any) -> Any:
    known = VALUES.get((name, parameter))
    if known is not None and value not in known:
        raise FastIndexError(f"{name}: {parameter} must be one of {', '.join(map(str, known))}, got {value}")
    return value


def _conditions(rows: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(_spelled(row.when) for row in rows))


def _spelled(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in values.items())


def _is_for(row: Row, values: Mapping[str, Any]) -> bool:
    for condition, wanted in row.when.items():
        name, _, modulus = condition.rstrip("!").partition("%")
        value = values[name] % int(modulus) if modulus else values[name]
        if (value == wanted) == condition.endswith("!"):
            return False
    return True


def _parts(text: str) -> tuple[str, str, str]:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise FastIndexError(f"{text!r} is not the text of a format")
    element, dimensions, layout = found.groups()
    return element, dimensions, layout


def single_layout(name: str, bits: int | None = None) -> Layout | None:
    """Return the layout of a format that splits no dimension; None if `name` is not a format.

    Raises
    ------
    FastIndexError
        The format splits dimensions or codes into bits; use `repack`.

    Examples
    --------
    >>> str(single_layout("col32"))
    '{0,1:T(32,1)}'
    """
    if name not in names() or name == "onednn":
        return None
    known = {row.bits for row in ROWS if row.name == name}
    one = chosen(name, bits if bits in known or None in known else None, {})
    _, dimensions, layout = _parts(one.row.text)
    if dimensions.split(",") != list(one.letters):
        raise FastIndexError(
            f"{name} is not a layout of the array itself, but {one.row.text}, whose dimensions are split; "
            "fastindex.weights.repack moves it"
        )
    return Layout.parse("{" + _with_values(layout, one.values) + "}")


def _with_values(layout: str, values: Mapping[str, Any]) -> str:
    """Return the text of a layout with parameter names replaced by numbers."""
    return re.sub(r"(?<=[(,])([A-Za-z]\w*)(?=[,)])", lambda m: str(values.get(m.group(1), m.group(1))), layout)


def format_side(one: Chosen, sizes: Mapping[str, int], variables: Mapping[str, Variable]) -> RegroupedShape:
    """Return a format as a side of a move: of codes or, if its text has a dimension ``b``, of bits.

    Parameters
    ----------
    one : Chosen
    sizes : mapping
        Sizes of the dimensions by letter.
    variables : mapping
        Variables of the dimensions by letter, and of the bits of a code.

    Raises
    ------
    FastIndexError
        A size is not divisible as the format requires.
    """
    row, values = one.row, one.values
    _check_sizes(one, sizes)
    element, dimensions, layout = _parts(row.text)
    made: list[int] = []
    coordinates: list[Digits] = []
    whole: dict[str, int] = {}
    for group in _groups(dimensions):
        letter = next(_letter(entry) for entry in group if _letter(entry))
        parts = _group_sizes(one, group, letter, sizes)
        whole[letter] = math.prod(parts)
        weight = math.prod(parts)
        for i, size in enumerate(parts):
            high, weight = weight, weight // size if size else 0
            made.append(size)
            coordinates.append(digit(1, variables[letter], weight, high if i else None) if weight else ())
    # Tiles over an empty dimension have size 1.
    spelled = _with_values(layout, {**{letter: max(size, 1) for letter, size in whole.items()}, **values})
    kind = f"u{one.bits}" if element == "e" else element
    shape = Shape(kind, made, Layout.parse("{" + spelled + "}"))
    return RegroupedShape(shape, tuple(coordinates), tuple(variables.values()))


def padded_sizes(one: Chosen, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of an array, padded in the dimensions that a format splits; tiles may pad further.

    Examples
    --------
    >>> padded_sizes(chosen("blocked_scales", 8, {}), (100, 6))
    (128, 8)
    """
    table = dict(zip(one.letters, sizes, strict=True))
    groups = _groups(_parts(one.row.text)[1])
    found = {letter: group for group in groups for letter in map(_letter, group) if letter}
    return tuple(math.prod(_group_sizes(one, found[letter], letter, table)) for letter in one.letters)


def text_of(one: Chosen) -> str:
    """Return the text of a format with parameters replaced by numbers; only the dimension letters remain.

    Examples
    --------
    >>> text_of(chosen("tinygemm", 4, {"inner_k_tiles": 2})), text_of(chosen("mlx", 3, {}))
    ('u4[N/8,8,K/32,1,2,2,4,2]{5,4,7,3,6,1,2,0:E(4)}', 'u1[M,K,3]{2,1,0:T(*,32)E(1)}')
    """
    element, dimensions, layout = _parts(one.row.text)
    spelled: list[str] = []
    for group in _groups(dimensions):
        parts = [0 if _letter(entry) else _number(entry, one) for entry in group]
        unit = math.prod(part for part in parts if part)
        for entry, part in zip(group, parts, strict=True):
            spelled.append(str(one.bits) if entry == _BIT else str(part or _letter(entry) + f"/{unit}" * (unit > 1)))
    kind = f"u{one.bits}" if element == "e" else element
    return f"{kind}[{','.join(spelled)}]{{{_with_values(layout, one.values)}}}"


def _groups(dimensions: str) -> list[list[str]]:
    """Return the factors of each dimension of a text; one factor of each group has the letter.

    Examples
    --------
    >>> _groups("K/8,4,2,N"), _groups("M,2,K/2")
    ([['K/8', '4', '2'], ['N']], [['M'], ['2', 'K/2']])
    """
    groups: list[list[str]] = []
    for entry in dimensions.split(","):
        lettered = [factor for factor in groups[-1] if _letter(factor)] if groups else []
        # A dimension without a divisor has no other factors: they belong to the next one.
        is_complete = bool(lettered) and (bool(_letter(entry)) or "/" not in lettered[0])
        if not groups or is_complete:
            groups.append([])
        groups[-1].append(entry)
    return groups


def _letter(entry: str) -> str:
    return entry[0] if entry[0].isupper() or entry == _BIT else ""


def _group_sizes(one: Chosen, group: Sequence[str], letter: str, sizes: Mapping[str, int]) -> list[int]:
    if letter == _BIT:
        return [one.bits]
    parts = [1 if _letter(entry) else _number(entry, one) for entry in group]
    unit = math.prod(parts)
    multiple = math.lcm(unit, one.row.pads.get(letter, 1))
    padded = -(-sizes[letter] // multiple) * multiple
    return [padded // unit if _letter(entry) else part for entry, part in zip(group, parts, strict=True)]


def _number(text: str, one: Chosen) -> int:
    """Evaluate a product or quotient of numbers and parameters."""
    spelled = _NAME.sub(lambda m: str(one.values[m.group()]), text)
    upper, _, lower = spelled.partition("/")
    number, remainder = divmod(math.prod(map(int, upper.split("*"))), int(lower or 1))
    if remainder or not number:
        given = _spelled({m: one.values[m] for m in _NAME.findall(text)})
        raise FastIndexError(f"{one.row.name}: {text} must be a whole number, got {given}")
    return number


def multiple_of(one: Chosen, letter: str) -> int:
    """Return the multiple that a format requires or pads a dimension to, beyond the factors in its text.

    Examples
    --------
    >>> multiple_of(chosen("cutlass_mixed_gemm", 4, {}), "N"), multiple_of(chosen("col32", 8, {}), "M")
    (64, 1)
    """
    return math.lcm(_number(str(one.row.divides.get(letter, 1)), one), one.row.pads.get(letter, 1))


def _check_sizes(one: Chosen, sizes: Mapping[str, int]) -> None:
    for quotient in one.row.whole:
        _number(quotient, one)
    for letter, product in one.row.divides.items():
        multiple = _number(str(product), one)
        if sizes[letter] % multiple:
            raise FastIndexError(
                f"{one.row.name} takes {letter} in multiples of {multiple}"
                f"{'' if isinstance(product, int) else f' ({product})'}, got {letter}={sizes[letter]}"
            )


def plain_side(bits: int, sizes: Sequence[int], variables: Sequence[Variable], by_bits: bool) -> RegroupedShape:
    """Return the plain array, one code per byte, as a side of a move of codes or of bits."""
    coordinates = tuple(digit(1, variable, 1, None) for variable in variables[: len(sizes)])
    if not by_bits:
        return RegroupedShape(Shape(f"u{bits}", sizes), coordinates, tuple(variables))
    width = -(-bits // 8) * 8
    order = tuple(range(len(sizes), -1, -1))
    shape = Shape("u1", (*sizes, width), Layout(order, element_size_in_bits=1))
    return RegroupedShape(shape, (*coordinates, digit(1, variables[-1], 1, None)), tuple(variables))


def in_bits(side: RegroupedShape, bits: int, variable: Variable) -> RegroupedShape:
    """Return a side of codes as a side of bits, over the same bytes.

    Examples
    --------
    >>> k, b = Variable("k", 16, True), Variable("b", 4, True)
    >>> codes = RegroupedShape(Shape.parse("u4[16]{0:T(8)E(4)}"), (digit(1, k, 1, None),), (k,))
    >>> str(in_bits(codes, 4, b).shape)
    'u1[16,4]{1,0:T(8,4)E(1)}'
    """
    layout = side.layout
    split = replace(
        layout,
        minor_to_major=(len(side.dimensions), *layout.minor_to_major),
        tiles=tuple((*tile, bits) for tile in layout.tiles),
        element_size_in_bits=1,
    )
    shape = Shape("u1", (*side.dimensions, bits), split)
    coordinates = (*side.coordinates, digit(1, variable, 1, None))
    return RegroupedShape(shape, coordinates, (*side.variables, variable))


@lru_cache(maxsize=512)
def of_bits(row_text: str) -> bool:
    """Whether the text of a row has a dimension of bits: its elements are bits, not codes.

    Examples
    --------
    >>> of_bits("u1[M,K,b]{2,1,0:T(*,32)E(1)}"), of_bits("u4[M,K]{1,0:E(4)}")
    (True, False)
    """
    return _BIT in _parts(row_text)[1].split(",")


def last_block(one: Chosen, rows: int) -> tuple[Chosen, int]:
    """Return the format of an array that is a last block only, else the format as it is; and the rows of a last block.

    Examples
    --------
    >>> aten = chosen("aten_int4pack_cpu", 4, {"capability": "avx2"})
    >>> last_block(aten, 16)[0].row.text, last_block(aten, 48)[1], last_block(aten, 64)[1]
    ('u4[N,K]{0,1:E(4)}', 16, 0)
    """
    parameter, last, blocks = LAST_BLOCKS.get(one.row.name, ("", "", {}))
    block = blocks.get(str(one.values.get(parameter)), 1)
    if rows % block == 0:
        return one, 0
    tail = chosen(one.row.name, one.bits, {parameter: last})
    multiple = multiple_of(tail, tail.letters[0])
    if rows % multiple:
        raise FastIndexError(
            f"{one.row.name} takes {tail.letters[0]} in multiples of {multiple}, got {tail.letters[0]}={rows}"
        )
    return tail if rows < block else one, rows % block
