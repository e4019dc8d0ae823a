"""Time slices of a long call, after which its thread checks for signals.

Python runs signal handlers on its main thread, between two of its own instructions; so a long native call there returns
now and then. Throughput is unknown in advance: pages may have to be read from a file, and other processes may use the
processor. So slices end by the clock, which takes 25 ns to read.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.runtime.kernels import instructions, subroutine
from fastindex.runtime.lines.memory import entry, set_entry
from fastindex.runtime.numbers import CALL

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


@instructions()
def _ask_clock(builder: Any, function: Any, clock: Any, address: Any) -> None:
    """Call a C function like ``clock_gettime`` by its address; it writes two int64 to another address."""
    declared = ir.FunctionType(_INT32, [_INT32, _INT64])
    builder.call(builder.inttoptr(function, declared.as_pointer()), [builder.trunc(clock, _INT32), address])


@subroutine()
def _now(call):  # type: ignore[no-untyped-def]
    """Return the time on the clock of a `LongCall`, in nanoseconds."""
    _ask_clock(entry(call, CALL.clock), entry(call, CALL.clock_id), call + 8 * CALL.seconds)
    return entry(call, CALL.seconds) * 1_000_000_000 + entry(call, CALL.nanoseconds)


@subroutine()
def begin_slice(call):  # type: ignore[no-untyped-def]
    """Begin a slice of a `LongCall`; return the address of the call, or 0 if its slices have no end."""
    if not entry(call, CALL.clock):
        return 0
    set_entry(call, CALL.slice_end, _now(call) + entry(call, CALL.slice_nanoseconds))
    return call


@subroutine()
def slice_is_over(call):  # type: ignore[no-untyped-def]
    """Whether the slice has ended, so that it is time to check for signals."""
    return _now(call) >= entry(call, CALL.slice_end)
