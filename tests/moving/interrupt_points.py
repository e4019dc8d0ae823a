"""Raises an interrupt at every instruction of a module where Python may do so, one after the other."""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType, ModuleType
from typing import Any


class Interrupt(KeyboardInterrupt):
    """What is raised, and nothing else raises."""


@cache
def _names(code: CodeType) -> dict[int, str]:
    return {one.offset: one.opname for one in dis.get_instructions(code)}


class _Tracer:
    """Interrupts at one of the points where the interpreter looks for signals.

    These are the beginnings of functions, jumps backwards, and the ends of calls.
    """

    def __init__(self, module: ModuleType, point: int) -> None:
        self._file, self._left = module.__file__, point
        self._last: dict[int, str] = {}
        self.place: tuple[str, int] | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            name = _names(frame.f_code)[frame.f_lasti]
            is_point = name.startswith("JUMP_BACKWARD") or self._last.get(id(frame), "").startswith("CALL")
            self._last[id(frame)] = name
        else:
            is_point = event == "call"
        if event == "exception":
            self._last.pop(id(frame), None)
        if is_point:
            if self._left == 0:
                self.place = frame.f_code.co_name, frame.f_lineno
                self._left = -1
                raise Interrupt
            self._left -= 1
        return self


def interrupted_everywhere(call: Callable[[], object], module: ModuleType) -> Iterator[tuple[str, int]]:
    """Interrupt `call` at each point in `module`; yield after each where it was: a function and a line.

    The interrupt has to come out of `call`.
    """
    for point in itertools.count():
        tracer, before = _Tracer(module, point), sys.gettrace()
        raised = False
        sys.settrace(tracer)
        try:
            call()
        except Interrupt:
            raised = True
        finally:
            sys.settrace(before)
        if tracer.place is None:
            return
        assert raised, f"lost at {tracer.place}"
        yield tracer.place
