"""Floor division by a constant as a multiplication and a shift.

For ``n < 2**w`` and a divisor ``d`` of which ``s`` is the base-2 logarithm rounded up, take
``m = ceil(2**(w + s) / d)``. Then ``m * d = 2**(w + s) + e`` with ``0 <= e < d <= 2**s``, so
``n * m / 2**(w + s)`` exceeds ``n / d`` by ``n * e / (d * 2**(w + s)) < 1 / d``, too little to reach the next
integer: the floor of the one is the floor of the other. ``m`` has ``w + 1`` bits at most.

Source: T. Granlund and P. Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Numerators below this take the narrow path: the product fits 63 bits.
NARROW = 2**31


@dataclass(frozen=True, slots=True)
class Division:
    """Constants for ``numerator // divisor``.

    Attributes
    ----------
    magic : int
        Below 2**32 where narrow, below 2**64 where wide.
    shift : int
        Narrow: of the 64-bit product. Wide: of the high half of the 128-bit product.
    wide : bool
    """

    magic: int
    shift: int
    wide: bool


def division(divisor: int, limit: int) -> Division:
    """Return the constants that divide every numerator in ``range(limit + 1)`` by `divisor`.

    Parameters
    ----------
    divisor : int
        At least 1, and below 2**63. Where wide, at least 2.
    limit : int
        Below 2**63.

    Examples
    --------
    >>> constants = division(7, 1000)
    >>> (1000 * constants.magic) >> constants.shift
    142
    """
    rounded_up = (divisor - 1).bit_length()
    if limit < NARROW and divisor < NARROW:
        return Division(-(-(2 ** (31 + rounded_up)) // divisor), 31 + rounded_up, False)
    return Division(-(-(2 ** (63 + rounded_up)) // divisor), rounded_up - 1, True)
