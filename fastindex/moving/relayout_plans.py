"""Plans of relayouts: choose, cache, time and run the way from one layout to another."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import check_cast
from fastindex.arrays.arrays import address_of
from fastindex.arrays.buffers import new_buffer
from fastindex.arrays.engines import engine_of, on_gpu, place_of
from fastindex.arrays.fills import array_dimensions, fill_pattern
from fastindex.core.integers import counted
from fastindex.core.shape import Shape
from fastindex.core.sizes import buffer_form, check_movable
from fastindex.errors import FastIndexError, UnsupportedError, check_flag
from fastindex.first_use import load
from fastindex.lazy import hook, lazy_property, untraced
from fastindex.moving.choice import plans, select_plan
from fastindex.moving.counts import cycles
from fastindex.moving.movements import Movement, movement_between
from fastindex.moving.numpy_moves import PreparedLoops
from fastindex.moving.problem import PLANS_KEPT
from fastindex.moving.requests import execute_in_boxes, relaying
from fastindex.runtime.first_answer import DISABLE_VARIABLE, MOST_BYTES, is_disabled, may_be_numpy, numpys_time
from fastindex.runtime.machine import Machine
from fastindex.runtime.numbers import LINE_BYTES
from fastindex.runtime.threads import check_threads, thread_count
from fastindex.runtime.tuning import TUNING, Tuning
from fastindex.terminal import ShownInNotebooks

if TYPE_CHECKING:
    from fastindex.moving.compiled_passes import OneCall
    from fastindex.moving.timed_choices import Choice


# Thresholds that calls plan with; tests use others.
_TUNING = TUNING
_BYTE = np.dtype(np.uint8)

# Samples of each candidate, and the least duration of a sample. Candidates that take more than `_HOPELESS` times as
# long as the fastest in their first timed run are not timed further.
_ROUNDS, _SAMPLE_SECONDS, _HOPELESS = 7, 1e-3, 4


class PlanCandidate(NamedTuple):
    """One way to do a relayout on the CPU.

    Attributes
    ----------
    name : str
    is_taken : bool
        Whether calls of the plan use it.
    cycles : float
        Estimated cost, for comparison with other candidates.
    seconds : float or None
        Measured time, if it was timed.
    """

    name: str
    is_taken: bool
    cycles: float
    seconds: float | None


class RelayoutPlan(ShownInNotebooks):
    """A plan to move buffers from one layout to another; made by `plan_relayout`.

    Two plans are equal if their shapes are equal, whichever candidates they use: their results are the same.

    Attributes
    ----------
    source, destination : Shape
    is_bitcast : bool
        Whether every element keeps its position and both buffers have the same size: the relayout is then a copy.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> plan = fi.plan_relayout("u8[2,3]{1,0}", "u8[2,3]{0,1}")
    >>> plan(np.arange(6, dtype=np.uint8))
    array([0, 3, 1, 4, 2, 5], dtype=uint8)
    """

    source: Shape
    destination: Shape
    # Set once a call was a single native call on each thread; later calls with `out` try it first.
    _single: OneCall | None = None
    # The result of `tune`, in this process or in the one that pickled the plan.
    _choice: Choice | None = None

    def __init__(
        self,
        source: Shape,
        destination: Shape,
        tuning: Tuning = TUNING,
        is_checked: bool = False,
        machine: Machine | None = None,
    ) -> None:
        require_movable_pair(source, destination, "unsafe")
        self.source, self.destination, self._pattern = source, destination, fill_pattern(destination)
        self._movement = movement_between(source, destination, tuning, is_checked, machine)

    @lazy_property
    def is_bitcast(self) -> bool:
        """Whether every element keeps its position, in buffers of equal size."""
        slots, sides = self._movement.slots, (self._movement.source, self._movement.destination)
        if self._movement.cast is not None or slots.source != slots.destination:
            return False
        if self.source.slot_count != self.destination.slot_count:
            return False
        if type(sides[0]) is type(sides[1]) is Shape and sides[0].layout == sides[1].layout:
            return True
        return slots.loops is not None and slots.loops.keeps_places

    def __reduce__(self) -> tuple[Any, ...]:
        if self._choice is None:
            return plan_of, (self.source, self.destination, self._is_checked)
        return tuned_plan, (RelayoutPlan, (self.source, self.destination), self._choice)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RelayoutPlan) or type(other) is not type(self):
            return NotImplemented
        return (self.source, self.destination) == (other.source, other.destination)

    def __hash__(self) -> int:
        return hash((self.source, self.destination))

    def __repr__(self) -> str:
        return f"RelayoutPlan({str(self.source)!r}, {str(self.destination)!r})"

    def _repr_html_(self) -> str:
        return str(hook("plan_html")(self))

    def describe(self) -> str:
        """Describe which kernels run, in which order, and why: one line for the shapes, one line per pass.

        Examples
        --------
        >>> import fastindex as fi
        >>> print(fi.plan_relayout("f32[8,128]", "f32[8,128]{1,0:T(8,128)}").describe())
        f32[8,128]{1,0} -> f32[8,128]{1,0:T(8,128)}
        nothing changes its place
        copy, 4-byte units, 1 task, about 4,096 bytes: runs that both sides keep contiguous
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
        """The candidates for the CPU, the selected one first, with their measured times if there are any.

        Examples
        --------
        >>> import fastindex as fi
        >>> [one.name for one in fi.plan_relayout("f32[512,512]", "f32[512,512]{0,1}").candidates][0]
        'loops'
        """
        if self._movement.cast is not None:
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
        """Time every candidate on two buffers, and use the fastest from now on.

        This plan, its copies and its pickles keep the choice. It is also stored in a small file next to the compiled
        kernels, where later processes on this machine find it for the same layouts; timings with the default number of
        threads are preferred.

        Parameters
        ----------
        buffer, out, threads
            As for a call of the plan, in host memory; `out` holds the result afterwards.

        Returns
        -------
        tuple of PlanCandidate
            As `candidates`, the fastest first. Empty where every slot is looked up, without alternatives.

        Raises
        ------
        FastIndexError, ArgumentTypeError
            As for `relayout`.
        UnsupportedError
            A buffer is on the GPU, elements are cast, or the environment disables kernels.

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
            raise UnsupportedError("tune times kernels of the CPU: give it arrays in host memory")
        if self._movement.cast is not None:
            raise UnsupportedError("tune compares ways to move elements without a cast; with a cast there is only one")
        if is_disabled():
            raise UnsupportedError(f"tune times kernels, and {DISABLE_VARIABLE} leaves everything to NumPy")
        one = relaying(buffer, (self.source, self.destination), self._pattern, out, False, threads)
        addresses = address_of(one.source.array), address_of(one.target.array)
        load("fastindex.moving.timed_choices")
        from fastindex.moving.timed_choices import remember

        choice = timed(self._movement, addresses, self._pattern, threads)
        if choice is None:
            self._movement.run_kernels(*addresses, self._pattern, threads)
            return ()
        source, destination = self._movement.source, self._movement.destination
        assert isinstance(source, Shape)
        assert isinstance(destination, Shape)
        remember(source, destination, self._movement.problem.machine, self._movement.tuning, choice)
        self._take(choice)
        return self.candidates

    def _take(self, choice: Choice) -> None:
        """Use a candidate from now on."""
        self._choice = choice
        self._movement = replace(self._movement, choice=choice.name)
        self._single = None
        self.__dict__.pop("_one_calls", None)

    def __call__(
        self, buffer: Any, out: Any = None, threads: int | None = None, stream: Any = None, as_array: bool = False
    ) -> Any:
        """Move a buffer; padding is filled with the padding value of the destination.

        Parameters
        ----------
        buffer, out, threads, stream, as_array
            As for `relayout`.

        Raises
        ------
        FastIndexError, ArgumentTypeError, KeyboardInterrupt
            As for `relayout`.
        """
        if "torch._dynamo" in sys.modules:
            return self._called_untraced(buffer, out, threads, stream, as_array)
        single, counted = self._single, threads is None or (type(threads) is int and threads > 0)
        if single is not None and (out is None or not counted or stream is not None or as_array is not False):
            single = None
        # The native call checks that both are plain arrays of the right kind.
        if single is not None:
            if single.is_small:
                if single.run(id(buffer), id(out), single.address, single.scratch.address):
                    return out
            elif single.run_on_threads(id(buffer), id(out), threads):
                return out
        return self._called(buffer, out, threads, stream, as_array)

    def _called(self, buffer: Any, out: Any, threads: int | None, stream: Any, as_array: bool) -> Any:
        """Move a buffer of any kind."""
        if as_array is not False:
            check_flag("as_array", as_array)
        counted = threads is None or (type(threads) is int and threads > 0)
        if counted and stream is None and not as_array and type(buffer) is np.ndarray and self._is_prompt(buffer, out):
            return out
        if place_of(buffer, stream, out) == "dask":
            return self._lazily(buffer, threads=threads, as_array=as_array)
        if as_array:
            dimensions = array_dimensions(self.destination)
            result = self(buffer, out, threads, stream)
            return result if dimensions == result.shape else result.reshape(dimensions)
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

    def _lazily(self, buffer: Any, **options: Any) -> Any:
        """Return a lazy array."""
        return hook("dask.relayout")(buffer, self.source, self.destination, None, **options)

    def _is_prompt(self, buffer: NDArray[Any], out: Any) -> bool:
        """Move one plain array to another by NumPy if no kernel is loaded yet; return whether it was moved."""
        loops = self._numpy_loops
        if loops is None or type(out) is not np.ndarray or not may_be_numpy(self._movement.nbytes, MOST_BYTES):
            return False
        with numpys_time():
            return loops.run(buffer, out)

    @lazy_property
    def _numpy_loops(self) -> PreparedLoops | None:
        """The loops for NumPy; None where slots are unpacked, looked up or cast, or the arrays are too large."""
        if self._movement.cast is not None:
            return None
        slots = self._movement.slots
        if slots.loops is None or slots.unit == "value" or self._movement.nbytes > MOST_BYTES:
            return None
        arrays = [buffer_form(shape)[:2] for shape in (self.source, self.destination)]
        return PreparedLoops(slots.loops, slots.width, arrays, slots.padding(self._pattern))

    @lazy_property
    def _one_calls(self) -> tuple[OneCall, ...]:
        """A native call for each combination of array kinds, slots or bytes; none unless passes do the whole move."""
        from fastindex.moving.compiled_passes import OneCall

        movement = self._movement
        if not movement.is_of_passes:
            return ()
        forms = buffer_form(self.source), buffer_form(self.destination)
        kinds = [dict.fromkeys((form[:2], (_BYTE, form.nbytes))) for form in forms]
        padding, multiple = movement.padding(self._pattern), LINE_BYTES if movement.depends_on_lines else 1
        return tuple(
            OneCall(movement.compiled, source, destination, padding, multiple)
            for source, destination in itertools.product(*kinds)
        )

    @lazy_property
    def _on_gpu(self) -> Callable[[Any, bytes, Any, Any], Any]:
        made: Callable[[Any, bytes, Any, Any], Any] = hook("cuda.DevicePlan")(self.source, self.destination)
        return made

    @property
    def _is_checked(self) -> bool:
        """Whether an integer out of range of a destination type of fewer than 8 bits is an error."""
        return self._movement.cast is not None and self._movement.cast.is_checked

    @untraced
    def apply(
        self,
        buffer: Any,
        pattern: bytes | None,
        out: Any = None,
        threads: int | None = None,
        stream: Any = None,
        max_memory: int | None = None,
    ) -> Any:
        """Move a buffer; `pattern` is one unpacked value for padding, None for the layout's padding value."""
        check_threads(threads)
        pattern = self._pattern if pattern is None else pattern
        if on_gpu(buffer, stream):
            result = self._on_gpu(buffer, pattern, out, stream)
        else:
            one = relaying(buffer, (self.source, self.destination), pattern, out, self._is_checked, threads, max_memory)
            result = one.target.array
            if max_memory is not None:
                result = execute_in_boxes(one, max_memory)
            else:
                self._movement.run(address_of(one.source.array), address_of(result), pattern, threads)
        return result


def is_of_passes(plan: RelayoutPlan) -> bool:
    """Whether kernels write the result of a plan without temporary arrays."""
    return plan._movement.is_of_passes


def require_movable_pair(source: Shape, destination: Shape, casting: str) -> None:
    """Raise an error unless two shapes are layouts of one array whose data can be moved.

    Parameters
    ----------
    source, destination : Shape
    casting : str
        NumPy's rule for casts to a destination of another element type.

    Raises
    ------
    FastIndexError
        Other dimensions.
    ArgumentTypeError
        The rule does not allow the other element type.
    UnsupportedError
        As `check_movable`, or a cast of complex numbers.
    """
    if source.dimensions != destination.dimensions:
        raise FastIndexError(
            f"a relayout keeps the array: the dimensions of {source.cut_text()} and {destination.cut_text()} differ; "
            "reshape and plan_rearrange give it other dimensions"
        )
    check_movable(source)
    check_movable(destination)
    check_cast(source.element_type, destination.element_type, casting)


@lru_cache(maxsize=PLANS_KEPT)
def plan_of(source: Shape, destination: Shape, is_checked: bool) -> RelayoutPlan:
    """Return the plan between two shapes; plans are cached, and unpickled by this.

    Parameters
    ----------
    source, destination : Shape
    is_checked : bool
        Whether an integer out of range of a destination type of fewer than 8 bits is an error.
    """
    return RelayoutPlan(source, destination, _TUNING, is_checked)


def tuned_plan(kind: type[RelayoutPlan], arguments: tuple[Any, ...], choice: Choice) -> RelayoutPlan:
    """Return a new plan with a tuned choice, for unpickling; cached plans stay unchanged."""
    plan = kind(*arguments)
    plan._take(choice)
    return plan


def timed(moved: Movement, addresses: tuple[int, int], pattern: bytes, threads: int | None) -> Choice | None:
    """Time the candidates alternately, and return the fastest; None where every slot has to be looked up.

    Parameters
    ----------
    moved : Movement
    addresses : (int, int)
        Addresses of source and destination; the destination receives the result of the relayout.
    pattern : bytes
        One unpacked value, for padding.
    threads : int, optional
    """
    from fastindex.moving.timed_choices import Choice

    movements = {plan.name: replace(moved, choice=plan.name) for plan in plans(moved.problem)}
    if not movements:
        return None

    def seconds(one: Movement, repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            one.run_kernels(*addresses, pattern, threads)
        return (time.perf_counter() - begin) / repeats

    for one in movements.values():
        # Untimed, as it may compile kernels.
        one.run_kernels(*addresses, pattern, threads)
    best = {name: seconds(one, 1) for name, one in movements.items()}
    least = min(best.values())
    hopeful = {name: one for name, one in movements.items() if best[name] <= _HOPELESS * least}
    repeats = max(1, math.ceil(_SAMPLE_SECONDS / least))
    for _ in range(_ROUNDS if len(hopeful) > 1 else 0):
        for name, one in hopeful.items():
            best[name] = min(best[name], seconds(one, repeats))
    return Choice(min(best, key=best.__getitem__), thread_count(threads), best)
