"""Find the layout that a packer writes by probing it with code words: a split of dimensions, and an order of bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.lazy import lazy_property
from fastindex.weights.found_formats import (
    MOST_BITS,
    FoundFormat,
    checked_header,
    found_format_of,
    found_growth,
    is_sizes,
    shown,
)
from fastindex.weights.gathers import GatherPlan, units_of
from fastindex.weights.probing import BitOrder, Disproof, Packer, found_order, probed
from fastindex.weights.repack_arguments import checked_bits, checked_sizes

#: The most bits of a packed array, padding included, that a file may claim.
_MOST_PLACES = 1 << 26
#: What a discovery and a format share.
_OF_LAYOUTS = [one.name for one in fields(FoundFormat) if one.name != "name"]
#: The name of a discovered format in messages.
NAME = "the discovered format"


@dataclass(frozen=True)
class Discovery:
    """The layout that a packer writes, or the reason why there is none.

    Attributes
    ----------
    layout : str or None
        XLA's text of the array after its dimensions are split; None if there is none, and `reason` says why. An array
        of bits, ``u1``, if the bits of a code are not adjacent or no element type has its width: the bits of a code are
        then the last dimension, or part of dimension `stream`.
    split : tuple of tuples of int
        The parts of each dimension, most major first.
    order : tuple of int
        The parts of all dimensions, numbered in order, the most minor first in memory.
    flipped_bits : int
        Mask of the bits of a code that are stored inverted.
    padding : int
        The number of padding bits in the result.
    reason : str or None
        Why there is no layout, shown at one bit of the result or of the array.
    inputs : tuple of arrays
        The inputs that prove it no permutation of bits; empty if `reason` is about the order of permuted bits.
    places : int64 array
        The source bit of each bit of the result, -1 for padding.
    confirmed : tuple of tuples of int
        Other sizes for which the layout was confirmed.
    advice : str or None
        If the layout was not confirmed: the result at twice the sizes, and which sizes to try.
    stream : int or None
        A dimension whose codes form one stream of bits, because codes cross words: `layout` and `split` count that
        dimension in bits.
    unit_order : tuple of int
        Position of bit i in a unit of ``len(unit_order)`` bits, if the most minor bits are in no order of digits, as
        with the first code in the high half of a byte. `layout` describes the bits as if they were in order in units.
    backwards : tuple of int
        The parts that count down, numbered as in `order`: as the first one of ``(2, n)`` where halves are swapped.
        `layout` describes the array as if they counted up.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> found = fi.weights.discover(lambda codes: codes.reshape(4, 2, 4).transpose(1, 0, 2), (4, 8), np.uint8)
    >>> found.layout, found.split, found.flipped_bits, found.padding
    ('u8[4,2,4]{2,0,1}', ((4,), (2, 4)), 0, 0)
    """

    layout: str | None = None
    split: tuple[tuple[int, ...], ...] = ()
    order: tuple[int, ...] = ()
    flipped_bits: int = 0
    padding: int = 0
    reason: str | None = None
    places: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    confirmed: tuple[tuple[int, ...], ...] = ()
    stream: int | None = None
    unit_order: tuple[int, ...] = ()
    inputs: tuple[NDArray[Any], ...] = field(default=(), repr=False)
    advice: str | None = None
    shape: tuple[int, ...] = ()
    bits: int = 0
    dtype: str = ""
    grows: tuple[int, ...] = ()
    has_ones: bool = False
    backwards: tuple[int, ...] = ()

    def plan(self) -> GatherPlan:
        """Return the permutation as a table, for arrays of `shape`; for one without a layout, too.

        Raises
        ------
        FastIndexError
            The packer is no permutation of bits, or inverts bits of some codes only.
        UnsupportedError
            Codes of more than 8 bits that are not whole elements.
        """
        self.check_permutation()
        if self.layout is not None and not len(self.places):
            raise FastIndexError(f"a layout was loaded without a table, since repack takes it as it is: {self.layout}")
        return self._table

    @lazy_property
    def _table(self) -> GatherPlan:
        return GatherPlan(self.places, self.shape, self.bits, self.flipped_bits)

    def check_permutation(self) -> None:
        """Raise as `plan` unless this is a permutation that can be moved."""
        if not self.bits:
            raise FastIndexError(f"{NAME} is not moved: {self.reason}")
        if self.bits > 8 and self.bits not in (16, 32, 64):
            raise UnsupportedError(
                f"codes of {self.bits} bits are not moved; discover the packer with codes of 16, 32 or 64 bits, which "
                "are whole elements"
            )

    def to_json(self) -> dict[str, Any]:
        """Return an object of JSON that `from_json` loads: a few lines for a layout, else with a table.

        Raises
        ------
        FastIndexError, UnsupportedError
            As `plan`.

        Examples
        --------
        >>> import fastindex as fi, json, numpy as np
        >>> found = fi.weights.discover(lambda codes: codes.T, (4, 8), np.uint8)
        >>> text = json.dumps(found.to_json())
        >>> codes = np.arange(15, dtype=np.uint8).reshape(3, 5)
        >>> fi.weights.repack(codes, "plain", fi.weights.Discovery.from_json(json.loads(text)))[:3]
        array([ 0,  5, 10], dtype=uint8)
        """
        self.check_permutation()
        common = {
            "padding": self.padding,
            "confirmed": [list(sizes) for sizes in self.confirmed],
            "advice": self.advice,
            "reason": self.reason,
        }
        if self.layout is not None:
            return {**self.as_format().to_json(), **common}
        width, table = units_of(self.places, self.shape, self.bits)
        header = {"shape": list(self.shape), "bits": self.bits, "dtype": self.dtype, "layout": None}
        table_fields = {"unit_bits": width, "places": table.tolist(), "flipped_bits": self.flipped_bits}
        return {**header, **table_fields, "has_ones": self.has_ones, **common}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Discovery:
        """Return the discovery in an object of JSON that `to_json` made; `places` of a layout are left out.

        Raises
        ------
        FastIndexError
            It is none, as files of unknown origin may be.
        """
        if not isinstance(given, Mapping):
            raise FastIndexError(f"a discovery must be a mapping, got {shown(given)}")
        advice, reason, confirmed = given.get("advice"), given.get("reason"), given.get("confirmed", [])
        padding = given.get("padding", 0)
        if not isinstance(confirmed, list) or not all(is_sizes(sizes, 1) for sizes in confirmed):
            raise _not_loaded(f"confirmed must be a list of shapes, got {shown(confirmed)}")
        if not all(text is None or isinstance(text, str) for text in (advice, reason)) or not is_sizes([padding], 0):
            raise _not_loaded("advice and reason are texts, and padding a number of bits")
        known = cls(padding=padding, advice=advice, reason=reason, confirmed=tuple(map(tuple, confirmed)))
        if given.get("layout") is None:
            return _with_table(known, given)
        one = found_format_of(given, "discovered")
        same = {name: getattr(one, name) for name in _OF_LAYOUTS}
        return replace(known, order=Shape.parse(one.layout).layout.minor_to_major, **same)

    def as_format(self, name: str = NAME) -> FoundFormat:
        """Return the layout as a format with a name.

        Raises
        ------
        UnsupportedError
            There is no layout.
        """
        if self.layout is None:
            raise UnsupportedError(
                f"{name} is not an order of digits, and only fastindex.weights.repack moves by a table"
            )
        return FoundFormat(name, **{one: getattr(self, one) for one in _OF_LAYOUTS})


def _not_loaded(what: str) -> FastIndexError:
    return FastIndexError(f"no discovery: {what}; write it with Discovery.to_json()")


def _with_table(known: Discovery, given: Mapping[str, Any]) -> Discovery:
    """Return a discovery with the table of an object of JSON.

    Raises
    ------
    FastIndexError
    """
    sizes, bits, dtype, flipped, has_ones = checked_header(given, _not_loaded)
    width, listed = given.get("unit_bits"), given.get("places")
    total = math.prod(sizes) * bits
    if type(width) is not int or not 1 <= width <= bits or total % width:
        raise _not_loaded(f"unit_bits must be a number of bits of which codes consist, got {shown(width)}")
    if listed is None or not is_sizes(listed, -1) or len(listed) * width > _MOST_PLACES or len(listed) * width % 8:
        raise _not_loaded("places must be a list of numbers, of whole bytes")
    table = np.array(listed, np.int64)
    if not np.array_equal(np.sort(table[table >= 0]), np.arange(total // width)):
        raise _not_loaded(f"places has each of 0 to {total // width - 1} once, and -1 for padding")
    whole = np.where(table[:, None] < 0, -1, table[:, None] * width + np.arange(width)).reshape(-1)
    return replace(known, places=whole, flipped_bits=flipped, shape=sizes, bits=bits, dtype=dtype, has_ones=has_ones)


def discover(packer: Packer, shape: Sequence[int], dtype: Any, bits: int | None = None) -> Discovery:
    """Find the layout that a packer writes, or prove that it is not a permutation of bits.

    The packer is called about ``2 log2(bits of the array)`` times with code words: word k holds bit k of the number of
    each source bit, and each word is passed inverted, too. Then follow arrays with all codes of up to a byte, since
    code words contain few of them. Last, twice the size in each dimension is tried: small sizes may hide parts.

    Parameters
    ----------
    packer : callable
        Takes an array of `shape` and `dtype`, and returns an array; its bytes in C order are the result.
    shape : sequence of int
    dtype : dtype
        An integer type.
    bits : int, optional
        Of a code: the number of low bits of each element that are used. By default, all.

    Returns
    -------
    Discovery

    Raises
    ------
    FastIndexError
        An empty array, or one of more than 2**24 bits: a smaller one shows the same layout.
    ArgumentTypeError
        `dtype` is no integer type.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> def pairs(codes):
    ...     return codes[:, 0::2] | codes[:, 1::2] << 4
    >>> fi.weights.discover(pairs, (4, 8), np.uint8, bits=4).layout
    'u4[4,8]{1,0:E(4)}'
    >>> high_first = fi.weights.discover(lambda codes: codes[:, 0::2] << 4 | codes[:, 1::2], (4, 8), np.uint8, bits=4)
    >>> high_first.layout, high_first.unit_order
    ('u4[4,8]{1,0:E(4)}', (4, 5, 6, 7, 0, 1, 2, 3))
    >>> print(fi.weights.discover(lambda codes: codes + 1, (2, 2), np.uint8).reason)
    bit 1 of byte 0 of the result is not a bit of the input: with all bits 0 it is 0, with all bits 1 it is 0, and no \
single bit does that and is 1 and 1 for a word and its complement
    """
    sizes, given = checked_sizes(shape), checked_bits(bits)
    if not callable(packer):
        raise ArgumentTypeError(f"packer must be a function that takes an array of codes, got {packer!r:.200}")
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise ArgumentTypeError(f"dtype must be NumPy's type of a code, such as numpy.uint8, got {dtype!r}") from None
    if kind.kind not in "iub":
        raise ArgumentTypeError(f"codes must be integers, got dtype {kind}")
    width = given or 8 * kind.itemsize
    if not 1 <= width <= 8 * kind.itemsize:
        raise FastIndexError(f"bits must be from 1 to {8 * kind.itemsize} for {kind}, got {bits!r}")
    total = math.prod(sizes) * width
    if not 0 < total <= MOST_BITS:
        raise FastIndexError(
            f"{sizes} has {total} bits; give an array of 1 to {MOST_BITS} bits: small ones show the layout"
        )
    probe = probed(packer, sizes, kind, width)
    if isinstance(probe, Disproof):
        return Discovery(reason=probe.reason, inputs=probe.inputs)
    places = probe.places
    flipped = _flipped(places, probe.inverted, width)
    if isinstance(flipped, str):
        return Discovery(reason=flipped, places=places)
    known = Discovery(
        flipped_bits=flipped,
        padding=int((places < 0).sum()),
        places=places,
        shape=sizes,
        bits=width,
        dtype=kind.name,
        has_ones=probe.has_ones,
    )
    found = found_order(places, sizes, width)
    if isinstance(found, str):
        return replace(known, reason=found, advice=_second(packer, None, sizes, kind, width)[2])
    confirmed, grows, advice = _second(packer, found, sizes, kind, width)
    layout = replace(
        known, layout=found.text, split=found.split, order=found.order, backwards=found.backwards, grows=grows
    )
    return replace(layout, confirmed=confirmed, stream=found.stream, unit_order=found.unit_order, advice=advice)


def _flipped(places: NDArray[np.int64], inverted: NDArray[np.bool_], width: int) -> int | str:
    """Return the mask of the bits of a code that are stored inverted, or the reason if codes differ in that."""
    flipped = 0
    for bit in range(width):
        of_bit = inverted[(places >= 0) & (places % width == bit)]
        if of_bit.any() != of_bit.all():
            return f"bit {bit} of some codes is inverted, of others it is not: that depends on the place"
        flipped |= int(of_bit.any()) << bit
    return flipped


def _second(
    packer: Packer, found: BitOrder | None, sizes: tuple[int, ...], kind: np.dtype[Any], width: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], str | None]:
    """Probe twice the sizes: return them, and the parts that grow; or nothing, and a message with the result."""
    larger = tuple(2 * size for size in sizes)
    if math.prod(larger) * width > MOST_BITS:
        return (), (), f"{larger} has more than {MOST_BITS} bits and was not tried; give smaller sizes"
    try:
        probe = probed(packer, larger, kind, width)
    except Exception as error:
        return (), (), f"the packer rejects {larger} ({error}); try sizes that it takes, with two or more of each block"
    if isinstance(probe, Disproof):
        return (), (), f"at {larger} it is not a permutation of bits: {probe.reason}"
    second = found_order(probe.places, larger, width)
    if isinstance(second, str):
        return (), (), f"at {larger} {second}"
    if found is not None and _grows_to(found, second, len(sizes)):
        return (larger,), found_growth(found.text, found.split, second.text, second.split, len(sizes)), None
    return (), (), f"at {larger} it is {second.text}: small sizes hide parts, so discover it with those"


def _grows_to(one: BitOrder, two: BitOrder, rank: int) -> bool:
    """Whether layout `two` is layout `one` at twice the sizes; dimensions from `rank` on are bits."""
    if replace(two, text=one.text, split=one.split) != one:
        return False
    ratios = [[b / a for a, b in zip(*parts, strict=True)] for parts in zip(one.split, two.split, strict=True)]
    return all(sorted(ratio) == [1] * (len(ratio) - 1) + [2 if d < rank else 1] for d, ratio in enumerate(ratios))
