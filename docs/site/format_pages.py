"""The pages of named formats, generated from their table: layouts, sources and pictures, a page for each family.

The table of names in ``docs/how-to/formats.md`` says which family a format is of. A picture shows the split array at
the smallest sizes that fill a block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastindex as fi
from fastindex.algebra.sides import RegroupedShape
from fastindex.core.digits import Variable, digit
from fastindex.index.programs import conversion_program, multi_program
from fastindex.patterns.format_rows import Row
from fastindex.patterns.format_table import PARAMETERS, REFUSED, ROWS
from fastindex.patterns.named_formats import Chosen, chosen, format_side, of_bits, row_letters
from fastindex.weights.repacking import values_for

#: Of dimensions that a layout neither splits nor tiles.
_FEW = 3
#: Slots of a picture that a few more of a dimension may have.
_SMALL = 512
#: Codes that are named in the order of memory.
_SHOWN = 8
#: What signed elements of the plain array are.
_MEANINGS = {
    "integers": ["a signed type as wide as a code holds values, not codes"],
    "offset": ["int8 holds values, not codes"],
    "signed": ["stored as two's complement"],
}
#: Larger dimensions need no look: every format has a block of less.
_MOST = 1024

_HEAD = """# Named formats

The formats that `repack` converts between and `formats()` lists. A format is an XLA layout of the array with split
dimensions: capital letters are dimensions, numbers between them the sizes they are split into, `b` the bits of a code,
`e` an element of any whole number of bytes, other names are parameters. Pictures show the smallest sizes that fill a
block; their interactive pages locate every code. [Quantised weights](../how-to/formats.md) says how to use them.

"""
_HOW_TO = Path(__file__).resolve().parents[1] / "how-to" / "formats.md"


def pages() -> dict[str, str]:
    """Return the pages in Markdown, by their places on the site."""
    listed = dict(re.findall(r"^\| ([A-Z][^|]*) \| (`.*) \|$", _HOW_TO.read_text(encoding="utf-8"), re.MULTILINE))
    families = {family: re.findall(r"`(\w+)`", names) for family, names in listed.items()}
    files = {family: f"formats-{re.sub('[^a-z0-9]+', '-', family.lower())}.md" for family in families}
    made = {f"reference/{files[family]}": _family(family, names) for family, names in families.items()}
    places = {name: f"{files[family]}#{name}" for family, names in families.items() for name in names}
    return {"reference/formats.md": _HEAD + _table(places) + _refused(), **made}


def _family(family: str, names: Sequence[str]) -> str:
    sections = [_onednn() if name == "onednn" else _section(name) for name in names]
    return f"# {family}\n\n[Named formats](formats.md) explains the notation.\n\n" + "\n".join(sections)


def _table(places: Mapping[str, str]) -> str:
    """Return what `formats` returns, a row for each name, with links to the sections of the names."""
    lines = ["| name | dimensions | bits | parameters |", "|---|---|---|---|"]
    for one in fi.weights.formats():
        if one["refused"] is not None:
            continue
        widths = sorted(one["bits"], key=lambda width: width or 0)
        bits = ", ".join("whole bytes" if width is None else str(width) for width in widths)
        parameters = ", ".join(f"`{key}={value!r}`" for key, value in one["parameters"].items())
        name = one["name"]
        lines.append(f"| [{name}]({places[name]}) | {', '.join(one['dimensions'])} | {bits} | {parameters} |")
    return "\n".join(lines) + "\n\n"


def _section(name: str) -> str:
    rows = [row for row in ROWS if row.name == name]
    letters = ", ".join(f"`{letter}`" for letter in row_letters(rows[0].text))
    sources = "; ".join(dict.fromkeys(row.source for row in rows))
    lines = [f"## {name}", "", f"Dimensions {letters}. Source: {sources}.", ""]
    parameters = ", ".join(f"`{k}={v!r}`" for k, v in PARAMETERS.get(name, {}).items())
    if parameters:
        lines += [f"Parameters: {parameters}.", ""]
    for same in _by_layout(rows):
        lines += [*_variant(same[0].text, same), ""]
    return "\n".join(lines)


def _by_layout(rows: list[Row]) -> list[list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault((row.text, row.order), []).append(row)
    return list(found.values())


def _variant(text: str, rows: list[Row]) -> Iterator[str]:
    first = rows[0]
    widths = " and ".join(dict.fromkeys(f"{row.bits} bits" if row.bits else "whole bytes" for row in rows))
    where = [", ".join(dict.fromkeys(_condition(k, row.when[k]) for row in rows if k in row.when)) for k in first.when]
    also = [f"{k} a multiple of {v}" for k, v in first.divides.items()]
    also += [f"{k} padded to a multiple of {v}" for k, v in first.pads.items()]
    also += ["a format-specific order of the most minor bits"] if first.order else []
    also += _MEANINGS.get(first.stored, [])
    yield f"{widths}{''.join(f', {one}' for one in where)}: `{text}`{''.join(f'; {one}' for one in also)}."
    one = chosen(first.name, first.bits or 16, values_for(first))
    sizes = smallest(one)
    begin = first_codes(one, sizes)
    if begin:
        of = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
        yield f"With {of} memory begins with ({', '.join(sizes)}) = {', '.join(begin)}."
    yield ""
    yield "```layout"
    yield str(_side(one, sizes).shape)
    yield "```"


def _condition(key: str, value: Any) -> str:
    name, _, modulus = key.rstrip("!").partition("%")
    if not modulus:
        return f"`{name}={value!r}`"
    return f"`{name}` {'no' if key.endswith('!') else 'a'} multiple of {modulus}"


def first_codes(one: Chosen, sizes: Mapping[str, int]) -> list[str]:
    """Return which codes the first slots hold, in the order of memory; none where bits are torn or in another order."""
    if one.row.order or of_bits(one.row.text):
        return []
    side = _side(one, sizes)
    coordinates = tuple(digit(1, variable, 1, None) for variable in side.variables)
    plain = RegroupedShape(fi.Shape("u8", [v.extent for v in side.variables]), coordinates, side.variables)
    program, back = conversion_program(side, plain), multi_program(plain.shape)
    found = []
    for slot in range(min(_SHOWN, side.slot_count)):
        place, holds = program.evaluate((slot,))
        found.append(str(back.evaluate(place)[0]).replace(" ", "") if holds else "padding")
    return found


def smallest(one: Chosen) -> dict[str, int]:
    """Return the sizes of a format that fill one block."""
    sizes = dict.fromkeys(one.letters, 0)
    for letter in one.letters:
        sizes[letter] = next(n for n in range(1, _MOST) if _takes(one, {**sizes, letter: n}))
    for letter in one.letters:
        # What one element is padded to; blocks have powers of two.
        whole = [{**sizes, letter: 1 << bit} for bit in range(_MOST.bit_length())]
        fit = [more for more in whole if _takes(one, more) and _slots(one, more) == _slots(one, sizes)]
        sizes = max([sizes, *fit], key=lambda found: found[letter])
    for letter in one.letters:
        more = {**sizes, letter: _FEW}
        if sizes[letter] == 1 and _takes(one, more) and _slots(one, more) <= _SMALL:
            sizes = more
    made = _shape(one, sizes)
    split = made.rank > len(one.letters)
    if split or not made.layout.tiles:
        return sizes
    # What tiles pad one element to; a few of what they do not.
    tile = made.layout.tiles[0]
    order = made.layout.minor_to_major
    for size, d in zip(reversed(tile), order, strict=False):
        letter = one.letters[d]
        sizes[letter] = max(sizes[letter], size if size > 1 else _FEW)
    return sizes


def _takes(one: Chosen, sizes: Mapping[str, int]) -> bool:
    try:
        _shape(one, sizes)
    except fi.FastIndexError:
        return False
    return True


def _shape(one: Chosen, sizes: Mapping[str, int]) -> fi.Shape:
    return _side(one, sizes).shape


def _slots(one: Chosen, sizes: Mapping[str, int]) -> int:
    return _shape(one, sizes).slot_count


def _side(one: Chosen, sizes: Mapping[str, int]) -> RegroupedShape:
    variables = {letter: Variable(letter, max(size, 1), True) for letter, size in sizes.items()}
    if of_bits(one.row.text):
        variables["b"] = Variable("b", one.bits, True)
    return format_side(one, sizes, variables)


def _onednn() -> str:
    layout = "u8[16,16,1,1]{3,2,1,0:T(16,16,1,1)(16,1,1,1)}"
    return f"## onednn\n\nAny tag that `named_layout` knows, as in `tag='OIhw16i16o'`:\n\n```layout\n{layout}\n```\n"


def _refused() -> str:
    return "## Unsupported formats\n\n" + "".join(f"* `{name}`: {why}\n" for name, why in REFUSED.items())
