"""A row of the table of named formats: one layout of a name, for certain values of its parameters.

A row is data. `text` is XLA's text of the array after its dimensions are split: capital letters are the dimensions, the
entries between them the sizes of their inner factors, ``b`` the bits of a code, ``e`` an element of whole bytes, and
other names are parameters. A text with ``b`` orders single bits: its type is u1, with ``E(1)``. Split or tiled
dimensions are padded to multiples, unless `divides` requires divisible sizes. Words are little-endian.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """A format for certain values of its parameters.

    Attributes
    ----------
    name : str
    text : str
    bits : int, optional
        Bits of a code; None for elements of any whole number of bytes.
    when : mapping
        Required values of parameters. ``"name%n"`` is the remainder modulo n; ``"name%n!"`` must differ from the value.
    divides : mapping
        The required divisor of a dimension, as a number or a product of parameters.
    whole : tuple of str
        Quotients of parameters that must be integers.
    pads : mapping
        The multiple to which a dimension is padded, if larger than the text implies.
    order : tuple of int
        Position of element i within a unit of ``len(order)`` most minor elements; empty for the identity.
    order_bits : int
        Bits of an element of `order`: a single bit, or a whole code.
    stored : {"codes", "integers", "offset", "signed", "elements"}
        Meaning of codes. "codes": not integers, such as fp4. "integers": the value plus ``2**(bits-1)``; a plain array
        of a signed type as wide as a code holds values. "offset": the same, and int8 holds values of any width.
        "signed": two's complement, so the top bit of unsigned codes is flipped. "elements": unchanged, signed or not.
    fill : int
        The code in padding.
    source : str
        The vendor's library and function.
    """

    name: str
    text: str
    bits: int | None = None
    when: Mapping[str, Any] = field(default_factory=dict)
    divides: Mapping[str, int | str] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    pads: Mapping[str, int] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    order_bits: int = 0
    stored: str = "codes"
    fill: int = 0
    source: str = ""


def rows_of(name: str, *variants: tuple[int | None, dict[str, Any], str], **shared: Any) -> tuple[Row, ...]:
    """Return the rows of a name: bits, required parameters and text of each, and the fields that they share."""
    return tuple(Row(name, text, bits, when=when, **shared) for bits, when, text in variants)
