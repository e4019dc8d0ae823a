"""Index conversions of arrays in GPU memory, with the CPU's results and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.arrays import check_no_overlap, check_target, common_shape
from fastindex.arrays.engines import is_cuda_array
from fastindex.arrays.index_arguments import (
    Counted,
    Inputs,
    Window,
    as_counted,
    check_first_size,
    coordinate_parts,
    last_input,
)
from fastindex.core.shape import Shape
from fastindex.cuda.arrays import DeviceArray, as_device_array, new_result
from fastindex.cuda.index_programs import Operand, run
from fastindex.cuda.kernels.units import look_up_kernel
from fastindex.cuda.queues import Queue, Tables, queue_for
from fastindex.cuda.relayouts import dense_copy, move
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError
from fastindex.index.executors import BadElementError, ErrorOf, LookUp

_tables = Tables()


def _coordinates(multi_index: Any, shape: Shape) -> list[Operand]:
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
    return [_operand(part, f"multi_index[{i}]") for i, part in enumerate(coordinate_parts(multi_index, shape))]


def _operand(value: Any, name: str) -> Operand:
    """Describe integers: a CUDA array, or an integer or a range, which take no memory.

    Raises
    ------
    ArgumentTypeError
        Not integers, or an array on the host.
    OutOfBoundsError
        An integer that 64 bits do not hold.
    """
    if isinstance(value, range):
        return as_counted(value, name)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            raise OutOfBoundsError(f"{name} holds an integer that does not fit 64 bits")
        return Counted(int(value), 0, ())
    described = as_device_array(value, name)
    _check_integers(described, name)
    return described


def _check_integers(value: DeviceArray, name: str) -> None:
    if value.dtype.kind not in "iu" or not value.dtype.isnative:
        raise ArgumentTypeError(f"{name} must hold integers, got dtype {value.dtype}")
    _check_alignment(value, name)


def _check_alignment(value: DeviceArray, name: str) -> None:
    if any(number % value.dtype.itemsize for number in (value.address, *value.strides)):
        raise FastIndexError(f"{name} is not aligned: its address and strides must be whole elements")


def convert(
    program: IndexProgram, given: Inputs, error_of: ErrorOf, out: Any, mark: bool, _: int | None, table: LookUp | None
) -> list[Any]:
    """Do what `fastindex.index.executors.convert` does; results are arrays of the library of the first input.

    Raises
    ------
    OutOfBoundsError
        As `error_of` says.
    FastIndexError, ArgumentTypeError
        The operands do not broadcast together, are on several devices, or `out` does not fit.
    """
    inputs: list[Operand]
    modes = given.modes
    if isinstance(given.inputs, Window):
        inputs = [*given.inputs.counted()]
        # All are in bounds; with "raise", the call would wait for the GPU for nothing.
        modes = ("clip",) * len(inputs)
    elif given.array is not None:
        inputs = _coordinates(given.inputs, given.array)
    else:
        inputs = [_operand(value, name) for value, name in zip(given.inputs, given.names, strict=True)]
    if given.last is not None:
        inputs.append(last_input(given.last, max((len(one.shape) for one in inputs), default=0)))
    arrays = tuple(value for value in inputs if isinstance(value, DeviceArray))
    size = common_shape(inputs)
    written = None if out is None else _outputs(out, len(program.outputs), size, arrays)
    with queue_for(given.stream, (*arrays, *(written or ()))) as queue:
        if written is None:
            made = [new_result(arrays[0], size, np.int64, queue.handle) for _ in program.outputs]
            results, outputs = [array for array, _ in made], [described for _, described in made]
        else:
            results, outputs = list(out), written
        try:
            run(program, inputs, outputs, size, queue, modes=modes, mark=mark)
        except BadElementError as found:
            raise error_of(found) from None
        if table is not None:
            _look_up(table, outputs[0], queue)
        return [queue.finished(result) for result in results]


def _outputs(
    out: Sequence[Any], count: int, shape: tuple[int, ...], inputs: tuple[DeviceArray, ...]
) -> list[DeviceArray]:
    if len(out) != count:
        raise FastIndexError(f"out must hold {count} arrays, got {len(out)}")
    names = ["out"] if count == 1 else [f"out[{i}]" for i in range(count)]
    given = [_output(one, shape, name) for one, name in zip(out, names, strict=True)]
    for i, (one, name) in enumerate(zip(given, names, strict=True)):
        check_target(one, name)
        check_no_overlap(one, (*inputs, *given[:i]))
    return given


def _output(out: Any, shape: tuple[int, ...], name: str) -> DeviceArray:
    found = as_device_array(out, name)
    if found.dtype != np.int64:
        raise ArgumentTypeError(f"{name} must be an int64 array, got dtype {found.dtype}")
    if found.shape != shape:
        raise FastIndexError(f"{name} must have the shape {shape} of the result, got {found.shape}")
    _check_alignment(found, name)
    return found


def _look_up(table: LookUp, numbers: DeviceArray, queue: Queue) -> None:
    """Replace the numbers of an array by the entries of a table at these indices."""
    count = numbers.size
    if count == 0:
        return
    dense = numbers if numbers.is_contiguous else dense_copy(numbers, queue)
    held = _tables.place(table, table.numbers, queue)
    queue.launch(look_up_kernel(), count, dense.address, held.address, count)
    if dense is not numbers:
        move(dense, dense.strides, numbers, queue)
