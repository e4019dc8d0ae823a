"""Constants of casts that planner and kernels share: conversion codes, and the geometry of a task."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import CODE_NUMBERS, LINE_BYTES, places

#: How source elements are read: as one of these types, or as a byte that indexes a table of 256 results.
SOURCES = ("byte", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f16", "bf16", "f32", "f64")

#: How results are written: "byte" to "eight bytes", entries of the table that a byte indexes; "checked byte", the same
#: with `MISFIT_BIT` set where the target cannot hold the value; "code", an integer of at most 8 bits; "narrow", a float
#: of at most 8 bits, from a table indexed by the upper 16 bits of an f32; or one of the types below.
TARGETS = (
    *("byte", "two bytes", "four bytes", "eight bytes", "checked byte", "code", "narrow", "pred"),
    *(f"{sign}{bits}" for bits in (16, 32, 64) for sign in "su"),
    *("f16", "bf16", "f32", "f64"),
)
_LOOKED_UP = {1: "byte", 2: "two bytes", 4: "four bytes", 8: "eight bytes"}

#: Set in an entry of the table of a "checked byte" where the target cannot hold the value.
MISFIT_BIT = 0x80
#: Entries of the table that a byte indexes.
BYTE_RESULTS = 256


def conversion_code(source: str, target: str) -> int:
    """Return the number of a conversion, for which its kernel is specialised.

    Conversions of integers to the same or a smaller width share one number whatever the signs are; those to a larger
    width share one whatever the sign of the result is.

    Parameters
    ----------
    source, target : str
        One of `SOURCES` and one of `TARGETS`; as `target` also an integer of at most 8 bits, which is a "code".

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
    """Return the source and the target of a conversion's number."""
    return SOURCES[code // len(TARGETS)], TARGETS[code % len(TARGETS)]


def counter_place(source: str, target: str) -> int | None:
    """Return the byte offset in the table of the counter of vectors with misfits; None where a conversion has none."""
    if target == "checked byte":
        return BYTE_RESULTS
    return 8 * CODE_NUMBERS if target == "code" and source[0] in "su" else None


def bytes_read(source: str) -> int:
    """Return the bytes that are read for an element of a source.

    Examples
    --------
    >>> bytes_read("byte"), bytes_read("bf16"), bytes_read("u64")
    (1, 2, 8)
    """
    return 1 if source == "byte" else int(source.lstrip("bsuf")) // 8


def bytes_written(target: str) -> int:
    """Return the bytes that are written for an element of a target.

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
    """Return the target whose results are table entries of `nbytes` bytes."""
    return _LOOKED_UP[nbytes]


class CastGeometry(NamedTuple):
    """The runs of elements that a task converts; strides are in bytes.

    Attributes
    ----------
    elements, source_stride, target_stride : int
        The elements of a run, and their strides.
    runs, run_source_stride, run_target_stride : int
        The number of runs, and their strides.
    is_dense : int
        Whether the elements of a run are contiguous on both sides.
    ahead : int
        Prefetch distance in bytes, where the run is dense.
    streams : int
        Whether whole cache lines of the target are written with non-temporal stores.
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


CAST = places(CastGeometry)

#: Elements in a vector of a conversion kernel.
CAST_LANES = 16


def elements_at_once(code: int) -> int:
    """Return how many elements a kernel converts per step: whole vectors, and whole cache lines of both sides.

    Examples
    --------
    >>> elements_at_once(conversion_code("f32", "bf16")), elements_at_once(conversion_code("f64", "f32"))
    (32, 16)
    """
    source, target = names_of(code)
    return max(LINE_BYTES // min(bytes_read(source), bytes_written(target)), CAST_LANES)
