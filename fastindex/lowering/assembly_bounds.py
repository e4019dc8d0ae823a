"""What an assembly takes at least, known from the digits of the two sides before its blocks are."""

from __future__ import annotations

from fastindex.lowering.pass_costs import least_assembly_cost
from fastindex.lowering.relayout_loops import Strides, shared_digits, stride_at
from fastindex.shapes.shape import Shape
from fastindex.tiling.digits import Digits


def least_cycles(
    source: Shape | Strides,
    destination: Shape | Strides,
    written_bytes: int,
    slot_bits: tuple[int, int],
    vector_bytes: int,
) -> float:
    """Return the cycles that every assembly takes, 0 where elements may be read more than once.

    Parameters
    ----------
    source, destination : Shape or Strides
    written_bytes : int
        Of the destination, with its padding.
    slot_bits : (int, int)
        Of source and destination.
    vector_bytes : int
        What the machine permutes with one instruction.
    """
    if isinstance(source, Strides):
        return 0
    apart = all(is_apart(left, right, slot_bits, vector_bytes) for _, left, right in shared_digits(source, destination))
    # A vector has two runs of elements at most, so half of its elements at least have a piece each.
    element_bits = min(slot_bits)
    piece_bits = min(2 * element_bits, 8 * vector_bytes) if apart else 8 * vector_bytes
    return least_assembly_cost(
        written_bytes, source.element_count * element_bits // 8, piece_bits / 8, slot_bits, vector_bytes
    )


def is_apart(left: Digits, right: Digits, slot_bits: tuple[int, int], vector_bytes: int) -> bool:
    """Whether elements that are adjacent in the destination lie a vector or more apart in the source, nearly all.

    Runs of such elements then begin so far from each other that a vector of the destination has parts of two at most.

    Parameters
    ----------
    left, right : Digits
        The slots of source and destination as sums of their digits.
    slot_bits : (int, int)
    vector_bytes : int

    Examples
    --------
    >>> from fastindex.tiling.digits import digit, Variable
    >>> rows, columns = Variable(0, 100, True), Variable(1, 100, True)
    >>> left = digit(100, rows, 1, None) + digit(1, columns, 1, None)
    >>> is_apart(left, digit(1, rows, 1, None) + digit(100, columns, 1, None), (32, 32), 64), is_apart(
    ...     left, left, (32, 32), 64
    ... )
    (True, False)
    """
    first = min(right, key=lambda d: d.weight, default=None)
    if first is None or first.weight != 1:
        return False
    own = [d for d in left if d.variable == first.variable]
    cuts = [cut for d in own for cut in (d.low, d.high or d.variable.extent)]
    if any(cut % first.low if cut > first.low else first.low % cut for cut in cuts):
        return False
    values = first.largest + 1
    run = min((cut // first.low for cut in cuts if cut > first.low), default=values)
    if run < values and values % run:
        return False
    slots, rest = divmod(8 * vector_bytes, slot_bits[1])
    return not rest and min(run, values) >= slots and stride_at(first.low, own) * slot_bits[0] >= 8 * vector_bytes
