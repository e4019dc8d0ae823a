"""Whole arrays: into a layout, out of it, and from one layout to another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.addresses import address_of
from fastindex.arguments.arrays import buffer_dtype, described, element_strides
from fastindex.arguments.buffers import (
    as_buffer_bytes,
    as_logical_array,
    check_disjoint,
    check_movable,
    check_output_array,
    check_output_buffer,
    memory_dimensions,
    new_array,
    new_buffer,
    require_movable_pair,
)
from fastindex.arguments.castings import Casting, check_casting, logical_result, require_same_type
from fastindex.arguments.engines import engine_of, require_lazy
from fastindex.arguments.fills import fill_pattern
from fastindex.bulk import bounded_relayouts
from fastindex.bulk.bounded_relayouts import require_unbounded
from fastindex.cpu.cast_movements import either_movement, movement_between
from fastindex.cpu.first_answer import DISABLE_VARIABLE, MOST_BYTES, is_disabled, may_be_numpy, numpys_time
from fastindex.cpu.movements import Movement
from fastindex.cpu.numpy_moves import PreparedLoops
from fastindex.cpu.threads import check_threads
from fastindex.cuda.arrays import on_gpu
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.interop.notebooks import ShownInNotebooks
from fastindex.lazy import lazy_property
from fastindex.lowering.relayout.passes.calibration import cycles
from fastindex.lowering.relayout.plan.choice import plans, select_plan
from fastindex.lowering.relayout.problem.shared_digits import Strides
from fastindex.lowering.relayout.problem.slot_moves import SlotMove
from fastindex.lowering.tuning import TUNING, Tuning
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.integers import counted
from fastindex.shapes.shape import Shape, as_shape
from fastindex.shapes.slot_format import slot_format

if TYPE_CHECKING:
    from fastindex.cpu.cast_movements import CastMovement
    from fastindex.cpu.choices import Choice
    from fastindex.cpu.compiled_passes import OneCall

# What calls plan by; tests choose other thresholds.
_TUNING = TUNING


def pack(
    array: Any,
    shape: Shape | str,
    fill: Any = None,
    *,
    out: Any = None,
    casting: Casting = "same_kind",
    threads: int | None = None,
    stream: Any = None,
    max_memory: int | None = None,
) -> Any:
    """Lay a logical array out as a physical buffer.

    Parameters
    ----------
    array : array of ``shape.dimensions``
        Of any strides. Of the shape's element type, or of one that `casting` allows to become it: elements are then
        cast while they move. Types that NumPy does not have are those of ml_dtypes.
    shape : Shape or str
    fill : number, optional
        What padding slots get; without it, the layout's padding value, zero by default.
    out : array of one dimension, optional
        Where to write: the element type and ``shape.slot_count`` elements, or ``shape.nbytes`` bytes of uint8. It may
        not overlap `array`. Where the layout only orders the dimensions, also an array of them in that order.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type of `array`. With "same_kind", pred may become an unsigned integer, that a
        signed one, and that a float, of any width; the other way needs "unsafe".
    threads : int, optional
        The most threads to use; see `fastindex.cpu.threads.thread_count`.
    stream : CUDA stream, optional
        Where to run if the data is on the GPU; see `fastindex.cuda`.
    max_memory : int, optional
        The most bytes that this process may have in memory while it runs, everything else of it included; at least
        160 MiB. For memory maps of files, such as `numpy.memmap` and ``numpy.load(..., mmap_mode="r")``: boxes of
        them are copied, and their pages do not stay. What lies elsewhere counts whole: new results, plain arrays, and
        on systems other than Linux all arrays.

    Returns
    -------
    array of one dimension
        `out`, or a new array: of the element type, or of uint8 where elements are packed below a byte or padded above
        their natural width.

    Raises
    ------
    FastIndexError
        Other dimensions, another size of `out`, a `fill` that the element type cannot hold, or a `max_memory` that
        does not hold the program and a box of the array; the message names one that does.
    ArgumentTypeError
        A dtype that XLA has no element type for, or that `casting` does not allow to become the element type.
    UnsupportedError
        The shape has no slots, or its ``E`` is no size that data can move in; or a cast of complex numbers.
    OSError
        With `max_memory`, a part of a memory map could not be read or written: its file is too short, or the disk is
        full.
    KeyboardInterrupt
        The call was interrupted. Some slots of `out` hold new values, the others what they held before, and nobody
        writes to it any more.

    Notes
    -----
    The definition of a layout: XLA, "Tiled layout", and ``xla/layout.h``.

    What is cast is what ``array.astype`` gives, bit for bit, ml_dtypes' types included. Where NumPy's result depends on
    the processor, for floats that an integer type cannot hold, it is XLA's: the nearest number that it can, 0 for NaN.

    On the main thread, handlers of signals run every 50 ms or so, and between parts of at most 128 MiB; whatever they
    raise ends the call as an interrupt does.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.pack(np.arange(6, dtype=np.float32).reshape(2, 3), "f32[2,3]{1,0:T(2,2)}", fill=-1)
    array([ 0.,  1.,  3.,  4.,  2., -1.,  5., -1.], dtype=float32)
    >>> fi.pack(np.array([[1.5, -7, 300]], np.float32), "s8[1,3]", casting="unsafe")
    array([  1,  -7, 127], dtype=int8)
    """
    shape = as_shape(shape)
    check_movable(shape)
    check_casting(casting)
    check_threads(threads)
    if on_gpu(array, stream):
        from fastindex.cuda import relayouts as cuda_relayouts

        require_unbounded(max_memory)
        return cuda_relayouts.pack(array, shape, fill, out, stream)
    engine = engine_of(array)
    if engine is not None:
        require_lazy(out=out, max_memory=max_memory)
        return engine.pack(array, shape, fill, threads=threads)
    if max_memory is not None:
        return bounded_relayouts.pack(array, shape, fill, out, casting, threads, max_memory)
    return _packed(array, shape, fill, out, casting, threads)


def _packed(array: Any, shape: Shape, fill: Any, out: Any, casting: str, threads: int | None) -> NDArray[Any]:
    values = as_logical_array(array, shape, casting)
    result = new_buffer(shape) if out is None else check_output_buffer(out, shape)
    if out is not None:
        check_disjoint(result, values)
    side, values = _strides_of(values)
    own = ElementType.from_numpy_dtype(values.dtype)
    moved = either_movement((side, own), (shape, shape.element_type), _TUNING)
    if moved is None:
        values, moved = np.ascontiguousarray(values), movement_between(Shape(own, shape.dimensions), shape, _TUNING)
    moved.run(address_of(values), address_of(result), fill_pattern(shape, fill), threads)
    return result


def unpack(
    buffer: Any,
    shape: Shape | str,
    *,
    out: Any = None,
    dtype: Any = None,
    casting: Casting = "same_kind",
    threads: int | None = None,
    stream: Any = None,
    max_memory: int | None = None,
) -> Any:
    """Read a logical array from a physical buffer; what padding slots hold does not matter.

    Parameters
    ----------
    buffer : array of one dimension, bytes, or anything with the buffer protocol
        Of the element type, or raw bytes: exactly ``shape.nbytes``. Bytes in front of the data (``M``) are not part
        of it.
    shape : Shape or str
    out : array of ``shape.dimensions``, optional
        Where to write; of any strides that do not overlap. It may not overlap `buffer`.
    dtype : dtype, ElementType or str, optional
        The element type of the result, that of `out` or of `shape` by default; elements are cast to it.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for that, as for `pack`.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the data is on the GPU; see `fastindex.cuda`.
    max_memory : int, optional
        The most bytes that this process may have in memory, as for `pack`.

    Returns
    -------
    array of ``shape.dimensions``

    Raises
    ------
    FastIndexError
        Another size of `buffer`, other dimensions of `out`, too little memory.
    ArgumentTypeError, UnsupportedError, OSError
        As `pack`.
    KeyboardInterrupt
        As `pack`: some elements of `out` hold new values, the others what they held before.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.unpack(np.arange(8, dtype=np.uint8), "u8[2,3]{1,0:T(2,2)}")
    array([[0, 1, 4],
           [2, 3, 6]], dtype=uint8)
    >>> fi.unpack(np.arange(8, dtype=np.uint8), "u8[2,3]{1,0:T(2,2)}", dtype=np.float16)
    array([[0., 1., 4.],
           [2., 3., 6.]], dtype=float16)
    """
    shape = as_shape(shape)
    check_movable(shape)
    check_threads(threads)
    logical = logical_result(shape, out, dtype, casting)
    if on_gpu(buffer, stream):
        from fastindex.cuda import relayouts as cuda_relayouts

        require_unbounded(max_memory)
        require_same_type(shape, logical, "on the GPU")
        return cuda_relayouts.unpack(buffer, shape, out, stream)
    engine = engine_of(buffer)
    if engine is not None:
        require_lazy(out=out, max_memory=max_memory)
        require_same_type(shape, logical, "of Dask arrays")
        return engine.unpack(buffer, shape, threads=threads)
    if max_memory is not None:
        return bounded_relayouts.unpack(buffer, shape, logical, out, threads, max_memory)
    slots = as_buffer_bytes(buffer, shape)
    result = new_array(logical) if out is None else check_output_array(out, logical)
    if out is not None:
        check_disjoint(result, slots)
    pattern, side = bytes(logical.element_type.nbytes), element_strides(described(result))
    kinds = shape.element_type, logical.element_type
    moved = None if side is None else either_movement((shape, kinds[0]), (side, kinds[1]), _TUNING)
    if moved is not None:
        moved.run(address_of(slots), address_of(result), pattern, threads)
    else:
        whole = new_array(logical)
        movement_between(shape, logical, _TUNING).run(address_of(slots), address_of(whole), pattern, threads)
        result[...] = whole
    return result


def relayout(
    buffer: Any,
    source: Shape | str,
    destination: Shape | str,
    fill: Any = None,
    *,
    out: Any = None,
    casting: Casting = "same_kind",
    threads: int | None = None,
    stream: Any = None,
    shape: bool = False,
    max_memory: int | None = None,
) -> Any:
    """Move a physical buffer from one layout to another, without a logical array in between.

    Parameters
    ----------
    buffer : array of one dimension, bytes, or anything with the buffer protocol
        As for `unpack`, of `source`. Where `source` only orders the dimensions, also a contiguous array of them in
        the order of memory: their own order for a plain layout.
    source, destination : Shape or str
        Two layouts of arrays of the same dimensions. Where their element types differ, elements are cast while they
        move.
    fill : number, optional
        What the padding slots of `destination` get; without it, its padding value, zero by default.
    out : array, optional
        As for `pack`, of `destination`.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type, as for `pack`.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the data is on the GPU; see `fastindex.cuda`.
    shape : bool
        Return the dimensions of `destination` in the order of memory, instead of one.
    max_memory : int, optional
        The most bytes that this process may have in memory, as for `pack`.

    Returns
    -------
    array of one dimension, or with ``shape=True`` of those of `destination`

    Raises
    ------
    FastIndexError
        Shapes of different arrays, or buffers of another size; ``shape=True``, and `destination` has tiles or padding;
        too little memory.
    ArgumentTypeError, UnsupportedError, OSError
        As `pack`.
    KeyboardInterrupt
        As `pack`: some slots of `out` hold new values, the others what they held before.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.relayout(np.arange(6, dtype=np.uint8), "u8[2,3]{1,0}", "u8[2,3]{0,1}")
    array([0, 3, 1, 4, 2, 5], dtype=uint8)
    >>> images = np.zeros((8, 3, 56, 60), np.uint8)
    >>> fi.relayout(images, "u8[8,3,56,60]", "u8[8,3,56,60]{1,3,2,0}", shape=True).shape
    (8, 56, 60, 3)
    >>> fi.relayout(np.array([1.5, 2, 3.25], np.float32), "f32[3]", "bf16[3]{0:T(4)}", fill=-1)
    array([1.5, 2, 3.25, -1], dtype=bfloat16)
    """
    engine = engine_of(buffer)
    if engine is not None:
        require_lazy(out=out, stream=stream, max_memory=max_memory)
        return engine.relayout(buffer, source, destination, fill, threads=threads, shape=shape)
    if max_memory is not None:
        pair = as_shape(source), as_shape(destination)
        if on_gpu(buffer, stream):
            require_unbounded(max_memory)
        result = bounded_relayouts.relayout(buffer, *pair, fill, out, casting, threads, max_memory)
        return _shaped(result, pair[1]) if shape else result
    plan = plan_relayout(source, destination, casting=casting)
    if fill is None:
        return plan(buffer, out, threads, stream, shape)
    result = plan.apply(buffer, fill_pattern(plan.destination, fill), out, threads, stream)
    return _shaped(result, plan.destination) if shape else result


def plan_relayout(source: Shape | str, destination: Shape | str, *, casting: Casting = "same_kind") -> RelayoutPlan:
    """Plan a relayout once, to call it many times; plans are kept, so the same shapes give the same plan.

    Parameters
    ----------
    source, destination : Shape or str
        Two layouts of arrays of the same dimensions.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for another element type of `destination`, as for `pack`.

    Raises
    ------
    FastIndexError
        Shapes of different arrays.
    ArgumentTypeError
        `casting` does not allow the element types.
    UnsupportedError
        As `pack`.

    Examples
    --------
    >>> import fastindex as fi
    >>> plan = fi.plan_relayout("f32[4096,4096]{1,0}", "f32[4096,4096]{0,1}")
    >>> plan.is_bitcast
    False
    >>> print(plan.describe())
    f32[4096,4096]{1,0} -> f32[4096,4096]{0,1}
    transpose, 4-byte units, 16 tasks, about 67108864 bytes: 16384 bytes contiguous in the source become 16384 \
contiguous in the destination
    """
    sides = as_shape(source), as_shape(destination)
    if sides[0].element_type != sides[1].element_type:
        require_movable_pair(*sides, casting)
    else:
        check_casting(casting)
    return _plan(*sides, _TUNING)


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

    def __init__(self, source: Shape, destination: Shape, tuning: Tuning = TUNING) -> None:
        require_movable_pair(source, destination, "unsafe")
        movement = movement_between(source, destination, tuning)
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
            return _kept_plan, (self.source, self.destination)
        return _tuned_plan, (self.source, self.destination, self._choice)

    def __repr__(self) -> str:
        return f"RelayoutPlan({str(self.source)!r}, {str(self.destination)!r})"

    def _repr_html_(self) -> str:
        from fastindex.pictures.picture import plan_html

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
        from fastindex.cpu.candidate_times import timed
        from fastindex.cpu.choices import remember

        choice = timed(self._movement, (address_of(slots), address_of(result)), self._pattern, threads)
        if choice is None:
            self._movement.run_kernels(address_of(slots), address_of(result), self._pattern, threads)
            return ()
        source, destination = self._movement.source, self._movement.destination
        assert isinstance(source, Shape)
        assert isinstance(destination, Shape)
        remember(source, destination, self._movement.tuning, choice)
        self._take(choice)
        return self.candidates

    def _take(self, choice: Choice) -> None:
        """Take a candidate from now on."""
        assert isinstance(self._movement, Movement)
        self._choice = choice
        self._movement = replace(self._movement, choice=choice.name)
        self._single = None
        self.__dict__.pop("_one_call", None)

    def __call__(
        self, buffer: Any, out: Any = None, threads: int | None = None, stream: Any = None, shape: bool = False
    ) -> Any:
        """Move a buffer; padding gets the padding value of the destination.

        Parameters
        ----------
        buffer, out, threads, stream, shape
            As for `relayout`.

        Raises
        ------
        FastIndexError, ArgumentTypeError, KeyboardInterrupt
            As `relayout`.
        """
        single, counted = self._single, threads is None or (type(threads) is int and threads > 0)
        if single is not None and (out is None or not counted or stream is not None or shape):
            single = None
        # It looks itself whether both are plain arrays of the right kind.
        if single is not None:
            if single.is_small:
                if single.run(id(buffer), id(out), single.address, single.scratch.address):
                    return out
            elif single.run_on_threads(id(buffer), id(out), threads):
                return out
        if counted and stream is None and not shape and type(buffer) is np.ndarray and self._is_prompt(buffer, out):
            return out
        if engine_of(buffer) is not None:
            return self._lazily(buffer, out=out, threads=threads, stream=stream, shape=shape)
        if shape:
            return _shaped(self(buffer, out, threads, stream), self.destination)
        host = type(buffer) is np.ndarray and stream is None and not may_be_numpy(self._movement.nbytes, MOST_BYTES)
        if host and counted:
            if out is None:
                out = new_buffer(self.destination)
            one_call = self._one_call
            if one_call.run_on_threads(id(buffer), id(out), threads):
                self._single = one_call
                return out
        return self.apply(buffer, None, out, threads, stream)

    def _lazily(self, buffer: Any, **options: Any) -> Any:
        """Return an array that is computed later."""
        return relayout(buffer, self.source, self.destination, casting="unsafe", **options)

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
    def _one_call(self) -> OneCall:
        from fastindex.cpu.compiled_passes import OneCall

        shapes = self.source, self.destination
        source, destination = ((buffer_dtype(shape), _buffer_length(shape)) for shape in shapes)
        return OneCall(self._movement.alone, source, destination, self._movement.padding(self._pattern))

    @lazy_property
    def _on_gpu(self) -> Callable[[Any, bytes, Any, Any], Any]:
        from fastindex.cuda.relayouts import DevicePlan

        require_same_type(self.source, self.destination, "on the GPU")
        return DevicePlan(self.source, self.destination)

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


def _shaped(result: Any, destination: Shape) -> Any:
    dimensions = memory_dimensions(destination)
    if dimensions is None:
        raise FastIndexError(
            f"shape=True needs a destination without tiles and padding: a buffer of {destination.cut_text()} has one "
            "dimension; unpack gives the array itself"
        )
    return result if tuple(result.shape) == dimensions else result.reshape(dimensions)


def _buffer_length(shape: Shape) -> int:
    return shape.slot_count if slot_format(shape).is_plain else shape.nbytes


@lru_cache(maxsize=512)
def _plan(source: Shape, destination: Shape, tuning: Tuning) -> RelayoutPlan:
    return RelayoutPlan(source, destination, tuning)


def _kept_plan(source: Shape, destination: Shape) -> RelayoutPlan:
    """Return a plan as it was when it was pickled, whatever casting it was made with."""
    return _plan(source, destination, _TUNING)


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


def _strides_of(values: NDArray[Any]) -> tuple[Strides, NDArray[Any]]:
    side = element_strides(described(values))
    if side is None:
        values = np.ascontiguousarray(values)
        side = element_strides(described(values))
        assert side is not None
    return side, values
