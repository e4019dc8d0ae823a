"""Moves data from one layout to another while its elements become those of another type.

Where both sides hold plain values and share loops, boxes that the cache holds are converted and moved one by one, so
memory is read once and written once. Everything else, packed elements and tiles that share no loops, is converted as
it lies to a buffer of the other type, which then moves as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from fastindex.algebra.casts import Cast, MisfitError, cast_by_numpy, cast_of, first_misfit, of_type
from fastindex.algebra.loops import RelayoutLoops, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.algebra.sides import RegroupedShape
from fastindex.arrays.addresses import address_of
from fastindex.arrays.buffers import aligned_bytes
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.core.slot_format import slot_format
from fastindex.lazy import lazy_property
from fastindex.moving.movements import Movement, movement, sure_movement, unpack_slots
from fastindex.moving.moves.casts.plan import cast_passes, contiguous_cast
from fastindex.moving.numpy_moves import memory_at, move_by_numpy, scratch, strided_at, unpack_by_numpy
from fastindex.moving.passes import Pass
from fastindex.moving.problem import loops_of_values, slot_move
from fastindex.runtime.first_answer import bytes_by_numpy, load_kernels, numpys_time
from fastindex.runtime.machine import Machine, check_runs_here, this_machine
from fastindex.runtime.tuning import TUNING, Tuning

if TYPE_CHECKING:
    from fastindex.moving.compiled_passes import CompiledPasses

#: Elements that NumPy converts at a time, where it does.
_AT_ONCE = 1 << 15


@dataclass(frozen=True, eq=False)
class CastMovement:
    """How data moves from one layout to another, to elements of another type.

    Attributes
    ----------
    source, destination : Shape or Strides
    cast : Cast
    tuning : Tuning
    machine : Machine, optional
        As of a `Movement`.
    """

    source: Shape | Strides
    destination: Shape | Strides
    cast: Cast
    tuning: Tuning
    machine: Machine | None = None

    @lazy_property
    def loops(self) -> RelayoutLoops | None:
        """The loops that both sides share, None where there are none, or slots are more or less than values."""
        return loops_of_values(self.source, self.destination)

    @lazy_property
    def _between(self) -> Shape:
        """Where elements of the new type lie before they move on: as in the source, or else as in the destination."""
        side = self.source if isinstance(self.source, Shape) else self.destination
        assert isinstance(side, Shape)
        return of_type(side, self.cast.target)

    @lazy_property
    def _before(self) -> CastMovement | None:
        """What converts elements to where they lie between; None where they are converted as they lie."""
        if isinstance(self.source, Shape):
            return None
        return sure_cast(self.source, self._between, self.cast, self.tuning, self.machine)

    @lazy_property
    def _after(self) -> Movement:
        """What moves them on."""
        found = movement(self._between, self.destination, self.tuning, self.machine)
        assert found is not None
        return found

    @lazy_property
    def passes(self) -> tuple[Pass, ...] | None:
        """The passes; None where elements are converted before they move."""
        if self.machine is None:
            load_kernels()
        if self.loops is None:
            return None
        return cast_passes(self.loops, self.cast, self.machine or this_machine(), self.tuning)

    @property
    def known(self) -> None:
        """What has been timed: nothing, a cast has a single candidate."""
        return None

    @property
    def alone(self) -> CompiledPasses | None:
        """The passes, where they are all there is to do; None otherwise, as where misfits are errors."""
        return None if self.passes is None or self.cast.is_checked else self._compiled

    def padding(self, pattern: bytes) -> bytes:
        """Return what the passes write to padding, for the bytes of one value."""
        return pattern

    @lazy_property
    def _compiled(self) -> CompiledPasses:
        check_runs_here(self.machine)
        from fastindex.moving.compiled_passes import CompiledPasses

        return CompiledPasses(self.passes or (), self.tuning)

    @lazy_property
    def nbytes(self) -> int:
        """Bytes of the larger side."""
        return max(side.nbytes for side in (self.source, self.destination) if isinstance(side, Shape))

    def describe(self) -> str:
        """Return one line per pass."""
        if self.passes is not None:
            return "\n".join(one.describe() for one in self.passes) or "nothing to move"
        return f"first every element from {self.cast.source} to {self.cast.target}\n{self._after.describe()}"

    def run(self, source: int, destination: int, pattern: bytes, threads: int | None) -> None:
        """Move from one address to the other, and write `pattern`, an unpacked value, to all padding.

        Raises
        ------
        MisfitError
            The cast is checked, and an element is none of the new type.
        """
        if bytes_by_numpy(self.nbytes):
            with numpys_time():
                self.run_by_numpy(source, destination, pattern)
            return
        if self.passes is not None:
            with self._checked(source):
                self._compiled.run(source, destination, pattern, threads)
            return
        converted = aligned_bytes(self._between.nbytes)
        if self._before is None:
            with self._checked(source):
                self._convert(source, address_of(converted), threads)
        else:
            self._before.run(source, address_of(converted), bytes(self.cast.target.nbytes), threads)
        self._after.run(address_of(converted), destination, pattern, threads)

    @contextmanager
    def _checked(self, source: int) -> Iterator[None]:
        """Raise MisfitError after the block if its kernels found, in an element at `source`, what does not fit."""
        if not self.cast.is_checked:
            yield
            return
        before = self.cast.counted_misfits
        yield
        # Other calls of the cast count too, and so does what lies in padding.
        if self.cast.counted_misfits != before:
            self._require_fitting(source)

    def _require_fitting(self, source: int, by_numpy: bool = False) -> None:
        """Raise MisfitError for the first element at `source` that is none of the new type."""
        side, dtype = self.source, self.cast.source.numpy_dtype
        if isinstance(side, Shape):
            plain = Shape(side.element_type, side.dimensions)
            held = scratch(plain.nbytes)
            stored = side.shape if isinstance(side, RegroupedShape) else side
            target, pattern = held.ctypes.data, bytes(self.cast.source.nbytes)
            if by_numpy:
                move_by_numpy((stored, plain), slot_move(stored, plain), source, target, pattern)
            else:
                sure_movement(stored, plain, self.tuning).run(source, target, pattern, None)
            values = held.view(dtype).reshape(plain.dimensions)
        else:
            values = strided_at(source, side.dimensions, [dtype.itemsize * stride for stride in side.strides], dtype)
        found = first_misfit(values, self.cast.source, self.cast.target)
        if found is not None:
            raise MisfitError(*found, self.cast.target)

    def _convert(self, source: int, target: int, threads: int | None) -> None:
        """Convert all slots of the source, padding too, to values one after the other."""
        from fastindex.moving.compiled_passes import CompiledPasses

        assert isinstance(self.source, Shape)
        slots, count = slot_format(self.source), self.source.slot_count
        values = aligned_bytes(0 if slots.is_plain else count * slots.value_bytes)
        if not slots.is_plain:
            unpack_slots(slots, count, source, address_of(values), threads)
            source = address_of(values)
        CompiledPasses(contiguous_cast(count, self.cast), self.tuning).run(source, target, b"\0", threads)

    def run_by_numpy(self, source: int, destination: int, pattern: bytes) -> None:
        """Do the same by NumPy alone, however large it is."""
        if self.cast.is_checked:
            self._require_fitting(source, by_numpy=True)
        shape, values = self.source, scratch(0)
        if not isinstance(shape, Shape):
            # Strides have no slots to convert as they lie.
            shape = of_type(self._between, self.cast.source)
            values = scratch(shape.nbytes)
            sides = self.source, shape
            move_by_numpy(sides, slot_move(*sides), source, values.ctypes.data, bytes(self.cast.source.nbytes))
            source = values.ctypes.data
        slots, count = slot_format(shape), shape.slot_count
        if not slots.is_plain:
            values = scratch(count * slots.value_bytes)
            unpack_by_numpy(slots, count, source, values.ctypes.data)
            source = values.ctypes.data
        converted = scratch(self._between.nbytes)
        read, width = self.cast.source.nbytes, self.cast.target.nbytes
        for begin in range(0, count, _AT_ONCE):
            part = min(_AT_ONCE, count - begin)
            data = memory_at(source + begin * read, part * read)
            found = cast_by_numpy(data, self.cast.source, self.cast.target)
            converted[begin * width : (begin + part) * width] = found
        after = self._between, self.destination
        move_by_numpy(after, slot_move(*after), converted.ctypes.data, destination, pattern)


@lru_cache(maxsize=512)
def cast_movement(
    source: Shape | Strides,
    destination: Shape | Strides,
    cast: Cast,
    tuning: Tuning = TUNING,
    machine: Machine | None = None,
) -> CastMovement | None:
    """Plan how data moves from one side to the other while its elements are cast; plans are cached.

    Parameters
    ----------
    source, destination : Shape or Strides
        Two layouts of arrays of the same dimensions, at least one a shape.
    cast : Cast
    tuning : Tuning, optional
    machine : Machine, optional
        This one by default.

    Returns
    -------
    CastMovement or None
        None where strides share no loops with a shape.
    """
    if not (isinstance(source, Shape) and isinstance(destination, Shape)) and (
        relayout_loops(source, destination) is None
    ):
        return None
    return CastMovement(source, destination, cast, tuning, machine)


def sure_cast(
    source: Shape | Strides,
    destination: Shape | Strides,
    cast: Cast,
    tuning: Tuning = TUNING,
    machine: Machine | None = None,
) -> CastMovement:
    """Return the movement of two sides that have one."""
    found = cast_movement(source, destination, cast, tuning, machine)
    assert found is not None
    return found


def movement_between(
    source: Shape,
    destination: Shape,
    tuning: Tuning = TUNING,
    is_checked: bool = False,
    machine: Machine | None = None,
) -> Movement | CastMovement:
    """Return the movement between two shapes, with a cast where their element types differ."""
    if source.element_type == destination.element_type:
        return sure_movement(source, destination, tuning, machine)
    cast = cast_of(source.element_type, destination.element_type, is_checked)
    return sure_cast(source, destination, cast, tuning, machine)


def either_movement(
    source: tuple[Shape | Strides, ElementType],
    destination: tuple[Shape | Strides, ElementType],
    tuning: Tuning = TUNING,
    is_checked: bool = False,
) -> Movement | CastMovement | None:
    """Return the movement between two sides of given element types; None where strides share no loops with a shape."""
    if source[1] == destination[1]:
        return movement(source[0], destination[0], tuning)
    return cast_movement(source[0], destination[0], cast_of(source[1], destination[1], is_checked), tuning)
