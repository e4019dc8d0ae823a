"""Protos that contain HLO modules: recognize the message type by its first bytes, and extract the modules.

========================== ===================================================================
`HloModuleProto`           1: name, 2: name of the entry, 3: computations, 15: device_assignment
`HloProto`                 1: HloModuleProto, 3: BufferAssignmentProto (``*.hlo.pb``)
`HloSnapshot`              1: HloProto (``*.snapshot.pb``)
`XSpace`                   1: planes (``*.xplane.pb``), a profile
========================== ===================================================================

A profile has modules, and the time of each instruction:

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

Sources: ``xla/service/hlo.proto``, ``tsl/profiler/protobuf/xplane.proto``, ``xla/tsl/profiler/utils/xplane_schema.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fastindex.core.wire import Fields, read_fields, read_varint, varint
from fastindex.errors import FastIndexError
from fastindex.hlo.assignments import memory_of_serialized
from fastindex.hlo.totals import AssignedMemory

Form = Literal["module", "hlo", "snapshot", "profile"]

#: Number of bytes that `form_of` needs; module names are shorter.
HEAD_NBYTES = 1 << 16
#: Index: the number of messages around the one that has the module's name.
_FORMS: tuple[Form, ...] = ("module", "hlo", "snapshot")
_NAME = re.compile(rb"[^\x00-\x20\x7f]+")
_PLANE = re.compile(rb"[^\x00-\x1f\x7f]{1,200}")
_MODULE_IN_PROTO, _ASSIGNMENT_IN_PROTO, _ASSIGNMENT_OF_DEVICES = 1, 3, 15


@dataclass(frozen=True, slots=True)
class Measured:
    """Profiled time of an instruction.

    Attributes
    ----------
    picoseconds : int
        Total over its events.
    events : int
    """

    picoseconds: int
    events: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Profiled times of a program.

    Attributes
    ----------
    runs : int
        Number of runs of the program, on all devices; 0 if the profile does not contain it.
    instructions : mapping of str to Measured
    """

    runs: int
    instructions: Mapping[str, Measured] = field(default_factory=dict)

    def nanoseconds(self, instruction: str, trips: int | None) -> int | None:
        """Return the time of an instruction per run of the program; None if it was not measured.

        Parameters
        ----------
        instruction : str
        trips : int or None
            Executions of the instruction per run, used if the profile has no number of runs; None stands for 1.

        Examples
        --------
        >>> Profile(2, {"copy.1": Measured(12_000_000, 6)}).nanoseconds("copy.1", None)
        6000
        """
        found = self.instructions.get(instruction)
        if found is None or not found.events:
            return None
        if self.runs:
            return round(found.picoseconds / self.runs / 1000)
        return round(found.picoseconds / found.events * (1 if trips is None else trips) / 1000)


@dataclass(frozen=True, slots=True)
class ModuleProto:
    """A serialized HloModuleProto, with the memory assignment and the profile from the same file.

    Attributes
    ----------
    serialized : bytes
    assigned : AssignedMemory or None
        Memory that XLA assigned, if the file contains it.
    profile : Profile or None
        Measured times, if the file is a profile.
    """

    serialized: bytes
    assigned: AssignedMemory | None = None
    profile: Profile | None = None

    @property
    def partition_count(self) -> int:
        """Number of devices over which arrays are partitioned, as in the text's header; 1 if not given."""
        devices = Fields(self.serialized, "HloModuleProto").message(_ASSIGNMENT_OF_DEVICES)
        return max(Fields(devices, "DeviceAssignmentProto").integer(2), 1) if devices else 1


def form_of(head: bytes) -> Form | None:
    """Return which of these protos starts with the given bytes; None for anything else, such as text.

    Examples
    --------
    >>> form_of(bytes.fromhex("0a016d1201651a00")), form_of(bytes.fromhex("0a080a016d1201651a00"))
    ('module', 'hlo')
    >>> form_of(b"HloModule m")
    """
    at, end = 0, len(head)
    for form in _FORMS:
        if head[at : at + 1] != b"\x0a":
            return _form_of_plane(head, at) if form == "hlo" else None
        try:
            length, begin = read_varint(head, at + 1)
        except FastIndexError:
            return None
        after = head[begin + length : begin + length + 1]
        # The module's name; the entry's name or the computations follow it.
        if _NAME.fullmatch(head, begin, min(begin + max(length, 0), end)) and after in (b"\x12", b"\x1a"):
            return form
        at = begin
    return None


def _form_of_plane(head: bytes, at: int) -> Form | None:
    """Return "profile" if a plane starts here (``1: id, 2: name``; the id may be omitted), else None."""
    try:
        if head[at : at + 1] == b"\x08":
            _, at = read_varint(head, at + 1)
        if head[at : at + 1] != b"\x12":
            return None
        length, at = read_varint(head, at + 1)
    except FastIndexError:
        return None
    is_name = length <= len(head) - at and _PLANE.fullmatch(head, at, at + max(length, 0))
    return "profile" if is_name else None


def module_of_proto(data: bytes, form: Form) -> ModuleProto:
    """Return the module of a proto other than a profile.

    Raises
    ------
    FastIndexError
        The proto is damaged, or contains no module.
    """
    if form == "module":
        return ModuleProto(data)
    if form == "snapshot":
        data = Fields(data, "HloSnapshot").message(1) or b""
    fields = Fields(data, "HloProto")
    serialized = fields.message(_MODULE_IN_PROTO)
    if not serialized:
        raise FastIndexError("an HloProto without a module")
    assignment = fields.message(_ASSIGNMENT_IN_PROTO)
    return ModuleProto(serialized, memory_of_serialized(assignment) if assignment else None)


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
