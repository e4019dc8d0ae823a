"""Protos that contain HLO modules: recognize the message type by its first bytes, and extract the module.

========================== ===================================================================
`HloModuleProto`           1: name, 2: name of the entry, 3: computations, 15: device_assignment
`HloProto`                 1: HloModuleProto, 3: BufferAssignmentProto (``*.hlo.pb``)
`HloSnapshot`              1: HloProto (``*.snapshot.pb``)
`XSpace`                   1: planes (``*.xplane.pb``), see `profiles`
========================== ===================================================================

Sources: ``xla/service/hlo.proto``, ``tsl/profiler/protobuf/xplane.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fastindex.core.wire import Fields, read_varint
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
