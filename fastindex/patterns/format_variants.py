"""What is known of a named format, for each width and each value of its parameters, as plain data."""

from __future__ import annotations

from typing import Any

from fastindex.errors import FastIndexError
from fastindex.patterns.format_table import PARAMETERS, ROWS, Row
from fastindex.patterns.named_formats import chosen, multiple_of, text_of

#: Bits of elements of any whole number of bytes.
_WIDTHS = (8, 16, 32, 64)


def values_for(row: Row) -> dict[str, Any]:
    """Return parameters for which a row is taken.

    Examples
    --------
    >>> [values_for(row) for row in ROWS if row.name == "trtllm_shuffle_matrix_a"]
    [{'epilogue_tile_m': 128}, {'epilogue_tile_m': 64}]
    """
    found = {}
    for key, value in row.when.items():
        name, _, modulus = key.rstrip("!").partition("%")
        if modulus:
            value = int(modulus) // 2 if key.endswith("!") else int(modulus)
        found[name] = value
    return found


def variants(name: str) -> list[dict[str, Any]]:
    """Return what a format is, the default first, for each width and each value of a parameter that rows tell apart.

    Keys are those that `fastindex.weights.formats` documents.

    Examples
    --------
    >>> one = variants("bnb_nf4")[0]
    >>> one["layout"], one["unit_order"], one["fill"]
    ('u4[L/2,2]{1,0:E(4)}', (4, 5, 6, 7, 0, 1, 2, 3), 7)
    """
    rows = [row for row in ROWS if row.name == name]
    found = [variant for row in rows for bits in _widths(row) if (variant := _variant(row, bits)) is not None]
    default = chosen(name, None, {}) if rows else None
    # True is behind False.
    return sorted(
        found, key=lambda one: default is None or (one["layout"], one["bits"]) != (text_of(default), default.bits)
    )


def _widths(row: Row) -> tuple[int, ...]:
    return _WIDTHS if row.bits is None else (row.bits,)


def _variant(row: Row, bits: int) -> dict[str, Any] | None:
    """Return what a row is for a width; None where a parameter has no default for that."""
    given = values_for(row)
    try:
        one = chosen(row.name, bits, given)
    except FastIndexError:
        return None
    return {
        "bits": bits,
        "parameters": {k: one.values[k] for k in PARAMETERS.get(row.name, {})},
        "layout": text_of(one),
        "multiples": {letter: multiple_of(one, letter) for letter in row.divides},
        "padded": dict(row.pads),
        "unit_order": unit_order(row),
        "flipped_bits": 1 << bits - 1 if row.stored == "signed" else 0,
        "fill": row.fill,
        "source": row.source,
    }


def unit_order(row: Row) -> tuple[int, ...]:
    """Return where each bit of a unit lies, as `fastindex.weights.discover` says it; nothing where all are in order.

    Examples
    --------
    >>> [unit_order(row) for row in ROWS if row.name == "bnb_nf4"]
    [(4, 5, 6, 7, 0, 1, 2, 3)]
    """
    width = row.order_bits
    return tuple(place * width + bit for place in row.order for bit in range(width))
