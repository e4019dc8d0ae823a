"""Numbers on which kernels and their callers agree: cache lines, places in tables, arrays, jobs of threads.

Beside a record of ints stands ``NAME = places(Record)``; kernels read ``entry(geometry, NAME.field)``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

#: Bytes of a cache line, and of the widest vector that kernels use.
LINE_BYTES = 64

#: How the integers of an operand are stored: the code is the index.
STORED = ("int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8")

#: Flags of NumPy's arrays.
CONTIGUOUS, WRITEABLE = 0x1, 0x400

#: Bytes of a lane: what the vectors of every machine permute within.
LANE_BYTES = 16

#: What the table of a conversion to a "code", an integer of at most 8 bits, holds: the bits that are kept; of integers,
#: what is added to them and which bits of the sum are those of no code; of floats, the least and the greatest code.
CODE_BITS, CODE_OFFSET, CODE_OUTSIDE = range(3)
CODE_LEAST, CODE_GREATEST = CODE_OFFSET, CODE_OUTSIDE
CODE_NUMBERS = 3

#: What the code of a kernel exports: a C function of int64 that returns one, and the same as Python calls a built-in
#: function.
FOR_C, FOR_PYTHON = "fastindex_kernel", "fastindex_function"


class Kernel(NamedTuple):
    """A kernel, by name.

    Attributes
    ----------
    module, function : str
        Where it is defined.
    literals : tuple of int
        Its first arguments, which are constants in its code; a caller passes anything.
    """

    module: str
    function: str
    literals: tuple[int, ...] = ()


Record = TypeVar("Record", bound=NamedTuple)


def places(record: type[Record]) -> Record:
    """Return a record each of whose fields is its own place.

    Examples
    --------
    >>> from fastindex.moving.numbers import FillGeometry
    >>> places(FillGeometry)
    FillGeometry(run_bytes=0, streamed=1)
    """
    return record(*range(len(record._fields)))


class PlainPair(NamedTuple):
    """Two contiguous arrays of one dimension.

    Attributes
    ----------
    fields : int
        Where NumPy's own fields begin in an array object, in bytes.
    array_type : int
        The address of the type that both objects have.
    source_dtype, source_count, source_bytes : int
        The address of the dtype object of the source, how many elements it has, and how many bytes.
    target_dtype, target_count, target_bytes : int
    target_offset_bits : int
        Bits of the address of the target that have to be 0.
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


(
    FIELDS,
    ARRAY_TYPE,
    SOURCE_DTYPE,
    SOURCE_COUNT,
    SOURCE_BYTES,
    TARGET_DTYPE,
    TARGET_COUNT,
    TARGET_BYTES,
    TARGET_OFFSET_BITS,
) = range(9)


class PairCall(NamedTuple):
    """What a call runs between them; these numbers follow those of the `PlainPair`.

    Attributes
    ----------
    passes, pass_count : int
        The address of the passes, rows of a `PassCall`, and how many there are.
    padding : int
        The address of 128 bytes of padding.
    """

    passes: int
    pass_count: int
    padding: int


PASSES, PASS_COUNT, PADDING = range(9, 12)


class PassJob(NamedTuple):
    """What a helping thread is asked to take a share of.

    Attributes
    ----------
    state : int
        One of those below.
    owner : int
        The address of the `LongCall` that it belongs to; 0 while it is free.
    passes, pass_count, target, source, padding, counters : int
        As `run_passes` has them.
    sleep, wake : int
        Addresses of C functions that wait for a semaphore, and raise it; 0 where nobody sleeps.
    semaphore : int
        What they take.
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
#: How much room a semaphore is given behind them.
SEMAPHORE_BYTES = 40

#: A helper waits for its semaphore; it looks out for work; there is work that it has not seen; it works; it has to end.
ASLEEP, WAITING, POSTED, WORKING, CLOSED = range(5)


class CrewTable(NamedTuple):
    """The helpers of a process; behind these numbers stand the addresses of their jobs.

    Attributes
    ----------
    spins : int
        How often to look at a job before giving up.
    size : int
        How many helpers there are.
    """

    spins: int
    size: int


CREW = places(CrewTable)
CREW_JOBS = len(CREW)


class LongCall(NamedTuple):
    """A call that takes long enough for helpers, and for signals; behind these numbers stands a counter for each pass.

    Attributes
    ----------
    clock, clock_id : int
        The address of a C function like ``clock_gettime``, and what it takes; 0 where nobody has to look for signals.
    seconds, nanoseconds : int
        What it has written.
    slice_nanoseconds : int
        How long the caller's thread works at a time.
    slice_end : int
        When it stops, in nanoseconds.
    nap : int
        The address of a C function like ``usleep``.
    """

    clock: int
    clock_id: int
    seconds: int
    nanoseconds: int
    slice_nanoseconds: int
    slice_end: int
    nap: int


CALL = places(LongCall)
#: Where the counters begin.
CALL_COUNTERS = len(CALL)

#: What a slice of a call returns: how many helpers still work,
#: that there is more to do, and how many helpers there were too few, times this.
UNFINISHED, MISSING = 1 << 31, 1 << 32
#: What it returns in place of that where its arrays are not what it expects.
REFUSED = 1 << 62
