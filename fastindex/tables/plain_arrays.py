"""What a native call expects of the two arrays that it is handed as Python objects, and what it then runs."""

from __future__ import annotations

from typing import NamedTuple


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
