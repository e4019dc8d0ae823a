"""The wire format of protocol buffers: the subset that shapes need.

Source: "Encoding", https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastindex.errors import ArgumentTypeError, FastIndexError

_VARINT, _FIXED64, _LENGTH, _GROUP, _END_GROUP, _FIXED32 = range(6)
_MASK64 = 2**64 - 1


def varint(value: int) -> bytes:
    """Encode an int64 as a varint; negative values take ten bytes.

    Examples
    --------
    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    value &= _MASK64
    if value < 0x80:
        return bytes((value,))
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def int_field(number: int, value: int) -> bytes:
    """Encode an integer field; b"" if the value is 0.

    Examples
    --------
    >>> int_field(2, 11).hex(), int_field(2, 0)
    ('100b', b'')
    """
    return varint(number << 3 | _VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field of bytes, text or a message, even if it is empty.

    Examples
    --------
    >>> bytes_field(5, b"ab").hex()
    '2a026162'
    """
    return varint(number << 3 | _LENGTH) + varint(len(value)) + value


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """Encode a packed repeated integer field; b"" if there are no values.

    Examples
    --------
    >>> packed_field(1, (1, 0)).hex()
    '0a020100'
    """
    packed = b"".join([varint(value) for value in values])
    return bytes_field(number, packed) if packed else b""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint as an int64. Return it and the offset after it.

    Raises
    ------
    FastIndexError
        The data ends inside it, or it is longer than ten bytes.

    Examples
    --------
    >>> read_varint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise FastIndexError(f"not a proto: the bytes end inside a number, at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= _MASK64
            return (value - 2**64 if value >> 63 else value), at
    raise FastIndexError(f"not a proto: a number longer than ten bytes, at byte {at - 10}")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Iterate over the fields: the number and the value, an int or the bytes of text, messages and packed values.

    Groups (the only nested fields without a length) are skipped.

    Raises
    ------
    FastIndexError
        The data is not a message.

    Examples
    --------
    >>> list(read_fields(bytes.fromhex("100b2a026162")))
    [(2, 11), (5, b'ab')]
    """
    at = 0
    groups: list[int] = []
    while at < len(data):
        begin = at
        tag, at = read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if not 1 <= number < 2**29:
            raise FastIndexError(f"not a proto: field number {number}, at byte {begin}")
        value: int | bytes
        if wire_type == _VARINT:
            value, at = read_varint(data, at)
        elif wire_type in (_FIXED32, _FIXED64, _LENGTH):
            length = 4 if wire_type == _FIXED32 else 8
            if wire_type == _LENGTH:
                length, at = read_varint(data, at)
            if not 0 <= length <= len(data) - at:
                raise FastIndexError(
                    f"not a proto, or cut short: field {number} at byte {begin} needs {length} bytes,"
                    f" {len(data) - at} are left"
                )
            value = data[at : at + length]
            at += length
        elif wire_type == _GROUP:
            groups.append(number)
            continue
        elif wire_type == _END_GROUP and groups and groups[-1] == number:
            groups.pop()
            continue
        else:
            raise FastIndexError(f"not a proto: wire type {wire_type} of field {number}, at byte {begin}")
        if not groups:
            # Fixed-width values are passed on as bytes: none of our fields has one.
            yield number, value
    if groups:
        raise FastIndexError(f"not a proto, or cut short: group {groups[-1]} does not end")


class Fields:
    """The fields of one message, by number.

    Examples
    --------
    >>> fields = Fields(bytes.fromhex("100b1a020305"), "ShapeProto")
    >>> fields.integer(2), fields.integers(3), fields.message(5)
    (11, [3, 5], None)
    """

    __slots__ = ("_message_name", "_values")

    def __init__(self, data: bytes, message_name: str) -> None:
        self._message_name = message_name
        self._values: dict[int, list[int | bytes]] = {}
        for number, value in read_fields(data):
            self._values.setdefault(number, []).append(value)

    def _mistyped(self, number: int) -> FastIndexError:
        return FastIndexError(f"not a {self._message_name}: field {number} has the wrong wire type")

    def integer(self, number: int) -> int:
        """Return an integer field: the last value, or 0 if the field is absent."""
        value = self._values.get(number, [0])[-1]
        if not isinstance(value, int):
            raise self._mistyped(number)
        return value

    def integers(self, number: int) -> list[int]:
        """Return a repeated integer field, packed or not."""
        integers: list[int] = []
        for value in self._values.get(number, ()):
            if isinstance(value, int):
                integers.append(value)
                continue
            at = 0
            while at < len(value):
                item, at = read_varint(value, at)
                integers.append(item)
        return integers

    def messages(self, number: int) -> list[bytes]:
        """Return a repeated message or text field."""
        messages: list[bytes] = []
        for value in self._values.get(number, ()):
            if not isinstance(value, bytes):
                raise self._mistyped(number)
            messages.append(value)
        return messages

    def message(self, number: int) -> bytes | None:
        """Return a message field, or None; several are merged by concatenation, as the format defines."""
        messages = self.messages(number)
        return b"".join(messages) if messages else None


def bytes_of_message(message: object) -> bytes:
    """Return the bytes of a serialised message or of a message object of the protobuf library.

    Raises
    ------
    ArgumentTypeError
        `message` is neither.

    Examples
    --------
    >>> bytes_of_message(bytearray(b"ab"))
    b'ab'
    """
    if isinstance(message, bytes | bytearray | memoryview):
        return bytes(message)
    serialize = getattr(message, "SerializeToString", None)
    if serialize is None:
        raise ArgumentTypeError(f"expected the bytes of a proto, or a message object, got {type(message).__name__}")
    data = serialize()
    if not isinstance(data, bytes):
        raise FastIndexError(f"SerializeToString of {type(message).__name__} did not return bytes")
    return data
