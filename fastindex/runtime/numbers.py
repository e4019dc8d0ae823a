"""Constants and record layouts that kernels share with their callers: cache lines, tables, arrays, jobs of threads.

A record of ints has ``NAME = places(Record)`` next to it; kernels read ``entry(geometry, NAME.field)``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

#: Bytes of a cache line, and of the widest vector that kernels use.
LINE_BYTES = 64

#: Storage types of an operand's integers; the code of a type is its index.
STORED = ("int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8")

#: Flags of NumPy's arrays.
CONTIGUOUS, WRITEABLE = 0x1, 0x400

#: Bytes of a lane: vectors of every machine can permute within one.
LANE_BYTES = 16

#: The table of a conversion to a "code", an integer of at most 8 bits: the mask of bits to keep; for integers, an
#: offset to add and the mask of bits that are 0 in the sum of every valid code; for floats, the least and the greatest
#: code.
CODE_BITS, CODE_OFFSET, CODE_OUTSIDE = range(3)
CODE_LEAST, CODE_GREATEST = CODE_OFFSET, CODE_OUTSIDE
CODE_NUMBERS = 3

#: Symbols that the code of a kernel exports: a C function from int64 to int64, and the same with the calling convention
#: of Python's built-in functions.
FOR_C, FOR_PYTHON = "fastindex_kernel", "fastindex_function"


class Kernel(NamedTuple):
    """A kernel, by name.

    Attributes
    ----------
    module, function : str
        Where it is defined.
    literals : tuple of int
        Its first arguments, which are constants in its code; a caller may pass any values for them.
    """

    module: str
    function: str
    literals: tuple[int, ...] = ()


Record = TypeVar("Record", bound=NamedTuple)


def places(record: type[Record], first: int = 0) -> Record:
    """Return a record whose fields hold their own indices, of which the first is `first`.

    Examples
    --------
    >>> from fastindex.moving.numbers import FillGeometry
    >>> places(FillGeometry)
    FillGeometry(run_bytes=0, streamed=1)
    """
    return record(*range(first, first + len(record._fields)))


class PlainPair(NamedTuple):
    """The expected properties of two contiguous one-dimensional arrays.

    Attributes
    ----------
    fields : int
        Offset of NumPy's own fields in an array object, in bytes.
    array_type : int
        Address of the type of both objects.
    source_dtype, source_count, source_bytes : int
        Address of the source's dtype object, its number of elements, and its number of bytes.
    target_dtype, target_count, target_bytes : int
    target_offset_bits : int
        Mask of the bits of the target's address that must be 0.
    """

    fields: int
    array_type: int
    source_dtype: int
    source_count: int
    source_bytes: int
    target_dtype: int
    target_count: int
    target_bytes: int
    target_offset_bits: int


PAIR = places(PlainPair)


class PairCall(NamedTuple):
    """The passes that a call runs between the two arrays; these numbers follow those of the `PlainPair`.

    Attributes
    ----------
    passes, pass_count : int
        Address of the passes, rows of a `PassCall`, and their number.
    padding : int
        Address of 128 bytes of padding.
    """

    passes: int
    pass_count: int
    padding: int


PAIR_CALL = places(PairCall, len(PAIR))


class PassJob(NamedTuple):
    """The job that a helper thread takes a share of.

    Attributes
    ----------
    state : int
        One of the states below.
    owner : int
        Address of the `LongCall` that the helper works for; 0 while it is free.
    passes, pass_count, target, source, padding, counters : int
        As for `run_passes`.
    sleep, wake : int
        Addresses of C functions that wait for a semaphore, and post it; 0 if the helper does not sleep.
    semaphore : int
        Argument of both functions.
    """

    state: int
    owner: int
    passes: int
    pass_count: int
    target: int
    source: int
    padding: int
    counters: int
    sleep: int
    wake: int
    semaphore: int


JOB = places(PassJob)
JOB_BYTES = 8 * len(JOB)
#: Bytes reserved for a semaphore after a job.
SEMAPHORE_BYTES = 40

#: States of a helper: it waits for its semaphore; it polls for work; work is posted that it has not seen; it works; it
#: has to end.
ASLEEP, WAITING, POSTED, WORKING, CLOSED = range(5)


class PoolTable(NamedTuple):
    """The helper threads of a process; the addresses of their jobs follow these numbers.

    Attributes
    ----------
    spins : int
        How often to poll a job before giving up.
    size : int
        Number of helpers.
    """

    spins: int
    size: int


POOL = places(PoolTable)
POOL_JOBS = len(POOL)


class LongCall(NamedTuple):
    """A call that is long enough for helpers and for signal checks; a counter for each pass follows these numbers.

    Attributes
    ----------
    clock, clock_id : int
        Address of a C function like ``clock_gettime``, and its argument; 0 if the call need not check for signals.
    seconds, nanoseconds : int
        The time that the clock has written.
    slice_nanoseconds : int
        How long the caller's thread works at a time.
    slice_end : int
        End of the current slice, in nanoseconds.
    nap : int
        Address of a C function like ``usleep``.
    """

    clock: int
    clock_id: int
    seconds: int
    nanoseconds: int
    slice_nanoseconds: int
    slice_end: int
    nap: int


CALL = places(LongCall)
#: Offset of the counters.
CALL_COUNTERS = len(CALL)

#: A slice of a call returns a sum: the number of helpers that still work, `UNFINISHED` if there is more to do, and
#: `MISSING` times the number of helpers that were not available.
UNFINISHED, MISSING = 1 << 31, 1 << 32
#: Returned instead if the arrays are not as expected.
REFUSED = 1 << 62
