"""Probe a packer with code words: the source bit of each result bit, or inputs that disprove a permutation of bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.core.foreign_arrays import host_array
from fastindex.errors import ArgumentTypeError

Bits = NDArray[np.uint8]
Places = NDArray[np.int64]
Packer = Callable[[Any], Any]


@dataclass(frozen=True)
class Probe:
    """The source bit of each bit of the result.

    Attributes
    ----------
    places : int64 array
        -1 for padding.
    inverted : bool array
    has_ones : bool
        Whether padding holds ones.
    """

    places: Places
    inverted: NDArray[np.bool_]
    has_ones: bool = False


@dataclass(frozen=True)
class Disproof:
    """The reason why a packer is no permutation of bits, and the input arrays that show it.

    Attributes
    ----------
    reason : str
    inputs : tuple of arrays
    """

    reason: str
    inputs: tuple[NDArray[Any], ...]


class _Calls:
    """A packer wrapped to take and return vectors of bits."""

    def __init__(self, packer: Packer, sizes: Sequence[int], kind: np.dtype[Any], width: int) -> None:
        self.packer, self.sizes, self.kind, self.width = packer, tuple(sizes), kind, width
        self.total = math.prod(sizes) * width

    def array(self, word: NDArray[Any]) -> NDArray[Any]:
        """Return the array whose codes consist of these bits, in order."""
        weights = np.uint64(1) << np.arange(self.width, dtype=np.uint64)
        codes = (word.reshape(-1, self.width).astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
        native = codes.astype(f"u{self.kind.itemsize}").view(self.kind.newbyteorder("="))
        values: NDArray[Any] = native.astype(self.kind, copy=False)
        return values.reshape(self.sizes)

    def result(self, word: NDArray[Any]) -> Bits:
        returned = self.packer(self.array(word))
        packed = np.ascontiguousarray(host_array(returned))
        if packed.dtype.hasobject:
            raise ArgumentTypeError(
                f"a packer returns an array of numbers, this one returned {type(returned).__name__}"
            )
        return np.unpackbits(packed.reshape(-1).view(np.uint8), bitorder="little")

    def disproof(self, reason: str, *words: NDArray[Any]) -> Disproof:
        return Disproof(reason, tuple(map(self.array, words)))

    def name(self, bit: int) -> str:
        index = tuple(int(i) for i in np.unravel_index(bit // self.width, self.sizes))
        return f"bit {bit % self.width} of the element at {index}"


def probed(packer: Packer, sizes: Sequence[int], kind: np.dtype[Any], width: int) -> Probe | Disproof:
    """Return the source bit of each bit of the result, or a proof that the packer is no permutation of bits.

    Parameters
    ----------
    packer : callable
    sizes : sequence of int
        Of the array, which must not be empty.
    kind : dtype
        An integer type, or bool.
    width : int
        The bits of a code: the low `width` bits of each element are used.

    Raises
    ------
    ArgumentTypeError
        The packer returns no array of numbers.

    Examples
    --------
    >>> probed(lambda codes: codes[::-1], (2,), np.dtype(np.uint8), 1).places[:9].tolist()
    [1, -1, -1, -1, -1, -1, -1, -1, 0]
    >>> print(probed(lambda codes: codes[:1], (2,), np.dtype(np.uint8), 1).reason)
    bit 0 of the element at (1,) is lost
    """
    calls = _Calls(packer, sizes, kind, width)
    numbers = np.arange(1, calls.total + 1)
    words = [(numbers >> step & 1).astype(np.uint8) for step in range(calls.total.bit_length())]
    nothing = np.zeros(calls.total, np.uint8)
    zeros, ones = calls.result(nothing), calls.result(1 - nothing)
    pairs = [(calls.result(word), calls.result(1 - word)) for word in words]
    for word, pair in zip([1 - nothing, *words], [(ones, ones), *pairs], strict=True):
        for given, one in zip((word, 1 - word), pair, strict=True):
            if one.shape != zeros.shape:
                return calls.disproof("the size of the result depends on what the array holds", nothing, given)
    inverted, constant = (zeros == 1) & (ones == 0), zeros == ones
    found = np.zeros(len(zeros), np.int64)
    for step, (one, other) in enumerate(pairs):
        found |= (one ^ inverted).astype(np.int64) << step
        wrong = np.flatnonzero(np.where(constant, (one != zeros) | (other != zeros), one == other))
        if len(wrong):
            reason = _no_bit(int(wrong[0]), (zeros, ones, one, other))
            return calls.disproof(reason, nothing, 1 - nothing, words[step], 1 - words[step])
    beyond = np.flatnonzero(~constant & ((found < 1) | (found > calls.total)))
    if len(beyond):
        reason = f"{_bit(int(beyond[0]))} is not a bit of the input: it is as if the input had more bits"
        return calls.disproof(reason, nothing, 1 - nothing, *words)
    places = np.where(constant, -1, found - 1)
    has_ones = bool((zeros & constant).any())
    disproof = _miscounted(calls, places) or _with_all_codes(calls, places, inverted, zeros)
    return disproof or Probe(places, inverted, has_ones)


def _bit(at: int) -> str:
    return f"bit {at % 8} of byte {at // 8} of the result"


def _no_bit(at: int, results: Sequence[Bits]) -> str:
    zeros, ones, one, other = (int(result[at]) for result in results)
    return (
        f"{_bit(at)} is not a bit of the input: with all bits 0 it is {zeros}, with all bits 1 it is {ones}, and no "
        f"single bit does that and is {one} and {other} for a word and its complement"
    )


def _miscounted(calls: _Calls, places: Places) -> Disproof | None:
    """Return the proof that a source bit is lost or duplicated; None if each occurs once."""
    counts = np.bincount(places[places >= 0], minlength=calls.total)
    if (counts == 1).all():
        return None
    at = int(np.flatnonzero(counts != 1)[0])
    word = np.zeros(calls.total, np.uint8)
    alone = word.copy()
    alone[at] = 1
    how = "is lost" if counts[at] == 0 else f"is in the result {counts[at]} times"
    return calls.disproof(f"{calls.name(at)} {how}", word, alone)


def _with_all_codes(calls: _Calls, places: Places, inverted: NDArray[np.bool_], zeros: Bits) -> Disproof | None:
    """Return a counterexample among arrays of all codes, as code words contain few of them; None if there is none."""
    for word in _words_of_all_codes(calls):
        expected = np.where(places < 0, zeros, word[places] ^ inverted)
        got = calls.result(word)
        if got.shape != expected.shape:
            return calls.disproof("the size of the result depends on what the array holds", word)
        wrong = np.flatnonzero(got != expected)
        if len(wrong):
            at = int(wrong[0])
            of = calls.name(int(places[at])) if places[at] >= 0 else "padding"
            return calls.disproof(f"{_bit(at)} is {of} for all code words, and is not for other codes", word)
    return None


def _words_of_all_codes(calls: _Calls) -> Iterator[NDArray[np.uint8]]:
    """Yield two arrays of random codes; then arrays with every code, if codes have at most a byte."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        yield rng.integers(0, 2, calls.total, dtype=np.uint8)
    if calls.width <= 8:
        bits = np.arange(calls.width)
        for first in range(0, 1 << calls.width, calls.total // calls.width):
            codes = first + np.arange(calls.total // calls.width)
            yield (codes[:, None] >> bits & 1).reshape(-1).astype(np.uint8)
