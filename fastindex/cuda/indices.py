"""The index functions for arrays in GPU memory: the CPU's results and errors, on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.arrays import broadcast_shape, check_apart, check_target
from fastindex.arrays.engines import is_cuda_array
from fastindex.arrays.index_arguments import (
    Offender,
    OffenderFoundError,
    Window,
    as_modes,
    check_first_size,
    coordinate_parts,
)
from fastindex.core.shape import Shape
from fastindex.cuda.arrays import DeviceArray, as_device_array
from fastindex.cuda.index_programs import Counted, Operand, run
from fastindex.cuda.libraries import new_device_array
from fastindex.cuda.queues import queue_for
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError

#: Makes the error for an element that could not be converted.
ErrorOf = Callable[[Offender, Shape], OutOfBoundsError]


def coordinates_on_gpu(multi_index: Any, shape: Shape) -> list[Operand]:
    """Return one operand per dimension of `shape`, from CUDA arrays, integers and ranges.

    Raises
    ------
    FastIndexError
        Another number of coordinates.
    ArgumentTypeError
        Not integers, or an array on the host.
    """
    if is_cuda_array(multi_index):
        whole = as_device_array(multi_index, "multi_index")
        _check_integers(whole, "multi_index")
        check_first_size(whole.shape, shape)
        return [whole[i] for i in range(shape.rank)]
    return [operand(part, f"multi_index[{i}]") for i, part in enumerate(coordinate_parts(multi_index, shape))]


def operand(value: Any, name: str) -> Operand:
    """Describe integers: a CUDA array, or an integer or a range, which take no memory.

    Raises
    ------
    ArgumentTypeError
        Not integers, or an array on the host.
    OutOfBoundsError
        An integer that 64 bits do not hold.
    """
    if isinstance(value, range):
        ends = [value[0], value[-1]] if len(value) else []
        found = Counted(value.start, value.step, (len(value),))
    elif isinstance(value, int | np.integer) and not isinstance(value, bool):
        ends = [int(value)]
        found = Counted(int(value), 0, ())
    else:
        described = as_device_array(value, name)
        _check_integers(described, name)
        return described
    if any(not -(2**63) <= end < 2**63 for end in ends):
        raise OutOfBoundsError(f"{name} holds an integer that does not fit 64 bits")
    return found


def _check_integers(value: DeviceArray, name: str) -> None:
    if value.dtype.kind not in "iu" or not value.dtype.isnative:
        raise ArgumentTypeError(f"{name} must hold integers, got dtype {value.dtype}")
    if any(number % value.dtype.itemsize for number in (value.address, *value.strides)):
        raise FastIndexError(f"{name} is not aligned: its address and strides must be whole elements")


def convert(
    program: IndexProgram,
    inputs: Sequence[Operand],
    out: Any,
    stream: Any,
    shape: Shape,
    error_of: ErrorOf,
    *,
    mode: Any = "raise",
    mark: bool = False,
) -> list[Any]:
    """Run `program` on operands of which one is a CUDA array, and give its outputs: arrays of that one's library.

    Raises
    ------
    OutOfBoundsError
        As `error_of` says.
    FastIndexError, ArgumentTypeError
        The operands do not broadcast together, are on several devices, or `out` does not fit.
    """
    arrays = tuple(value for value in inputs if isinstance(value, DeviceArray))
    modes = () if mode == "raise" else as_modes(mode, len(inputs))
    size = broadcast_shape([value.shape for value in inputs])
    given = None if out is None else _outputs(out, len(program.outputs), size, arrays)
    with queue_for(stream, (*arrays, *(given or ()))) as queue:
        if given is None:
            made = [new_device_array(arrays[0], size, np.int64, queue.handle) for _ in program.outputs]
            results, outputs = [array for array, _ in made], [described for _, described in made]
        else:
            results, outputs = list(out), given
        try:
            run(program, inputs, outputs, size, queue, modes=modes, mark=mark)
        except OffenderFoundError as found:
            raise error_of(found.offender, shape) from None
    return results


def fill_window(program: IndexProgram, window: Window, out: Sequence[Any], stream: Any) -> list[Any]:
    """Write the outputs of a program from coordinates, for all elements of a window, to CUDA arrays; return these.

    Raises
    ------
    FastIndexError, ArgumentTypeError
        `out` does not fit, is not all on one device, or overlaps itself.
    """
    given = _outputs(out, len(program.outputs), window.shape, ())
    inputs = []
    behind = len(window.shape)
    for along, kept in zip(window.ranges, window.kept, strict=True):
        behind -= kept
        inputs.append(Counted(along.start, along.step, (len(along), *(1,) * behind) if kept else ()))
    with queue_for(stream, tuple(given)) as queue:
        # All are in bounds; asked to raise, the call would wait for the GPU to say so.
        run(program, inputs, given, window.shape, queue, modes=("clip",) * len(inputs))
    return list(out)


def _outputs(
    out: Sequence[Any], count: int, shape: tuple[int, ...], inputs: tuple[DeviceArray, ...]
) -> list[DeviceArray]:
    if len(out) != count:
        raise FastIndexError(f"out must hold {count} arrays, got {len(out)}")
    given = [_output(one, shape, i, count) for i, one in enumerate(out)]
    for i, one in enumerate(given):
        check_target(one, "out" if count == 1 else f"out[{i}]")
        check_apart(one, (*inputs, *given[:i]))
    return given


def _output(out: Any, shape: tuple[int, ...], number: int, count: int) -> DeviceArray:
    name = "out" if count == 1 else f"out[{number}]"
    found = as_device_array(out, name)
    if found.dtype != np.int64:
        raise ArgumentTypeError(f"{name} must be an int64 array, got dtype {found.dtype}")
    if found.shape != shape:
        raise FastIndexError(f"{name} must have the shape {shape} of the result, got {found.shape}")
    if any(number % 8 for number in (found.address, *found.strides)):
        raise FastIndexError(f"{name} is not aligned: its address and strides must be whole elements")
    return found
