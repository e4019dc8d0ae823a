"""What `discover` found, as a format: an order of digits at the probed sizes, and at all sizes that it grows to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastindex.algebra.sides import RegroupedShape
from fastindex.core.digits import Digits, Variable, digit
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.patterns.format_rows import Row
from fastindex.patterns.known_names import PLAIN, known_name
from fastindex.patterns.named_formats import Chosen

#: The most bits of a probed array, and of a packed one that a file may claim.
MOST_BITS = 1 << 24
_MOST_PACKED_BITS = 1 << 28
#: Units, in bits, within which the bits may be reordered: bytes to the largest words.
UNIT_BITS = (8, 16, 32, 64)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_SHOWN = 200


@dataclass(frozen=True)
class FoundFormat:
    """A format that was discovered.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of the probed array.
    bits : int
        Of a code.
    dtype : str
        Of the probed array.
    layout : str
        The text of the split array.
    split : tuple of tuples of int
        The parts of each dimension; if bits of a code are not adjacent, those of the bits last.
    grows : tuple of int
        For each dimension, the part that grows with the array; empty if the format is known at `shape` only.
    stream : int or None
        The dimension that is split in bits.
    unit_order : tuple of int
    flipped_bits : int
    has_ones : bool
        Whether padding holds ones.
    backwards : tuple of int
        The parts that count down, numbered in order.
    """

    name: str
    shape: tuple[int, ...]
    bits: int
    dtype: str
    layout: str
    split: tuple[tuple[int, ...], ...]
    grows: tuple[int, ...]
    stream: int | None
    unit_order: tuple[int, ...]
    flipped_bits: int
    has_ones: bool
    backwards: tuple[int, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def is_of_bits(self) -> bool:
        """Whether the elements of the layout are bits, not codes."""
        return self.stream is not None or len(self.split) > len(self.shape)

    def at(self, shape: Sequence[int], bits: int | None) -> FoundChosen:
        """Return the format for an array whose last dimensions are those of the format.

        Raises
        ------
        FastIndexError
            Another width, or sizes that the discovery does not cover.
        """
        if bits not in (None, self.bits):
            raise FastIndexError(f"{self.name} has {self.bits} bits, got bits={bits}")
        rank = len(self.shape)
        if len(shape) < rank:
            raise FastIndexError(f"{self.name} is of {rank} dimensions such as {self.shape}, got {tuple(shape)}")
        sizes = (math.prod(shape),) if rank == 1 else tuple(shape[len(shape) - rank :])
        if sizes == self.shape or math.prod(sizes) == 0:
            multiples = sizes
        elif not self.grows:
            raise FastIndexError(
                f"{self.name} was found at {self.shape}, and how it grows is not known, so it is for no other sizes, "
                f"got {sizes}; discover it at {sizes}, or at sizes with two or more of each block"
            )
        else:
            multiples = self._multiples(sizes)
        row = Row(self.name, f"u{self.bits}[{','.join(_LETTERS[:rank])}]{{}}", self.bits, **self._meaning())
        row = replace(row, divides=dict(zip(_LETTERS, (max(one, 1) for one in multiples), strict=False)))
        return FoundChosen(row, self.bits, {}, _LETTERS[:rank], self, sizes)

    def _multiples(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the multiples of which sizes must be."""
        found = []
        for d, (size, parts, part) in enumerate(zip(sizes, self.split, self.grows, strict=False)):
            block = math.prod(parts) // parts[part]
            multiple = block // math.gcd(block, self.bits) if d == self.stream else block
            if size % multiple:
                raise FastIndexError(
                    f"{self.name} takes dimension {d} in multiples of {multiple}, as discovered at {self.shape}, got "
                    f"{sizes}; pad the array"
                )
            found.append(multiple)
        unit = len(self.unit_order)
        if unit and grown_shape(self.layout, self.split, self.grows, self._extents(sizes)).nbytes * 8 % unit:
            raise FastIndexError(
                f"{self.name} reorders the bits of units of {unit}, and {sizes} are not whole units; pad the array"
            )
        # Slices of a dimension would cut units.
        return sizes if unit else tuple(found)

    def _extents(self, sizes: Sequence[int]) -> list[int]:
        """Return the sizes of what `split` splits: that of a stream in bits, and the bits of a code last."""
        own = [size * (self.bits if d == self.stream else 1) for d, size in enumerate(sizes)]
        return own + [self.bits] * (len(self.split) - len(sizes))

    def _meaning(self) -> dict[str, Any]:
        """Return the fields of a `Row` about codes and their order."""
        order, width = self.unit_order, 1
        while width < 8 and order and _moves_together(order, 2 * width):
            width *= 2
        whole = tuple(place // width for place in order[::width])
        return {"order": whole, "order_bits": width, "stored": self.stored, "source": "fastindex.weights.discover"}

    @property
    def stored(self) -> str:
        """The meaning of codes, as in `Row`; "bits" if the values of a signed type were probed by their low bits."""
        kind = np.dtype(self.dtype)
        if kind.kind != "i" or self.bits > 8:
            return "codes" if self.bits <= 8 else "elements"
        if self.bits < 8 * kind.itemsize:
            return "bits"
        return "integers" if self.flipped_bits >> self.bits - 1 else "signed"

    @property
    def inverted_bits(self) -> int:
        """The bits that are stored inverted, besides the sign bit that `stored` accounts for."""
        return self.flipped_bits & ~(1 << self.bits - 1) if self.stored == "integers" else self.flipped_bits

    def to_json(self) -> dict[str, Any]:
        """Return an object of JSON with all properties."""
        return {
            "shape": list(self.shape),
            "bits": self.bits,
            "dtype": self.dtype,
            "layout": self.layout,
            "split": [list(parts) for parts in self.split],
            "grows": list(self.grows),
            "stream": self.stream,
            "unit_order": list(self.unit_order),
            "flipped_bits": self.flipped_bits,
            "has_ones": self.has_ones,
            "backwards": list(self.backwards),
        }


def _moves_together(order: Sequence[int], width: int) -> bool:
    """Whether aligned groups of `width` bits of a unit keep their order and alignment."""
    first = np.array(order).reshape(-1, width)
    return bool((first[:, 0] % width == 0).all() and (np.diff(first, axis=1) == 1).all())


@dataclass(frozen=True)
class FoundChosen(Chosen):
    """A discovered format at certain sizes.

    Attributes
    ----------
    found : FoundFormat
    sizes : tuple of int
    """

    found: FoundFormat
    sizes: tuple[int, ...]

    def side(self, variables: Sequence[Variable], bit: Variable | None) -> RegroupedShape:
        """Return the format as a side of a move.

        Parameters
        ----------
        variables : sequence of Variable
            Of the dimensions; that of a stream counts bits.
        bit : Variable or None
            Of the bits of a code, if the format has them as separate dimensions.
        """
        found = self.found
        shape = found_shape(found, self.sizes)
        whole = (*variables, bit)[: len(found.split)]
        coordinates: list[Digits] = []
        at = 0
        for variable, parts in zip(whole, found.split, strict=True):
            sizes = shape.dimensions[at : at + len(parts)]
            at += len(parts)
            weight = math.prod(sizes)
            for i, size in enumerate(sizes):
                high, weight = weight, weight // size if size else 0
                coordinates.append(digit(1, variable, weight, high if i else None) if weight and variable else ())
        own = tuple(v for v in (*variables, bit) if v is not None)
        return RegroupedShape(shape, tuple(coordinates), own)


def found_shape(found: FoundFormat, sizes: tuple[int, ...]) -> Shape:
    """Return the shape of the split array at some sizes."""
    if sizes == found.shape:
        return Shape.parse(found.layout)
    if not found.grows:
        # Empty: its layout does not matter.
        shape = Shape.parse(found.layout)
        return Shape(shape.element_type, (0,) * shape.rank, replace(shape.layout, padded_dimensions=None))
    return grown_shape(found.layout, found.split, found.grows, found._extents(sizes))


def grown_shape(layout: str, split: Sequence[Sequence[int]], grows: Sequence[int], extents: Sequence[int]) -> Shape:
    """Return the split array of a layout when its dimensions have other extents.

    Examples
    --------
    >>> print(grown_shape("u4[4,2,2,16]{2,3,1,0:E(4)}", ((4,), (2, 2, 16)), (0, 0), (5, 96)))
    u4[5,3,2,16]{2,3,1,0:E(4)}
    """
    shape = Shape.parse(layout)
    sizes, padded_sizes = list(shape.dimensions), list(shape.layout.padded_dimensions or shape.dimensions)
    at = 0
    for d, parts in enumerate(split):
        if d < len(grows):
            block = math.prod(parts) // parts[grows[d]]
            sizes[at + grows[d]] = padded_sizes[at + grows[d]] = extents[d] // block
        at += len(parts)
    padded = tuple(padded_sizes) if shape.layout.padded_dimensions else None
    return Shape(shape.element_type, sizes, replace(shape.layout, padded_dimensions=padded))


def found_growth(
    layout: str, split: Sequence[Sequence[int]], larger: str, larger_split: Sequence[Sequence[int]], rank: int
) -> tuple[int, ...]:
    """Return the part of each dimension that grows if a layout has twice the sizes; empty if others change, too.

    Examples
    --------
    >>> found_growth("u4[4,2,16]{2,1,0:E(4)}", ((4,), (2, 16)), "u4[8,4,16]{2,1,0:E(4)}", ((8,), (4, 16)), 2)
    (0, 0)
    """
    grows = tuple(
        next(i for i, (one, two) in enumerate(zip(split[d], larger_split[d], strict=True)) if one != two)
        for d in range(rank)
    )
    shape, second = Shape.parse(layout), Shape.parse(larger)
    padded_sizes = shape.layout.padded_dimensions or shape.dimensions
    starts = np.cumsum([0, *(len(parts) for parts in split)])
    if any(padded_sizes[starts[d] + part] != shape.dimensions[starts[d] + part] for d, part in enumerate(grows)):
        return ()
    extents = [math.prod(parts) for parts in larger_split]
    return grows if grown_shape(layout, split, grows, extents) == second else ()


def found_format_of(given: Any, name: Any) -> FoundFormat:
    """Return the format in an object of JSON, which may be untrusted.

    Raises
    ------
    FastIndexError
        `to_json` writes no such object.
    """
    check_own_name(name)

    def fail(what: str) -> FastIndexError:
        return FastIndexError(f"the format {name[:_MOST_SHOWN]!r}: {what}; write it with Discovery.to_json()")

    if not isinstance(given, Mapping):
        raise fail(f"it must be a mapping, got {shown(given)}")
    sizes, bits, dtype, flipped, has_ones = checked_header(given, fail)
    layout, split = given.get("layout"), given.get("split")
    if layout is None and "places" in given:
        raise fail("it is not an order of digits, and only repack moves by a table; discover one with a layout")
    if not isinstance(layout, str):
        raise fail(f"layout must be text, got {shown(layout)}")
    if not isinstance(split, list) or not all(is_sizes(parts, 1) and parts for parts in split):
        raise fail(f"split must be a list of lists of sizes, got {shown(split)}")
    stream, grows, order = given.get("stream"), given.get("grows", []), given.get("unit_order", [])
    if stream is not None and not (type(stream) is int and 0 <= stream < len(sizes)):
        raise fail(f"stream must be a dimension, got {shown(stream)}")
    if not is_sizes(order, 0) or sorted(order) != list(range(len(order))) or len(order) not in (0, *UNIT_BITS):
        raise fail(f"unit_order must be an order of 8, 16, 32 or 64 bits, got {shown(order)}")
    if not is_sizes(grows, 0) or len(grows) not in (0, len(sizes)):
        raise fail(f"grows must have a part for each dimension, got {shown(grows)}")
    parts, backwards = tuple(map(tuple, split)), given.get("backwards", [])
    if not is_sizes(backwards, 0):
        raise fail(f"backwards must be a list of parts, got {shown(backwards)}")
    found = FoundFormat(
        name, sizes, bits, dtype, layout, parts, tuple(grows), stream, tuple(order), flipped, has_ones, tuple(backwards)
    )
    wrong = _inconsistency(found)
    if wrong:
        raise fail(wrong)
    return found


def _inconsistency(found: FoundFormat) -> str | None:
    """Return what does not fit together in a format from a file, or None."""
    shape, rank = Shape.parse(found.layout), len(found.shape)
    width = 1 if found.is_of_bits else found.bits
    count = rank + (found.stream is None and found.is_of_bits)
    if len(found.split) != count or shape.dimensions != tuple(size for parts in found.split for size in parts):
        return f"layout has the dimensions {shown(list(shape.dimensions))}, split {shown(found.split)}"
    layout = shape.layout
    packed = layout.element_size_in_bits == width or (width >= 8 and not layout.element_size_in_bits)
    if str(shape.element_type) != f"u{width}" or layout.tiles or not packed or shape.dynamic_dimensions.count(True):
        return f"layout must be of u{width}, stored in {width} bits, without tiles, got {shown(found.layout)}"
    if shape.nbytes * 8 > _MOST_PACKED_BITS:
        return f"layout has {shape.nbytes} bytes, more than {_MOST_PACKED_BITS // 8}"
    for extent, parts in zip(found._extents(found.shape), found.split, strict=True):
        inner = math.prod(parts[1:])
        if -(-extent // inner) != parts[0]:
            return f"the parts {shown(parts)} do not make {extent}"
    if any(part >= len(parts) for part, parts in zip(found.grows, found.split, strict=False)):
        return f"grows names parts that split lacks, got {shown(found.grows)}"
    if found.grows:
        padded_sizes = layout.padded_dimensions or shape.dimensions
        starts = np.cumsum([0, *map(len, found.split)])
        places = [int(starts[d]) + part for d, part in enumerate(found.grows)]
        if any(padded_sizes[at] != shape.dimensions[at] for at in places):
            return f"a dimension that grows must not be padded, got {shown(found.layout)}"
    whole = sum(len(parts) for size, parts in zip(found.shape, found.split, strict=False) if math.prod(parts) == size)
    if found.backwards and (found.stream is not None or max(found.backwards) >= whole):
        return f"parts of whole dimensions run backwards, got {shown(found.backwards)}"
    if found.unit_order and shape.nbytes * 8 % len(found.unit_order):
        return f"the layout must consist of whole units of {len(found.unit_order)} bits"
    return None


def check_own_name(name: Any) -> None:
    """Require a name for a format that no other format has.

    Raises
    ------
    FastIndexError
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise FastIndexError(f"the name of a format must be a word such as my_format, got {shown(name)}")
    try:
        known_name(name)
    except UnsupportedError:
        pass
    except FastIndexError:
        return
    raise FastIndexError(f"a format is called {name!r} already; give yours another name, which is not {PLAIN!r} either")


def checked_header(given: Mapping[str, Any], fail: Any) -> tuple[tuple[int, ...], int, str, int, bool]:
    """Return the sizes, bits, dtype, flipped bits and `has_ones` in an object of JSON; `fail` makes an error of a text.

    Raises
    ------
    FastIndexError
    """
    sizes, bits, dtype = (given.get(key) for key in ("shape", "bits", "dtype"))
    if not is_sizes(sizes, 1) or not sizes or len(sizes) > len(_LETTERS):
        raise fail(f"shape must be a list of sizes, got {shown(sizes)}")
    if dtype not in ("bool", *(f"{kind}int{width}" for kind in ("", "u") for width in UNIT_BITS)):
        raise fail(f"dtype must be an integer type such as uint8, got {shown(dtype)}")
    if type(bits) is not int or not 1 <= bits <= 8 * np.dtype(dtype).itemsize:
        raise fail(f"bits must be a number of bits of {dtype}, got {shown(bits)}")
    if math.prod(sizes) * bits > MOST_BITS:
        raise fail(f"shape has more than {MOST_BITS} bits")
    flipped, has_ones = given.get("flipped_bits", 0), given.get("has_ones", False)
    if type(flipped) is not int or not 0 <= flipped < 1 << bits or type(has_ones) is not bool:
        raise fail(f"flipped_bits must be a mask of {bits} bits, and has_ones true or false, got {shown(flipped)}")
    return tuple(sizes), bits, dtype, flipped, has_ones


def is_sizes(value: Any, least: int) -> bool:
    """Whether a value from JSON is a list of integers of at least `least` and below 2**63."""
    return isinstance(value, list) and all(type(size) is int and least <= size < 1 << 63 for size in value)


def shown(value: object) -> str:
    """Return the text of a value in messages, truncated if it is long."""
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to print integers of thousands of digits.
        return f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
