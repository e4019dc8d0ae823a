"""Read a profile of JAX or XLA, ``*.xplane.pb``: its modules, and the time of each instruction.

======== =======================================================================================
XSpace   1: planes
XPlane   2: name, 3: lines, 4: event_metadata (a map), 5: stat_metadata (a map)
XLine    2: name, 4: events
XEvent   1: metadata_id, 3: duration_ps, 4: stats
XStat    1: metadata_id; 3: uint64, 4: int64, 5: text, 6: bytes, 7: the name of a stat as text
======== =======================================================================================

The plane ``/host:metadata`` has one event_metadata per module, with ``Hlo Proto`` and ``program_id`` among its stats.
On CPUs and GPUs an event names its instruction in the stat ``hlo_op`` and its program in ``program_id``. On TPUs the
events of the lines ``XLA Ops`` and ``Async XLA Ops`` have metadata whose name is the instruction's text,
``%copy.1 = ...``, and whose stats contain the program. An asynchronous copy is in both lines; the second has the time
from start to done.

Sources: ``tsl/profiler/protobuf/xplane.proto``, ``xla/tsl/profiler/utils/xplane_schema.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fastindex.core.wire import Fields, read_fields, read_varint, varint
from fastindex.errors import FastIndexError
from fastindex.hlo.read.protos import Measured, ModuleProto, Profile, module_of_proto

_METADATA_PLANE = "/host:metadata"
_MODULES_LINE = "XLA Modules"
#: Lines of a TPU plane whose events are instructions; for an instruction in both, the later line counts.
_OP_LINES = ("XLA Ops", "Async XLA Ops")
_INSTRUCTION = re.compile(r"%?([\w.\-]+) = ")
#: Name of a program event: the module's name, and the program's number in parentheses.
_PROGRAM = re.compile(r".*\((-?\d+)\)$", re.DOTALL)

Key = tuple[int, str]


@dataclass(slots=True)
class _Stats:
    """The stats of an event that are used here."""

    program: int | None = None
    instruction: str = ""
    run: int | None = None
    device: int = 0
    picoseconds: int | None = None
    proto: bytes = b""


class _Plane:
    """A plane, with its tables of stat names and event metadata."""

    def __init__(self, data: bytes) -> None:
        fields = Fields(data, "XPlane")
        self.name = _text(fields.message(2))
        self.lines = fields.messages(3)
        self._texts: dict[int, str] = {}
        for entry in fields.messages(5):
            number, value = _entry(entry)
            self._texts[number] = _text(value.message(2))
        self.events = dict(map(_entry, fields.messages(4)))
        named = {text: number for number, text in self._texts.items()}
        hlo_op = named.get("hlo_op")
        #: First bytes of the stat that names an instruction; None if no event has this stat.
        self.mark = b"\x08" + varint(hlo_op) if hlo_op else None

    def stats(self, serialized: list[bytes]) -> _Stats:
        """Read the stats of an event or of its metadata."""
        found = _Stats()
        for item in serialized:
            fields = Fields(item, "XStat")
            match self._texts.get(fields.integer(1)):
                case "program_id":
                    found.program = fields.integer(3) or fields.integer(4)
                case "hlo_op":
                    found.instruction = _text(fields.message(5)) or self._texts.get(fields.integer(7), "")
                case "run_id":
                    found.run = fields.integer(3) or fields.integer(4)
                case "device_ordinal":
                    found.device = fields.integer(3) or fields.integer(4)
                case "device_duration_ps":
                    found.picoseconds = fields.integer(3) or fields.integer(4)
                case "Hlo Proto" | "hlo_proto":
                    found.proto = fields.message(6) or b""
        return found


@dataclass(slots=True)
class _Times:
    """Totals over the events of all planes."""

    totals: dict[Key, list[int]] = field(default_factory=dict)
    runs: dict[int, set[tuple[str, int, int]]] = field(default_factory=dict)
    modules: dict[int, int] = field(default_factory=dict)

    def add(self, key: Key, picoseconds: int, count: int) -> None:
        total = self.totals.setdefault(key, [0, 0])
        total[0] += picoseconds
        total[1] += count


def modules_of_profile(data: bytes) -> list[ModuleProto]:
    """Return the modules of a profile, each with its measured times.

    Raises
    ------
    FastIndexError
        The profile is damaged, or contains no module.
    """
    modules: dict[int, bytes] = {}
    times = _Times()
    for number, value in read_fields(data):
        if number != 1 or not isinstance(value, bytes):
            continue
        plane = _Plane(value)
        if plane.name == _METADATA_PLANE:
            modules.update(_protos(plane))
        else:
            _add_plane(plane, times)
    if not modules:
        raise FastIndexError(
            "a profile without HLO modules: XLA writes those of the programs that run while it is recorded; "
            "record it again around a call, with jax.profiler.trace"
        )
    by_program: dict[int, dict[str, Measured]] = {}
    for (program, instruction), (picoseconds, events) in times.totals.items():
        by_program.setdefault(program, {})[instruction] = Measured(picoseconds, events)
    found = []
    for program, proto in modules.items():
        module = module_of_proto(proto, "hlo")
        runs = times.modules.get(program, 0) or len(times.runs.get(program, ()))
        found.append(ModuleProto(module.serialized, module.assigned, Profile(runs, by_program.get(program, {}))))
    return found


def _protos(plane: _Plane) -> Iterator[tuple[int, bytes]]:
    """Yield the program numbers and HloProtos of the metadata plane."""
    for number, metadata in plane.events.items():
        stats = plane.stats(metadata.messages(5))
        if stats.proto:
            yield (number if stats.program is None else stats.program), stats.proto


def _add_plane(plane: _Plane, times: _Times) -> None:
    """Add the events of a plane to the totals."""
    is_tpu = plane.name.startswith("/device:TPU:")
    lines: dict[str, list[bytes]] = {}
    for item in plane.lines:
        fields = Fields(item, "XLine")
        lines.setdefault(_text(fields.message(2)), []).extend(fields.messages(4))
    if not is_tpu:
        if plane.mark is not None:
            for events in lines.values():
                _add_named_events(plane, events, times)
        return
    for event in lines.get(_MODULES_LINE, ()):
        metadata = plane.events.get(_number_of(event))
        program = _PROGRAM.match(_text(metadata.message(2))) if metadata is not None else None
        if program is not None:
            number = _signed(int(program.group(1)))
            times.modules[number] = times.modules.get(number, 0) + 1
    known: dict[int, Key | None] = {}
    found: dict[Key, list[int]] = {}
    for name in _OP_LINES:
        found |= _instruction_times(plane, lines.get(name, []), known)
    for key, (picoseconds, count) in found.items():
        times.add(key, picoseconds, count)


def _instruction_times(plane: _Plane, events: list[bytes], known: dict[int, Key | None]) -> dict[Key, list[int]]:
    """Sum the events of one line of a TPU plane by program and instruction."""
    found: dict[Key, list[int]] = {}
    for event in events:
        number = _number_of(event)
        if number not in known:
            known[number] = _key_of(plane, number)
        key = known[number]
        if key is None:
            continue
        fields = Fields(event, "XEvent")
        picoseconds = plane.stats(fields.messages(4)).picoseconds
        total = found.setdefault(key, [0, 0])
        total[0] += fields.integer(3) if picoseconds is None else picoseconds
        total[1] += 1
    return found


def _key_of(plane: _Plane, number: int) -> Key | None:
    """Return the program and the instruction named by an event's metadata; None if there are none."""
    metadata = plane.events.get(number)
    name = _INSTRUCTION.match(_text(metadata.message(2))) if metadata is not None else None
    if metadata is None or name is None:
        return None
    program = plane.stats(metadata.messages(5)).program
    return None if program is None else (program, name.group(1))


def _add_named_events(plane: _Plane, events: list[bytes], times: _Times) -> None:
    """Add the events whose own stats name an instruction and a program."""
    mark = plane.mark or b""
    for event in events:
        # Most events are Python calls on the host: skip them without parsing.
        if mark not in event:
            continue
        fields = Fields(event, "XEvent")
        stats = plane.stats(fields.messages(4))
        if stats.instruction and stats.program is not None:
            times.add((stats.program, stats.instruction), fields.integer(3), 1)
            if stats.run is not None:
                times.runs.setdefault(stats.program, set()).add((plane.name, stats.device, stats.run))


def _entry(entry: bytes) -> tuple[int, Fields]:
    """Parse one entry of a map from numbers to messages."""
    fields = Fields(entry, "map entry")
    return fields.integer(1), Fields(fields.message(2) or b"", "XPlane metadata")


def _number_of(event: bytes) -> int:
    """Return the metadata_id of an event, which is its first field; 0 if absent."""
    return read_varint(event, 1)[0] if event[:1] == b"\x08" else 0


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


def _signed(number: int) -> int:
    """Convert an unsigned 64-bit number to signed, as integers are read from the wire format."""
    number &= 2**64 - 1
    return number - 2**64 if number >> 63 else number
