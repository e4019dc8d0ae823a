"""Index programs as tables of numbers, in steps that each pass once over a block of elements.

A table has one row per step. A step reads blocks of variables and writes the blocks of its targets. Variables are the
inputs, then the quotients, then the outputs and their partial sums. Columns and operations are named here;
`fastindex.index.compiled` makes the tables of programs, and `fastindex.index.kernels.steps` has the loops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fastindex.runtime.numbers import LINE_BYTES, STORED, places

INT64_BYTES = 8
LINE = LINE_BYTES // INT64_BYTES

# How inputs are stored, beyond the codes of `STORED`.
SWAPPED = len(STORED)  # added to a code: the other byte order
COUNTED = 2 * SWAPPED  # no memory: the "address" is the first value, the "strides" are steps

# What happens to an input outside its bounds.
RAISE = 0
WRAP = 1
CLIP = 2

#: Numbers before the outputs' variables: inputs, outputs, variables, steps.
HEADER = 4

#: Maximum numbers of operands that a step adds, checks, and divides.
MOST_SUMMED = 6
MOST_CHECKED = 4
MOST_DIVIDED = 4

# Columns of a step; for several numbers, the first column.
OPERATION = 0
TARGET = 1  # four of them; only QUOTIENTS uses more than one
OPERAND = 5
COEFFICIENT = 11
LAST = 17
DIVIDED = 21
MAGIC = 25
SHIFT = 29
FACTOR = 33
COLUMNS = 37

# Operations. `x` are the operands, `c` coefficients, `l` the last allowed values; comparisons are unsigned.
# Except in the wide ones, all factors of products fit int32, and numerators are below 2**31.
SUM_OF_TWO = 0  # c0 * x0 + c1 * x1
SUM_OF_FOUR = 1  # sum of c * x; stop unless every x <= l
SUM_OF_SIX = 2  # sum of c * x
SUM_OF_QUOTIENTS = 3  # as SUM_OF_FOUR, plus the sum of factor * quotient of the divided variables
WIDE_SUM = 4  # as SUM_OF_FOUR
QUOTIENT = 5  # quotient of c0 * x0 + c1 * x1; stop unless x0 <= l0
QUOTIENTS = 6  # four quotients of x0, to four targets; stop unless x0 <= l0
WIDE_QUOTIENT = 7  # quotient of x0; stop unless x0 <= l0
CHECK = 8  # nothing; stop unless every x <= l
MARK = 9  # -1 unless every x <= l, else 0
MARKED = 10  # x0 | x1

#: Last allowed values: all values are allowed; all but negative ones are.
ANY = -1
NOT_NEGATIVE = 2**63 - 1


def block_length(variables: int) -> int:
    """Return the number of elements in a block.

    Short blocks keep the streams from memory interleaved and the rows in L1; 128 measured best.
    """
    return 128 if variables <= 4096 else 16


def scratch_size(variables: int) -> int:
    """Return the size of the kernel's scratch memory, in int64."""
    return variables * (block_length(variables) + 1) + LINE


# Windows

#: Elements that are collected in L1 before they are written with non-temporal stores.
COLLECTED = 512


class WindowHeader(NamedTuple):
    """The first of the numbers that the plan of a window passes to its kernel; the sizes of the outer axes follow.

    Attributes
    ----------
    outer_axes : int
        Number of axes outside the run; their index is the row.
    quotients : int
    counted : int
        Whether segments end where a quotient changes; else a row is one segment.
    row, unit : int
        Elements of a row, and of one step of the run.
    table, shift : int
        Elements of a table, after which it is repeated; increment from one repetition to the next.
    forms : int
        Where the forms begin: one per quotient, then the output's.
    """

    outer_axes: int
    quotients: int
    counted: int
    row: int
    unit: int
    table: int
    shift: int
    forms: int


WINDOW = places(WindowHeader)
WINDOW_SIZES = len(WINDOW)

# A form: its constant, how many terms it has, then a variable and a coefficient for each term. Variables are the outer
# axes, the step of the run, then the quotients in order.
FORM_CONSTANT = 0
FORM_TERMS = 1
FORM_FIRST_TERM = 2


class WindowQuotient(NamedTuple):
    """The numbers of a quotient, after its form.

    Attributes
    ----------
    divisor : int
    gain : int
        Increment of its numerator per step of the run if the quotient ends segments, else 0.
    spacing, weight : int
        Spacing of the remainders at segment starts; number of tables from one such remainder to the next.
    """

    divisor: int
    gain: int
    spacing: int
    weight: int


WINDOW_QUOTIENT = places(WindowQuotient)


def window_scratch_size(variables: int) -> int:
    """Return the size of the scratch memory of the kernel of windows, in int64."""
    return COLLECTED + 2 * LINE + variables


# The arithmetic of one element, written once for CPU and GPU; the constants come from `fastindex.algebra.forms`.

_LOW_HALF = 0xFFFFFFFF


def narrow_product(a: Any, b: Any) -> Any:
    """Return the product of two numbers that fit int32; one 32-bit multiplication is enough."""
    return np.int64(np.int32(a)) * np.int64(np.int32(b))


def narrow_quotient(numerator: Any, magic: Any, shift: Any) -> Any:
    """Return ``numerator // divisor`` for a numerator below 2**31; only its low 32 bits count.

    The mask of `magic` changes nothing; it tells a compiler that one 32-bit multiplication is enough.
    """
    return ((numerator & _LOW_HALF) * (magic & _LOW_HALF)) >> shift


def high_product(a: Any, b: Any) -> Any:
    """Return the high 64 bits of the product of two uint64, from four products of halves."""
    low_half = np.uint64(_LOW_HALF)
    half = np.uint64(32)
    a_low, a_high = a & low_half, a >> half
    b_low, b_high = b & low_half, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & low_half)
    return a_high * b_high + (middle >> half) + (other >> half)


def wide_quotient(numerator: Any, magic: Any, shift: Any) -> Any:
    """Return ``numerator // divisor`` for a numerator below 2**63; `magic` holds the bits of a uint64."""
    return np.int64(high_product(np.uint64(numerator), np.uint64(magic)) >> np.uint64(shift))
