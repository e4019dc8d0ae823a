"""Runs of elements converted to another type.

Elements are prefetched some distance ahead, in their run or in a later one: short runs that are pages apart would
otherwise wait for memory.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.algebra.cast_numbers import (
    CAST,
    CAST_LANES,
    MISFIT_BIT,
    bytes_read,
    bytes_written,
    counter_place,
    elements_at_once,
    names_of,
)
from fastindex.moving.kernels.passes import outer_place
from fastindex.moving.numbers import TABLE
from fastindex.runtime.kernels import instructions, kernel, subroutine
from fastindex.runtime.lines.conversions import Conversion
from fastindex.runtime.lines.lines import copy_run, prefetch_ends, shuffle
from fastindex.runtime.lines.memory import entry, fence, load_at, offset_by, prefetch_at, store_at
from fastindex.runtime.machine_code import features
from fastindex.runtime.numbers import LINE_BYTES

_BOOL, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
_HALF, _FLOAT = ir.HalfType(), ir.FloatType()

#: Bytes of scratch memory that this kernel needs: a vector of results of which only a part is written.
SCRATCH_BYTES = CAST_LANES * 8


@instructions("code")
def read_bytes(builder: Any, code: int) -> Any:
    """Return the bytes of an element of the source type of a conversion, as a constant."""
    return bytes_read(names_of(code)[0])


@instructions("code")
def written_bytes(builder: Any, code: int) -> Any:
    """Return the bytes of an element of the target type of a conversion, as a constant."""
    return bytes_written(names_of(code)[1])


@instructions("code")
def together(builder: Any, code: int) -> Any:
    """Return how many elements `cast_lines` converts at once, as a constant."""
    return elements_at_once(code)


@instructions("code", "lanes")
def cast_elements(builder: Any, code: int, lanes: int, target: Any, source: Any, table: Any) -> None:
    """Convert a literal number of contiguous elements, by the conversion of the literal `code`.

    `table` is the address of the table of results, for conversions that use one.
    """
    _count(builder, code, _cast(builder, code, lanes, (target, source, table), False), table)


@instructions("code", "streamed")
def cast_lines(builder: Any, code: int, streamed: int, target: Any, source: Any, ahead: Any, table: Any) -> None:
    """Convert elements that fill whole lines on both sides, and prefetch the source lines `ahead` bytes further on.

    With the literal `streamed`, use non-temporal stores; the target is then on a line boundary.
    """
    names = names_of(code)
    read, written = bytes_read(names[0]), bytes_written(names[1])
    count = elements_at_once(code)
    for part in range(0, count * read, LINE_BYTES):
        prefetch_at(builder, builder.add(offset_by(builder, source, part), ahead), nearness=2)
    misfits = None
    for first in range(0, count, CAST_LANES):
        places = offset_by(builder, target, first * written), offset_by(builder, source, first * read), table
        found = _cast(builder, code, CAST_LANES, places, bool(streamed))
        misfits = found if misfits is None else builder.or_(misfits, found)
    _count(builder, code, misfits, table)


def _cast(builder: Any, code: int, lanes: int, places: tuple[Any, Any, Any], streamed: bool) -> Any:
    """Convert a vector; for a checked conversion, return a vector that is nonzero where a value does not fit."""
    target, source, table = places
    names = names_of(code)
    values = load_at(builder, source, lanes, bytes_read(names[0]))
    found, misfits = _converted(builder, names, lanes, values, table), None
    if names[1] == "checked byte":
        misfits = builder.and_(found, _all(found, MISFIT_BIT))
        found = builder.and_(found, _all(found, MISFIT_BIT - 1))
    elif counter_place(*names) is not None:
        misfits = Conversion(builder, names, lanes).misfits(values, table)
    store_at(builder, found, target, streamed)
    return misfits


def _all(vector: Any, number: int) -> Any:
    return ir.Constant(vector.type, [number] * vector.type.count)


def _count(builder: Any, code: int, misfits: Any, table: Any) -> None:
    """Increment the counter after the table of results if a conversion has found a misfit."""
    counter = counter_place(*names_of(code))
    if counter is None:
        return
    kind = misfits.type
    name = f"llvm.vector.reduce.or.v{kind.count}i{kind.element.width}"
    declared = ir.FunctionType(kind.element, [kind])
    function = builder.module.globals.get(name) or ir.Function(builder.module, declared, name)
    reduced = builder.call(function, [misfits])
    with builder.if_then(builder.icmp_unsigned("!=", reduced, kind.element(0)), likely=False):
        place = offset_by(builder, table, counter)
        builder.atomic_rmw("add", builder.inttoptr(place, _INT64.as_pointer()), _INT64(1), "monotonic")


def _converted(builder: Any, names: tuple[str, str], lanes: int, values: Any, table: Any) -> Any:
    """Return the bits of the results; take the slower path for NaN only if a value is NaN."""
    exact = Conversion(builder, names, lanes)
    if lanes == 1 or not _has_shorter_way(names):
        return exact.converted(values, table)
    shorter = _OfNumbers(builder, names, lanes)
    found = shorter.converted(values, table)
    if names[0][0] in "su":
        return found
    numbers = builder.bitcast(shorter.number(values), ir.VectorType(_FLOAT, lanes))
    start = builder.block
    with builder.if_then(_any_nan(builder, numbers), likely=False):
        right = exact.converted(values, table)
        other = builder.block
    either = builder.phi(found.type)
    either.add_incoming(found, start)
    either.add_incoming(right, other)
    return either


def _has_shorter_way(names: tuple[str, str]) -> bool:
    source, target = names
    if "f16" in names and not features() & {"f16c", "neon"}:
        return False
    return (
        (source, target) == ("f32", "bf16")
        or (source == "f16" and target in ("f32", "bf16"))
        or (target == "f16" and source in ("f32", "bf16", "s8", "u8", "s16", "u16", "s32", "u32"))
    )


def _any_nan(builder: Any, numbers: Any) -> Any:
    """Whether any of a vector of floats is NaN: two values are unordered if either is."""
    half = numbers.type.count // 2
    low, high = (shuffle(builder, numbers, numbers, range(first, first + half)) for first in (0, half))
    found = builder.fcmp_unordered("uno", low, high)
    name = f"llvm.vector.reduce.or.v{half}i1"
    declared = ir.FunctionType(_BOOL, [found.type])
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, declared, name), [found])


class _OfNumbers(Conversion):
    """The instructions of a conversion to or from floats without NaN; f16 conversions use the processor's own."""

    def number(self, value: Any) -> Any:
        return self._number(value)

    def _to_bfloat(self, bits: Any) -> Any:
        return self._upper_bits(self._rounded_to_bfloat(bits))

    def _to_half(self, bits: Any) -> Any:
        numbers = self.b.bitcast(bits, self._of(_FLOAT))
        return self.b.bitcast(self.b.fptrunc(numbers, self._of(_HALF)), self._of(_INT16))

    def _from_half(self, value: Any) -> Any:
        numbers = self.b.bitcast(value, self._of(_HALF))
        return self.b.bitcast(self.b.fpext(numbers, self._of(_FLOAT)), self._of(_INT32))


@subroutine("code", inline=True)
def _one_by_one(code, target, source, begin, end, strides, results):  # type: ignore[no-untyped-def]
    read, written = strides
    for i in range(begin, end):
        cast_elements(code, 1, target + i * written, source + i * read, results)


@subroutine("code", "streams", inline=True)
def _in_lines(code, streams, target, source, begin, end, ahead, results):  # type: ignore[no-untyped-def]
    """Convert elements of a dense run from `begin` in whole lines; return the first element of the remainder."""
    read, written, step = read_bytes(code), written_bytes(code), together(code)
    whole_end = end - (end - begin) % step
    for i in range(begin, whole_end, step):
        cast_lines(code, streams, target + i * written, source + i * read, ahead, results)
    return whole_end


@subroutine("code", inline=True)
def _in_vectors(code, target, source, begin, end, count, results, scratch):  # type: ignore[no-untyped-def]
    """Convert the elements from `begin` to `end` of a dense run of `count`, and write no others."""
    read, written = read_bytes(code), written_bytes(code)
    whole_end = end - (end - begin) % CAST_LANES
    for i in range(begin, whole_end, CAST_LANES):
        cast_elements(code, CAST_LANES, target + i * written, source + i * read, results)
    if whole_end == end:
        return
    if count < CAST_LANES:
        _one_by_one(code, target, source, whole_end, end, (read, written), results)
        return
    first = min(whole_end, count - CAST_LANES)
    cast_elements(code, CAST_LANES, scratch, source + first * read, results)
    copy_run(target + whole_end * written, scratch + (whole_end - first) * written, (end - whole_end) * written, 0)


@subroutine("code", "streams", inline=True)
def _dense_run(code, streams, target, source, count, ahead, results, scratch):  # type: ignore[no-untyped-def]
    written, done = written_bytes(code), 0
    if streams and target % written == 0:
        done = min(((-target) & (LINE_BYTES - 1)) // written, count)
        _in_vectors(code, target, source, 0, done, count, results, scratch)
        done = _in_lines(code, 1, target, source, done, count, ahead, results)
    else:
        done = _in_lines(code, 0, target, source, done, count, ahead, results)
    _in_vectors(code, target, source, done, count, count, results, scratch)


@kernel
def cast_runs(code, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a cast.

    Parameters
    ----------
    code : literal int
        The conversion, as `fastindex.algebra.cast_numbers.conversion_code` numbers them.
    target, source, table
        As for `copy_chunks`; the kernel's own numbers are a `CastGeometry`. The first table holds results.
    scratch : int64
        Address of `SCRATCH_BYTES` bytes, for this thread alone.
    ways
        Not used.
    """
    geometry, results = entry(table, TABLE.geometry), entry(table, TABLE.first)
    count, runs = entry(geometry, CAST.elements), entry(geometry, CAST.runs)
    strides = entry(geometry, CAST.source_stride), entry(geometry, CAST.target_stride)
    ahead, streams = entry(geometry, CAST.ahead), entry(geometry, CAST.streams)
    is_dense = entry(geometry, CAST.is_dense)
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        for _ in range(runs):
            if streams:
                prefetch_ends(at_target + 8 * entry(geometry, CAST.run_target_stride), count * strides[1])
            if is_dense:
                _dense_run(code, streams, at_target, at_source, count, ahead, results, scratch)
            else:
                _one_by_one(code, at_target, at_source, 0, count, strides, results)
            at_source += entry(geometry, CAST.run_source_stride)
            at_target += entry(geometry, CAST.run_target_stride)
    if streams:
        fence()
