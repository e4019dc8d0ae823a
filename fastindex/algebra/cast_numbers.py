"""What planner and kernel know of casts: which conversion it is, and which runs a task converts."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import CODE_NUMBERS, LINE_BYTES

#: How elements are read: one of these types, or a byte that is looked up in a table of 256 results.
SOURCES = ("byte", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f16", "bf16", "f32", "f64")

#: How results are written: "byte" to "eight bytes", copied from the table of a byte; "checked byte", the same with
#: `MISFIT_BIT` set where the target cannot hold the value; "code", an integer of at most 8 bits; "narrow", a float of
#: at most 8 bits, from a table by the upper 16 bits of an f32; or one of these.
TARGETS = (
    *("byte", "two bytes", "four bytes", "eight bytes", "checked byte", "code", "narrow", "pred"),
    *(f"{sign}{bits}" for bits in (16, 32, 64) for sign in "su"),
    *("f16", "bf16", "f32", "f64"),
)
_LOOKED_UP = {1: "byte", 2: "two bytes", 4: "four bytes", 8: "eight bytes"}

#: In the table of a "checked byte", this bit of a result says that the target does not hold the value.
MISFIT_BIT = 0x80
#: Results of the table of a byte.
BYTE_RESULTS = 256


def conversion_code(source: str, target: str) -> int:
    """Return the number of a conversion, which its kernel is compiled for.

    Integers that keep their low bits have one conversion whatever their signs are, and so have those that get wider
    whatever the sign of the result is.

    Parameters
    ----------
    source, target : str
        Of `SOURCES` and `TARGETS`, or of integers of at most 8 bits, which are codes.

    Examples
    --------
    >>> names_of(conversion_code("f32", "bf16")), names_of(conversion_code("s32", "s4"))
    (('f32', 'bf16'), ('u32', 'code'))
    >>> names_of(conversion_code("s16", "s16")), names_of(conversion_code("s16", "s64"))
    (('u16', 'u16'), ('s16', 'u64'))
    """
    bits = int(target[1:]) if target[0] in "su" else None
    if source[0] in "su" and (bits is not None or target in ("code", "pred")):
        own = int(source[1:])
        if bits is None or bits <= own:
            source = f"u{own}"
        target = target if bits is None else f"u{bits}"
    if bits is not None and bits <= 8:
        target = "code"
    return SOURCES.index(source) * len(TARGETS) + TARGETS.index(target)


def names_of(code: int) -> tuple[str, str]:
    """Return how the elements of a conversion are read, and what is written."""
    return SOURCES[code // len(TARGETS)], TARGETS[code % len(TARGETS)]


def counter_place(source: str, target: str) -> int | None:
    """Return where in the table a conversion counts vectors with integers that are no codes; None where it does not."""
    if target == "checked byte":
        return BYTE_RESULTS
    return 8 * CODE_NUMBERS if target == "code" and source[0] in "su" else None


def bytes_read(source: str) -> int:
    """Return the bytes of an element that is read so.

    Examples
    --------
    >>> bytes_read("byte"), bytes_read("bf16"), bytes_read("u64")
    (1, 2, 8)
    """
    return 1 if source == "byte" else int(source.lstrip("bsuf")) // 8


def bytes_written(target: str) -> int:
    """Return the bytes of an element that is written so.

    Examples
    --------
    >>> bytes_written("two bytes"), bytes_written("narrow"), bytes_written("code"), bytes_written("f64")
    (2, 1, 1, 8)
    """
    for nbytes, name in _LOOKED_UP.items():
        if target == name:
            return nbytes
    return 1 if target in ("checked byte", "code", "narrow", "pred") else int(target.lstrip("bsuf")) // 8


def looked_up(nbytes: int) -> str:
    """Return the name of a result of so many bytes that the table of a byte holds."""
    return _LOOKED_UP[nbytes]


class CastGeometry(NamedTuple):
    """What a task converts: runs of elements, and how many bytes these and the runs are apart on each side.

    Attributes
    ----------
    elements, source_stride, target_stride : int
        Of a run.
    runs, run_source_stride, run_target_stride : int
    is_dense : int
        Whether elements of a run have no gaps on either side.
    ahead : int
        Bytes from an element to the one that is prefetched, where it is dense.
    streams : int
        Whether whole lines of the target go past the cache.
    """

    elements: int
    source_stride: int
    target_stride: int
    runs: int
    run_source_stride: int
    run_target_stride: int
    is_dense: int
    ahead: int
    streams: int


(
    CAST_ELEMENTS,
    CAST_SOURCE_STRIDE,
    CAST_TARGET_STRIDE,
    CAST_RUNS,
    CAST_RUN_SOURCE_STRIDE,
    CAST_RUN_TARGET_STRIDE,
    CAST_IS_DENSE,
    CAST_AHEAD,
    CAST_STREAMS,
) = range(9)

#: Elements of a vector that a kernel converts.
CAST_LANES = 16


def elements_at_once(code: int) -> int:
    """Return how many elements a kernel converts at a time: whole vectors, and whole lines of both sides.

    Examples
    --------
    >>> elements_at_once(conversion_code("f32", "bf16")), elements_at_once(conversion_code("f64", "f32"))
    (32, 16)
    """
    source, target = names_of(code)
    return max(LINE_BYTES // min(bytes_read(source), bytes_written(target)), CAST_LANES)
