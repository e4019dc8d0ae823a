"""Names of the offsets in the numbers that a window's plan passes to its kernel."""

from __future__ import annotations

from fastindex.index.numbers import LINE

#: Elements that are collected in L1 before they are written with non-temporal stores.
COLLECTED = 512

# The header.
OUTER_AXES = 0  # axes outside the run; their index is the row
QUOTIENTS = 1
COUNTED = 2  # whether segments end where a quotient changes; else a row is one segment
ROW = 3  # elements of a row
UNIT = 4  # elements of one step of the run
TABLE = 5  # elements of a table, after which it is repeated
SHIFT = 6  # increment from one repetition to the next
FORMS = 7  # where the forms begin: one per quotient, then the output's
COUNTS = 8  # the counts of the outer axes, from here on

# A form: its constant, how many terms it has, then a variable and a coefficient for each term. Variables are the outer
# axes, the step of the run, then the quotients in order.
CONSTANT = 0
TERMS = 1
FIRST_TERM = 2

# A quotient, after its form: the divisor; the increment of its numerator per step of the run if the quotient ends
# segments, else 0; the spacing of the remainders at segment starts; the number of tables from one such remainder to
# the next.
DIVISOR = 0
GAIN = 1
APART = 2
WEIGHT = 3
QUOTIENT_NUMBERS = 4


def window_scratch_size(variables: int) -> int:
    """Return the size of the kernel's scratch memory, in int64."""
    return COLLECTED + 2 * LINE + variables
