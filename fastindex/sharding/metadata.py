"""The operation that a sharding originates from: ``OpMetadata`` in ``xla/xla_data.proto``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastindex.core.wire import Fields, bytes_field, int_field, packed_field

Value = str | int | tuple[int, ...]

#: The field number and type of each attribute that XLA prints.
ATTRIBUTES: dict[str, tuple[int, type]] = {
    "op_type": (1, str),
    "op_name": (2, str),
    "source_file": (3, str),
    "source_line": (4, int),
    "profile_type": (5, tuple),
    "deduplicated_name": (12, str),
    "stack_frame_id": (15, int),
    "scheduling_name": (16, str),
    "source_end_line": (17, int),
    "source_column": (18, int),
    "source_end_column": (19, int),
}


@dataclass(frozen=True, slots=True)
class OpMetadata:
    """Attributes of the operation that a sharding originates from: (name, value) pairs in field number order.

    Examples
    --------
    >>> OpMetadata((("op_name", "jit(f)/add"), ("source_line", 3)))
    OpMetadata(attributes=(('op_name', 'jit(f)/add'), ('source_line', 3)))
    """

    attributes: tuple[tuple[str, Value], ...] = ()

    def value(self, name: str) -> str:
        """Return a text attribute; "" if it is missing."""
        return next((value for attribute, value in self.attributes if attribute == name and isinstance(value, str)), "")

    def to_proto(self) -> bytes:
        """Serialise as an ``OpMetadata``; zeros and empty strings are omitted."""
        written = []
        for name, value in self.attributes:
            number, _ = ATTRIBUTES[name]
            if isinstance(value, str):
                written.append(bytes_field(number, value.encode(errors="replace")) if value else b"")
            elif isinstance(value, int):
                written.append(int_field(number, value))
            else:
                written.append(packed_field(number, value))
        return b"".join(written)


def metadata_from_proto(data: bytes) -> OpMetadata:
    """Parse a serialised ``OpMetadata``; fields that XLA does not print are skipped.

    Raises
    ------
    FastIndexError
        The bytes are not a valid proto.
    """
    fields = Fields(data, "OpMetadata")
    attributes: list[tuple[str, Value]] = []
    for name, (number, kind) in ATTRIBUTES.items():
        value: Value
        if kind is str:
            messages = fields.messages(number)
            value = messages[-1].decode(errors="replace") if messages else ""
        else:
            value = fields.integer(number) if kind is int else tuple(fields.integers(number))
        if value:
            attributes.append((name, value))
    return OpMetadata(tuple(attributes))


#: Reductions of an unreduced sharding; the index is the number in a ``NamedShardingProto``.
REDUCTIONS = ("sum", "max", "min")

_REDUCTION = "sdy::reduction_op"


def reduction_in(metadata: Sequence[OpMetadata]) -> str:
    """Return the last reduction named in metadata, where XLA stores it since jaxlib 0.12; "sum" by default.

    Examples
    --------
    >>> reduction_in([OpMetadata((("op_type", "sdy::reduction_op"), ("op_name", "MAX")))])
    'max'
    """
    names = [item.value("op_name") for item in metadata if item.value("op_type") == _REDUCTION]
    return next((name.lower() for name in reversed(names) if name in ("MAX", "MIN")), "sum")


def with_reduction(metadata: Sequence[OpMetadata], reduction: str | None) -> list[OpMetadata]:
    """Return metadata with one reduction item, placed last; without any for None."""
    others = [item for item in metadata if item.value("op_type") != _REDUCTION]
    if reduction is None:
        return others
    return [*others, OpMetadata((("op_type", _REDUCTION), ("op_name", reduction.upper())))]


def ordered_metadata(attributes: dict[str, Value]) -> OpMetadata:
    """Return metadata with its attributes in field number order."""
    return OpMetadata(tuple((name, attributes[name]) for name in ATTRIBUTES if name in attributes))
