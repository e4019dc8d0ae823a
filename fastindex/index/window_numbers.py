"""Names of the places in the numbers that the window kernel reads, on which plan and kernel agree."""

from __future__ import annotations

from fastindex.index.numbers import LINE

#: Elements that are collected in the nearest cache before they go past it.
COLLECTED = 512

# The header.
OUTER_AXES = 0  # axes outside the run; their index is the row
QUOTIENTS = 1
COUNTED = 2  # whether segments end where a quotient changes; else a row is one segment
ROW = 3  # elements of a row
UNIT = 4  # elements of one step of the run
TABLE = 5  # elements of a table, after which it is repeated
SHIFT = 6  # what is added at each repetition
FORMS = 7  # where the forms begin: one per quotient, then the output's
COUNTS = 8  # the counts of the outer axes, from here on

# A form: its constant, how many terms it has, then a variable and a coefficient for each term. Variables are the outer
# axes, the step of the run, then the quotients in order.
CONSTANT = 0
TERMS = 1
FIRST_TERM = 2

# A quotient, behind its form: the divisor; what its numerator gains at each step of the run where the quotient ends
# segments, else 0; how far apart the remainders are with which a segment may begin; the number of tables from one of
# these to the next.
DIVISOR = 0
GAIN = 1
APART = 2
WEIGHT = 3
QUOTIENT_NUMBERS = 4


def window_scratch_size(variables: int) -> int:
    """Return how many numbers the kernel needs to itself."""
    return COLLECTED + 2 * LINE + variables
