"""Slices of a long call, after which its thread looks for signals.

Python runs handlers of signals on its main thread, between two of its own instructions; so a long native call there
comes back now and then. How much can be done in a moment, nobody knows beforehand: pages may have to be read from a
file, and other processes may have the processor. So the clock is asked, which takes 25 ns.
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
    """Call the C function at an address, as ``clock_gettime``: it writes two int64 to another address."""
    declared = ir.FunctionType(_INT32, [_INT32, _INT64])
    builder.call(builder.inttoptr(function, declared.as_pointer()), [builder.trunc(clock, _INT32), address])


@subroutine()
def _now(call):  # type: ignore[no-untyped-def]
    """Return what the clock of a `LongCall` says, in nanoseconds."""
    _ask_clock(entry(call, CALL.clock), entry(call, CALL.clock_id), call + 8 * CALL.seconds)
    return entry(call, CALL.seconds) * 1_000_000_000 + entry(call, CALL.nanoseconds)


@subroutine()
def begin_slice(call):  # type: ignore[no-untyped-def]
    """Begin a slice of a `LongCall`; return its address, or 0 where no slice has an end."""
    if not entry(call, CALL.clock):
        return 0
    set_entry(call, CALL.slice_end, _now(call) + entry(call, CALL.slice_nanoseconds))
    return call


@subroutine()
def slice_is_over(call):  # type: ignore[no-untyped-def]
    """Whether it is time to look for signals."""
    return _now(call) >= entry(call, CALL.slice_end)
