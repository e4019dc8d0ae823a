"""Split, merge and reorder dimensions: einops' patterns and XLA's reshape, in one move between any layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fastindex.algebra.sides import RegroupedShape, joined_variables, substituted
from fastindex.arrays.fills import fill_pattern
from fastindex.core.digits import runs_backwards
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import check_movable
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError, check_flag
from fastindex.lazy import hook, lazy_property
from fastindex.moving.movements import movement
from fastindex.moving.problem import PLANS_KEPT
from fastindex.moving.rearranged_arrays import regrouped
from fastindex.moving.relayout_plans import RelayoutPlan, tuned_plan
from fastindex.patterns.grammar import check_options, checked_sizes, parse_pattern, reshaped_sides, sides_of
from fastindex.patterns.same_moves import same_moves
from fastindex.runtime.tuning import TUNING
from fastindex.xla.bitcasts import reshape_is_bitcast


class RearrangePlan(RelayoutPlan):
    """A plan to move buffers between shapes of different dimensions; made by `plan_rearrange`.

    Two plans are equal if they move the same slots to the same places of buffers of the same sizes, even if their
    shapes and patterns are written differently.

    Attributes
    ----------
    source, destination : Shape
    is_bitcast : bool
        Whether every element keeps its position and both buffers have the same size.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> plan = fi.plan_rearrange("(a b) -> b a", "u8[6]", b=2)
    >>> plan(np.arange(6, dtype=np.uint8)), plan.inverse()(plan(np.arange(6, dtype=np.uint8)))
    (array([0, 2, 4, 1, 3, 5], dtype=uint8), array([0, 1, 2, 3, 4, 5], dtype=uint8))
    """

    def __init__(self, source: RegroupedShape, destination: RegroupedShape, title: str = "") -> None:
        check_movable(source)
        check_movable(destination)
        self._sides = source, destination
        self._title = title
        moved = movement(source, destination, TUNING)
        if moved.slots.loops is None and runs_backwards(source.variables):
            raise UnsupportedError(f"tiles split an axis that runs backwards, and do not divide its size; in {title!r}")
        if moved.slots.loops is None:
            # A dimension that the pattern splits and merges again may be tiled at other places: join its axes.
            joined = movement(*joined_variables(self._sides), TUNING)
            moved = moved if joined.slots.loops is None else joined
        self.source, self.destination = source.shape, destination.shape
        self._pattern, self._movement = fill_pattern(self.destination), moved

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (*self._sides, self._title)
        if self._choice is None:
            return RearrangePlan, arguments
        return tuned_plan, (RearrangePlan, arguments, self._choice)

    def __repr__(self) -> str:
        return f"<RearrangePlan {self.source} -> {self.destination}{self._title and ', ' + self._title}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RearrangePlan):
            return NotImplemented
        own, others = self._movement.slots, other._movement.slots
        sizes = [
            (m.source, m.destination, p.source.nbytes, p.destination.nbytes, p._pattern)
            for m, p in ((own, self), (others, other))
        ]
        if sizes[0] != sizes[1]:
            return False
        if self._sides == other._sides:
            return True
        if runs_backwards((*self._sides[0].variables, *other._sides[0].variables)):
            return own.loops == others.loops
        left, right = joined_variables(self._sides), joined_variables(other._sides)
        return left == right or same_moves(left, right)

    def __hash__(self) -> int:
        return hash((self.source.nbytes, self.destination.nbytes))

    def describe(self) -> str:
        """Describe the shapes, the pattern and the kernels, one line per pass.

        Examples
        --------
        >>> import fastindex as fi
        >>> print(fi.plan_rearrange("b (h d) -> (b h) d", "f32[8,128]", h=4).describe())
        f32[8,128]{1,0} -> f32[32,32]{1,0}
        b (h d) -> (b h) d
        nothing changes its place
        copy, 4-byte units, 1 task, about 4,096 bytes: runs that both sides keep contiguous
        """
        lines = super().describe().split("\n")
        return "\n".join([lines[0], *([self._title] if self._title else []), *lines[1:]])

    def inverse(self) -> RearrangePlan:
        """Return the inverse plan; it drops the padding that this plan adds, and adds the padding that this one drops.

        Examples
        --------
        >>> import fastindex as fi
        >>> plan = fi.plan_rearrange("(a b) -> b a", "u8[70]", b=32, pad=True)
        >>> str(plan.destination), plan.inverse().then(plan).is_bitcast
        ('u8[32,3]{1,0}', True)
        """
        return RearrangePlan(self._sides[1], self._sides[0], self._title and f"the inverse of {self._title}")

    def then(self, other: RearrangePlan) -> RearrangePlan:
        """Return the composition: this plan, then another, as one move.

        Padding of this plan stays padding, with the padding value of the last destination.

        Raises
        ------
        ArgumentTypeError
            The other plan was not made by `plan_rearrange`.
        FastIndexError
            The source of the other plan is not the destination of this one.
        UnsupportedError
            The two plans cut a coordinate at places that do not divide each other, or each drops elements that the
            other moves.

        Examples
        --------
        >>> import fastindex as fi
        >>> rows = fi.plan_rearrange("a b -> b a", "u8[4,6]")
        >>> rows.then(fi.plan_rearrange("b a -> a b", rows.destination)).is_bitcast
        True
        """
        if not isinstance(other, RearrangePlan):
            raise ArgumentTypeError(
                f"the next plan must come from plan_rearrange, got {other!r}; "
                "for a relayout, use a pattern that keeps the dimensions, such as 'a b -> a b'"
            )
        if self.destination != other.source:
            raise FastIndexError(f"the next plan must begin with {self.destination}, not with {other.source}")
        (first, middle), (begin, last) = self._sides, other._sides
        title = " then ".join(filter(None, (self._title, other._title)))
        try:
            return RearrangePlan(first, substituted(last, begin, middle), title)
        except UnsupportedError:
            return RearrangePlan(substituted(first, middle, begin), last, title)

    def _lazily(self, buffer: Any, **options: Any) -> Any:
        """Reject lazy arrays.

        Raises
        ------
        UnsupportedError
        """
        raise UnsupportedError(
            f"a plan of rearrange moves buffers in memory, and this {type(buffer).__name__} is computed later: "
            "compute it first, or give the array itself to rearrange"
        )

    @lazy_property
    def _on_gpu(self) -> Callable[[Any, bytes, Any, Any], Any]:
        if runs_backwards(self._sides[0].variables):
            raise UnsupportedError("axes run backwards in host memory only; reverse the array on the GPU first")
        made: Callable[[Any, bytes, Any, Any], Any] = hook("cuda.DevicePlan")(*self._sides)
        return made


def plan_rearrange(
    pattern: str,
    source: Shape | str,
    /,
    destination: Shape | str | None = None,
    *,
    pad: bool = False,
    **sizes: Any,
) -> RearrangePlan:
    """Plan a rearrangement between layouts once, to call it many times.

    Parameters
    ----------
    pattern : str
        As for `rearrange`. Its two sides name the dimensions of `source` and of `destination`.
    source : Shape or str
        With any layout: tiled, padded, packed.
    destination : Shape or str, optional
        The same element type and the dimensions that result from the pattern, in any layout; contiguous by default.
        With ``pad=True``, a dimension of several axes may be shorter than their product: it is cut.
    pad : bool
        Whether a dimension that is split is padded to a multiple.
    **sizes : int
        The sizes of axes that do not follow from the shapes.

    Returns
    -------
    RearrangePlan
        ``plan(buffer, out=None)`` moves a physical buffer as `relayout` does; ``plan.inverse()`` moves it back.

    Raises
    ------
    FastIndexError
        The pattern is invalid, or the sizes do not fit it.
    UnsupportedError
        As for `relayout`; or an axis belongs to two dimensions that are both cut; or an axis that runs backwards is in
        tiles that do not divide it.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> plan = fi.plan_rearrange("k (n two) -> (two k) n", "u8[2,6]{0,1:T(2,2)}", "u8[4,3]{1,0:T(2,2)}", two=2)
    >>> plan(fi.pack(np.arange(12, dtype=np.uint8).reshape(2, 6), plan.source), threads=1)
    array([ 0,  2,  6,  8,  4,  0, 10,  0,  1,  3,  7,  9,  5,  0, 11,  0],
          dtype=uint8)
    """
    parsed = parse_pattern(pattern)
    check_options(parsed, [("destination", destination is not None), ("pad", pad is not False)])
    check_flag("pad", pad)
    given = tuple(sorted(checked_sizes(parsed, sizes.items()).items()))
    target = None if destination is None else as_shape(destination)
    return _plan(pattern, as_shape(source), target, bool(pad), given)


@lru_cache(maxsize=PLANS_KEPT)
def _plan(
    pattern: str, source: Shape, destination: Shape | None, pad: bool, sizes: tuple[tuple[str, int], ...]
) -> RearrangePlan:
    check_movable(source)
    sides = sides_of(
        parse_pattern(pattern),
        source.dimensions,
        dict(sizes),
        None if destination is None else destination.dimensions,
        pad,
    )
    if destination is None:
        destination = Shape(source.element_type, sides.dimensions[1])
    _require_one_type(source, destination)
    return RearrangePlan(*regrouped((source, destination), sides), pattern)


def _require_one_type(source: Shape, destination: Shape) -> None:
    if source.element_type != destination.element_type:
        raise FastIndexError(
            f"plan_rearrange keeps the element type: those of {source.cut_text()} and {destination.cut_text()} differ"
        )


@lru_cache(maxsize=PLANS_KEPT)
def _reshape_plan(source: Shape, destination: Shape) -> RearrangePlan:
    check_movable(source)
    check_movable(destination)
    _require_one_type(source, destination)
    return RearrangePlan(*regrouped((source, destination), reshaped_sides(source.dimensions, destination.dimensions)))


def reshape(
    buffer: Any,
    source: Shape | str,
    destination: Shape | str,
    fill: Any = None,
    *,
    out: Any = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Move a physical buffer to a layout of other dimensions: XLA's ``reshape``, in one move.

    Elements keep their logical order, last dimension fastest, whatever the two layouts are.

    Parameters
    ----------
    buffer, out, threads, stream, fill
        As for `relayout`.
    source, destination : Shape or str
        The same element type and number of elements.

    Returns
    -------
    array of one dimension

    Raises
    ------
    FastIndexError
        The numbers of elements or the element types differ, or as for `relayout`.
    ArgumentTypeError, UnsupportedError
        As for `relayout`.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.reshape(np.arange(6, dtype=np.uint8), "u8[2,3]{0,1}", "u8[3,2]{0,1}")
    array([0, 4, 3, 2, 1, 5], dtype=uint8)
    """
    plan = _reshape_plan(as_shape(source), as_shape(destination))
    pattern = None if fill is None else fill_pattern(plan.destination, fill)
    return plan(buffer, out, threads, stream) if pattern is None else plan.apply(buffer, pattern, out, threads, stream)


def same_bytes(a: Shape | str, b: Shape | str) -> bool:
    """Whether a reshape between two shapes, of any dimensions, is a bitcast: it moves no byte.

    Parameters
    ----------
    a, b : Shape or str

    Raises
    ------
    UnsupportedError
        A shape is not an array of fixed size.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.layouts.same_bytes("u8[128,4]{1,0:T(32,4)}", "u8[4,32,4]")
    True
    >>> fi.layouts.same_bytes("f32[6,4]", "f32[4,6]{0,1}")
    False
    """
    left, right = as_shape(a), as_shape(b)
    check_movable(left)
    check_movable(right)
    if left.element_type != right.element_type or math.prod(left.dimensions) != math.prod(right.dimensions):
        return False
    if left.slot_count != right.slot_count or left.element_bits != right.element_bits:
        return False
    return reshape_is_bitcast(left, right) or _reshape_plan(left, right).is_bitcast
