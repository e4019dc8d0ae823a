"""Plans of relayouts: which way a buffer goes from one layout to another, kept, timed, and run."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.addresses import address_of
from fastindex.arrays.arrays import buffer_dtype
from fastindex.arrays.buffers import (
    as_buffer_bytes,
    check_disjoint,
    check_output_buffer,
    memory_dimensions,
    new_buffer,
    require_movable_pair,
)
from fastindex.arrays.engines import engine_of, on_gpu, require_lazy
from fastindex.arrays.fills import fill_pattern
from fastindex.core.integers import counted
from fastindex.core.notebooks import ShownInNotebooks
from fastindex.core.shape import Shape
from fastindex.core.slot_format import slot_format
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.first_use import load
from fastindex.lazy import lazy_property, untraced
from fastindex.moving.calibration import cycles
from fastindex.moving.cast_movements import movement_between
from fastindex.moving.choice import plans, select_plan
from fastindex.moving.movements import Movement
from fastindex.moving.numpy_moves import PreparedLoops
from fastindex.moving.problem import SlotMove
from fastindex.runtime.first_answer import DISABLE_VARIABLE, MOST_BYTES, is_disabled, may_be_numpy, numpys_time
from fastindex.runtime.machine import Machine
from fastindex.runtime.numbers import LINE_BYTES
from fastindex.runtime.threads import check_threads
from fastindex.runtime.tuning import TUNING, Tuning

if TYPE_CHECKING:
    from fastindex.moving.cast_movements import CastMovement
    from fastindex.moving.compiled_passes import OneCall
    from fastindex.moving.timed_choices import Choice


# What plans out of pickles go by; tests choose other thresholds.
_TUNING = TUNING
_BYTE = np.dtype(np.uint8)


class PlanCandidate(NamedTuple):
    """A way in which the processor could do a relayout.

    Attributes
    ----------
    name : str
    is_taken : bool
        Whether calls of the plan go this way.
    cycles : float
        What the planner thinks that it costs, beside the others.
    seconds : float or None
        What it took, where it was timed.
    """

    name: str
    is_taken: bool
    cycles: float
    seconds: float | None


class RelayoutPlan(ShownInNotebooks):
    """How to move buffers from one layout to another; made by `plan_relayout`.

    Two plans are equal if their shapes are, whichever candidates they take: they do the same.

    Attributes
    ----------
    source, destination : Shape
    is_bitcast : bool
        Whether every element stays at its place and the buffers have the same size: a relayout then is a copy.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> plan = fi.plan_relayout("u8[2,3]{1,0}", "u8[2,3]{0,1}")
    >>> plan(np.arange(6, dtype=np.uint8))
    array([0, 3, 1, 4, 2, 5], dtype=uint8)
    """

    def __init__(
        self,
        source: Shape,
        destination: Shape,
        tuning: Tuning = TUNING,
        is_checked: bool = False,
        machine: Machine | None = None,
    ) -> None:
        require_movable_pair(source, destination, "unsafe")
        movement = movement_between(source, destination, tuning, is_checked, machine)
        is_bitcast = isinstance(movement, Movement) and _keeps_places(source, destination, movement.slots)
        self._begin(source, destination, movement, is_bitcast)

    def _begin(self, source: Shape, destination: Shape, movement: Movement | CastMovement, is_bitcast: bool) -> None:
        self.source = source
        self.destination = destination
        self.is_bitcast = is_bitcast
        self._pattern = fill_pattern(destination)
        self._movement = movement
        # Set once a call has been a single native one on each thread; calls with `out` then begin with it.
        self._single: OneCall | None = None
        # What `tune` has found, in this process or in the one that has pickled the plan.
        self._choice: Choice | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._choice is None:
            is_checked = not isinstance(self._movement, Movement) and self._movement.cast.is_checked
            return _kept_plan, (self.source, self.destination, is_checked)
        return _tuned_plan, (self.source, self.destination, self._choice)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RelayoutPlan) or type(other) is not type(self):
            return NotImplemented
        return (self.source, self.destination) == (other.source, other.destination)

    def __hash__(self) -> int:
        return hash((self.source, self.destination))

    def __repr__(self) -> str:
        return f"RelayoutPlan({str(self.source)!r}, {str(self.destination)!r})"

    def _repr_html_(self) -> str:
        load("fastindex.show.picture")
        from fastindex.show.picture import plan_html

        return plan_html(self)

    def describe(self) -> str:
        """Describe which kernels run, in which order, and why: a line for the shapes, a line for each pass.

        Examples
        --------
        >>> import fastindex as fi
        >>> print(fi.plan_relayout("f32[8,128]", "f32[8,128]{1,0:T(8,128)}").describe())
        f32[8,128]{1,0} -> f32[8,128]{1,0:T(8,128)}
        nothing changes its place
        copy, 4-byte units, 1 task, about 4096 bytes: runs that both sides keep contiguous
        """
        lines = [f"{self.source} -> {self.destination}"]
        if self.is_bitcast:
            lines.append("nothing changes its place")
        lines.append(self._movement.describe())
        choice = self._choice or self._movement.known
        if choice is not None:
            of_each = sorted(choice.seconds.items(), key=lambda one: one[1])
            times = ", ".join(f"{name} {seconds * 1e6:,.0f}" for name, seconds in of_each)
            lines.append(f"timed with {counted(choice.threads, 'thread')}, microseconds: {times}")
        return "\n".join(lines)

    @property
    def candidates(self) -> tuple[PlanCandidate, ...]:
        """The ways in which the processor could do it, the one that is taken first; times where they were measured.

        Examples
        --------
        >>> import fastindex as fi
        >>> [one.name for one in fi.plan_relayout("f32[512,512]", "f32[512,512]{0,1}").candidates][0]
        'loops'
        """
        if not isinstance(self._movement, Movement):
            return ()
        choice = self._choice or self._movement.known
        seconds = {} if choice is None else choice.seconds
        taken = select_plan(self._movement.problem, None if choice is None else choice.name).name
        found = [
            PlanCandidate(one.name, one.name == taken, cycles(one.counts), seconds.get(one.name))
            for one in plans(self._movement.problem)
        ]
        by_time = {one.name: math.inf if one.seconds is None else one.seconds for one in found}
        return tuple(sorted(found, key=lambda one: (not one.is_taken, by_time[one.name], one.cycles)))

    @untraced
    def tune(self, buffer: Any, out: Any = None, threads: int | None = None) -> tuple[PlanCandidate, ...]:
        """Time every candidate on two buffers, and take the fastest from now on.

        This plan keeps it, and so do its copies and pickles. It is also kept in a small file beside the compiled
        kernels, where later processes on this machine find it for the same layouts: what was timed with as many threads
        as calls use by default comes first.

        Parameters
        ----------
        buffer, out, threads
            As for a call of the plan, in the memory of the host; `out` holds the result afterwards.

        Returns
        -------
        tuple of PlanCandidate
            As `candidates`: the fastest first. Empty where every slot is looked up, and there is nothing to choose.

        Raises
        ------
        FastIndexError, ArgumentTypeError
            As `relayout`.
        UnsupportedError
            A buffer is on the GPU, elements are cast, or the environment leaves everything to NumPy.

        Examples
        --------
        >>> import fastindex as fi, numpy as np
        >>> plan = fi.plan_relayout("u8[300,200]", "u8[300,200]{0,1}")
        >>> found = plan.tune(np.zeros(60000, np.uint8))
        >>> found[0].is_taken, found[0].seconds == min(one.seconds for one in found)
        (True, True)
        """
        check_threads(threads)
        if engine_of(buffer) is not None or on_gpu(buffer, None):
            raise UnsupportedError("tune times what processors do: give it arrays in the memory of the host")
        if not isinstance(self._movement, Movement):
            raise UnsupportedError("tune chooses among ways to move elements as they are; where they are cast is one")
        if is_disabled():
            raise UnsupportedError(f"tune times kernels, and {DISABLE_VARIABLE} leaves everything to NumPy")
        slots = as_buffer_bytes(buffer, self.source)
        result = new_buffer(self.destination) if out is None else check_output_buffer(out, self.destination)
        if out is not None:
            check_disjoint(result, slots)
        load("fastindex.moving.candidate_times", "fastindex.moving.timed_choices")
        from fastindex.moving.candidate_times import timed
        from fastindex.moving.timed_choices import remember

        choice = timed(self._movement, (address_of(slots), address_of(result)), self._pattern, threads)
        if choice is None:
            self._movement.run_kernels(address_of(slots), address_of(result), self._pattern, threads)
            return ()
        source, destination = self._movement.source, self._movement.destination
        assert isinstance(source, Shape)
        assert isinstance(destination, Shape)
        remember(source, destination, self._movement.problem.machine, self._movement.tuning, choice)
        self._take(choice)
        return self.candidates

    def _take(self, choice: Choice) -> None:
        """Take a candidate from now on."""
        assert isinstance(self._movement, Movement)
        self._choice = choice
        self._movement = replace(self._movement, choice=choice.name)
        self._single = None
        self.__dict__.pop("_one_calls", None)

    def __call__(
        self, buffer: Any, out: Any = None, threads: int | None = None, stream: Any = None, as_array: bool = False
    ) -> Any:
        """Move a buffer; padding gets the padding value of the destination.

        Parameters
        ----------
        buffer, out, threads, stream, as_array
            As for `relayout`.

        Raises
        ------
        FastIndexError, ArgumentTypeError, KeyboardInterrupt
            As `relayout`.
        """
        if "torch._dynamo" in sys.modules:
            return self._called_untraced(buffer, out, threads, stream, as_array)
        single, counted = self._single, threads is None or (type(threads) is int and threads > 0)
        if single is not None and (out is None or not counted or stream is not None or as_array):
            single = None
        # It looks itself whether both are plain arrays of the right kind.
        if single is not None:
            if single.is_small:
                if single.run(id(buffer), id(out), single.address, single.scratch.address):
                    return out
            elif single.run_on_threads(id(buffer), id(out), threads):
                return out
        return self._called(buffer, out, threads, stream, as_array)

    def _called(self, buffer: Any, out: Any, threads: int | None, stream: Any, as_array: bool) -> Any:
        """Move a buffer, whatever it is."""
        counted = threads is None or (type(threads) is int and threads > 0)
        if counted and stream is None and not as_array and type(buffer) is np.ndarray and self._is_prompt(buffer, out):
            return out
        engine = engine_of(buffer)
        if engine is not None:
            require_lazy(out=out, stream=stream)
            return self._lazily(engine, buffer, threads=threads, as_array=as_array)
        if as_array:
            return shaped(self(buffer, out, threads, stream), self.destination)
        host = type(buffer) is np.ndarray and stream is None and not may_be_numpy(self._movement.nbytes, MOST_BYTES)
        if host and counted:
            if out is None:
                out = new_buffer(self.destination)
            for one_call in self._one_calls:
                if one_call.run_on_threads(id(buffer), id(out), threads):
                    self._single = one_call
                    return out
        return self.apply(buffer, None, out, threads, stream)

    _called_untraced = untraced(_called)

    def _lazily(self, engine: Any, buffer: Any, **options: Any) -> Any:
        """Return an array that is computed later."""
        return engine.relayout(buffer, self.source, self.destination, None, **options)

    def _is_prompt(self, buffer: NDArray[Any], out: Any) -> bool:
        """Whether NumPy has moved one plain array to another at once, while no kernel is loaded."""
        loops = self._numpy_loops
        if loops is None or type(out) is not np.ndarray or not may_be_numpy(self._movement.nbytes, MOST_BYTES):
            return False
        with numpys_time():
            return loops.run(buffer, out)

    @lazy_property
    def _numpy_loops(self) -> PreparedLoops | None:
        """What NumPy runs, None where slots are unpacked, looked up or cast, or there are too many bytes."""
        if not isinstance(self._movement, Movement):
            return None
        slots = self._movement.slots
        if slots.loops is None or slots.unit == "value" or self._movement.nbytes > MOST_BYTES:
            return None
        arrays = [(buffer_dtype(shape), _buffer_length(shape)) for shape in (self.source, self.destination)]
        return PreparedLoops(slots.loops, slots.width, arrays, slots.padding(self._pattern))

    @lazy_property
    def _one_calls(self) -> tuple[OneCall, ...]:
        """A call for each kind of arrays: of slots, or of bytes."""
        from fastindex.moving.compiled_passes import OneCall

        kinds = [
            dict.fromkeys(((buffer_dtype(shape), _buffer_length(shape)), (_BYTE, shape.nbytes)))
            for shape in (self.source, self.destination)
        ]
        movement = self._movement
        in_lines = isinstance(movement, Movement) and movement.alone is not None and movement.depends_on_lines
        padding, multiple = movement.padding(self._pattern), LINE_BYTES if in_lines else 1
        return tuple(
            OneCall(movement.alone, source, destination, padding, multiple)
            for source, destination in itertools.product(*kinds)
        )

    @lazy_property
    def _on_gpu(self) -> Callable[[Any, bytes, Any, Any], Any]:
        load("fastindex.cuda.relayouts")
        from fastindex.cuda.relayouts import DevicePlan

        return DevicePlan(self.source, self.destination)

    @untraced
    def apply(
        self, buffer: Any, pattern: bytes | None, out: Any = None, threads: int | None = None, stream: Any = None
    ) -> Any:
        """Move a buffer, with the bytes of one unpacked value for padding; None for the layout's own."""
        check_threads(threads)
        pattern = self._pattern if pattern is None else pattern
        if on_gpu(buffer, stream):
            return self._on_gpu(buffer, pattern, out, stream)
        slots = as_buffer_bytes(buffer, self.source)
        result = new_buffer(self.destination) if out is None else check_output_buffer(out, self.destination)
        if out is not None:
            check_disjoint(result, slots)
        self._movement.run(address_of(slots), address_of(result), pattern, threads)
        return result


def shaped(result: Any, destination: Shape) -> Any:
    """Return a buffer with the dimensions of its layout in the order of memory."""
    dimensions = memory_dimensions(destination)
    if dimensions is None:
        raise FastIndexError(
            f"as_array=True needs a destination without tiles and padding: a buffer of {destination.cut_text()} has "
            "one dimension; unpack gives the array itself"
        )
    return result if tuple(result.shape) == dimensions else result.reshape(dimensions)


def _buffer_length(shape: Shape) -> int:
    return shape.slot_count if slot_format(shape).is_plain else shape.nbytes


@lru_cache(maxsize=512)
def plan_of(
    source: Shape, destination: Shape, tuning: Tuning, is_checked: bool = False, machine: Machine | None = None
) -> RelayoutPlan:
    """Return the plan between two shapes; plans are kept.

    Parameters
    ----------
    source, destination : Shape
    tuning : Tuning
    is_checked : bool
        Whether integers that a destination of fewer than 8 bits does not hold are errors.
    machine : Machine, optional
        This one by default.
    """
    return RelayoutPlan(source, destination, tuning, is_checked, machine)


def _kept_plan(source: Shape, destination: Shape, is_checked: bool) -> RelayoutPlan:
    """Return a plan as it was when it was pickled, whatever else `casting` has allowed."""
    return plan_of(source, destination, _TUNING, is_checked)


def _tuned_plan(source: Shape, destination: Shape, choice: Choice) -> RelayoutPlan:
    """Return a plan as it was when it was pickled; plans of this process stay as they are."""
    plan = RelayoutPlan(source, destination)
    plan._take(choice)
    return plan


def _keeps_places(source: Shape, destination: Shape, slots: SlotMove) -> bool:
    """Whether every element stays at its place, in buffers of one size."""
    if slots.source != slots.destination or source.slot_count != destination.slot_count:
        return False
    return source.layout == destination.layout or (slots.loops is not None and slots.loops.keeps_places)
