"""Tensors computed box by box: read, split, moved to another format, joined.

An expression is a tree whose leaves are tensors of files. A box of the result needs boxes of the inputs, slightly
larger where words or blocks cross the edges. The result is written in bands of rows, in any memory that holds one band.

    weight_packed[0:64, :]  <-  Moved awq -> pack_quantized  <-  qweight[:, 0:8]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import MisfitError
from fastindex.core.element_types import ElementType
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.jobs.input_files import InputFile
from fastindex.jobs.reading import StoredArray
from fastindex.moving.relayout_calls import pack
from fastindex.patterns.named_formats import Chosen, multiple_of, padded_sizes
from fastindex.weights.repack_arguments import has_words, rows_of_words, signed_bits, word_bits, words_of
from fastindex.weights.repack_jobs import Formats, copies_of_move
from fastindex.weights.repack_plans import End, outermost, repack_plan
from fastindex.weights.safetensors_files import Tensor

Array = NDArray[Any]
Box = tuple[range, ...]

#: The largest band, in bytes.
_BAND_BYTES = 256 << 20
#: Whole rows are read, about a mebibyte at a time, if a box covers at least an eighth of each row.
_ROWS_BYTES, _MOST_READ_AGAIN = 1 << 20, 8
#: How many bands have their cost computed: the alignment of bands to words and tiles repeats within as many.
_BANDS_SEEN = 300
#: Formats whose words are in rows and columns like the codes: any submatrix of whole words is a matrix of the format.
_RECTANGULAR = ("awq", "gptq", "pack_quantized", "mlx", "nvfp4", "marlin_scales", "marlin_zero_points")


class Expression:
    """An array that is computed on demand, box by box.

    Attributes
    ----------
    sizes : tuple of int
    dtype : dtype
    inputs : tuple of Expression
    """

    def __init__(self, sizes: Sequence[int], dtype: Any, *inputs: Expression) -> None:
        self.sizes = tuple(sizes)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.inputs = inputs

    def needs(self, box: Box) -> list[tuple[Expression, Box]]:
        """Return the boxes of the inputs from which a box of the result is computed."""
        return [(one, box) for one in self.inputs]

    def made(self, box: Box, parts: list[Array]) -> Array:
        """Return the values of a box, given those of the boxes that `needs` returns."""
        raise NotImplementedError

    def read(self, box: Box) -> Array:
        """Return the values of a box."""
        return self.made(box, [one.read(part) for one, part in self.needs(box)])

    def cost(self, box: Box) -> int:
        """Return an upper bound of the memory, in bytes, that reading a box takes."""
        return 2 * self._bytes_of(box) + sum(one.cost(part) for one, part in self.needs(box))

    def leaves(self) -> Iterator[Stored]:
        """Yield the leaves of the tree: tensors of files."""
        for one in self.inputs:
            yield from one.leaves()

    def may_fail(self) -> bool:
        """Whether a step may reject a value because it does not convert exactly."""
        return any(one.may_fail() for one in self.inputs)

    def needs_kernels(self) -> bool:
        """Whether NumPy alone would be slower."""
        return any(one.needs_kernels() for one in self.inputs)

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize

    def _bytes_of(self, box: Box) -> int:
        return math.prod(map(len, box)) * self.dtype.itemsize

    def bands(self, limit: int) -> Iterator[Box]:
        """Yield consecutive boxes in C order; reading one takes at most `limit` bytes.

        Raises
        ------
        FastIndexError
            The smallest band takes more; the message says how much.
        """
        whole = tuple(map(range, self.sizes))
        if not math.prod(self.sizes):
            return
        # While one is made, others are written.
        rank, most = len(whole), min(limit // 2, _BAND_BYTES)
        for d in range(max(rank, 1)):
            rows, tail = (whole[d] if rank else range(1)), whole[d + 1 :]

            def boxes(count: int, lead: Box, rows: range = rows, tail: Box = tail) -> Iterator[Box]:
                for begin in range(0, len(rows), count):
                    yield (*lead, range(begin, min(begin + count, len(rows))), *tail)[:rank]

            count = len(rows)
            lead = (range(1),) * d
            while (cost := max(map(self.cost, itertools.islice(boxes(count, lead), _BANDS_SEEN)))) > most and count > 1:
                # Multiples of 256 rows, while there are many: bands of whole words and tiles.
                count = -(-count // 2) if count <= 512 else -(-count // 512) * 256
            if cost <= limit:
                for place in np.ndindex(*self.sizes[:d]):
                    yield from boxes(count, tuple(range(i, i + 1) for i in place))
                return
        raise FastIndexError(f"a band of it takes {(cost >> 20) + 1} MiB beside the program: allow more memory")


class Stored(Expression):
    """A tensor of a file; its bytes, where elements are packed below a byte or opaque."""

    def __init__(self, tensor: Tensor) -> None:
        shape = tensor.shape
        if shape.layout.element_size_in_bits:
            shape = Shape("u8", (shape.nbytes,))
        super().__init__(shape.dimensions, shape.element_type.numpy_dtype)
        self.tensor, self.shape = tensor, shape
        self.file: InputFile | None = None
        self.content: Future[Array] | None = None

    def close(self) -> None:
        """Release the file and the values."""
        self.file = self.content = None

    def whole(self, file: InputFile, into: Array) -> Array:
        """Read all values into an array of bytes, and return them."""
        file.expect(True)
        file.read(0, into)
        return into.view(self.dtype).reshape(self.sizes)

    def made(self, box: Box, parts: list[Array]) -> Array:
        if self.content is not None:
            return self.content.result()[tuple(slice(along.start, along.stop) for along in box)]
        file = self.file
        assert file is not None
        into = np.empty(self._bytes_of(box), np.uint8)
        if into.size and self._is_wide(box):
            self._read_rows(file, box, into)
        elif into.size:
            StoredArray(file, self.shape).read(box, into)
        return into.view(self.dtype).reshape([len(along) for along in box])

    def cost(self, box: Box) -> int:
        if self.content is None:
            return super().cost(box)
        # Read already; values that are not adjacent are copied.
        return 0 if tuple(map(len, box)) == self.sizes else self._bytes_of(box)

    def _is_wide(self, box: Box) -> bool:
        """Whether a box covers so much of each row that reading whole rows costs less than many small reads."""
        if len(box) < 2 or tuple(map(len, box[1:-1])) != self.sizes[1:-1]:
            return False
        return self.sizes[-1] > len(box[-1]) >= self.sizes[-1] // _MOST_READ_AGAIN

    def _read_rows(self, file: InputFile, box: Box, into: Array) -> None:
        width, inner = self.dtype.itemsize, math.prod(self.sizes[1:-1])
        row, columns = self.sizes[-1] * width, slice(box[-1].start * width, box[-1].stop * width)
        found = into.reshape(len(box[0]) * inner, -1)
        step = max(_ROWS_BYTES // row, 1)
        for begin in range(0, len(found), step):
            part = found[begin : begin + step]
            rows = np.empty((len(part), row), np.uint8)
            file.read((box[0].start * inner + begin) * row, rows.reshape(-1))
            part[...] = rows[:, columns]

    def leaves(self) -> Iterator[Stored]:
        yield self


class Field(Expression):
    """A field of blocks, such as their scales: one byte range of each block, concatenated along the last dimension."""

    def __init__(self, blocks: Expression, block_bytes: int, place: tuple[int, int], dtype: str) -> None:
        self._block, self._place = block_bytes, place
        self._values = (place[1] - place[0]) // np.dtype(dtype).itemsize
        *rows, last = blocks.sizes
        super().__init__((*rows, last // block_bytes * self._values), dtype, blocks)

    def _blocks(self, box: Box) -> range:
        return range(box[-1].start // self._values, -(-box[-1].stop // self._values))

    def needs(self, box: Box) -> list[tuple[Expression, Box]]:
        blocks = self._blocks(box)
        return [(self.inputs[0], (*box[:-1], range(blocks.start * self._block, blocks.stop * self._block)))]

    def made(self, box: Box, parts: list[Array]) -> Array:
        rows = parts[0].shape[:-1]
        found = parts[0].reshape(*rows, -1, self._block)[..., slice(*self._place)]
        begin = box[-1].start - self._blocks(box).start * self._values
        # Elements as wide as the field: NumPy copies these several times as fast as their bytes.
        whole = np.ascontiguousarray(found.view(f"V{found.shape[-1]}"))
        return whole.view(self.dtype).reshape(*rows, -1)[..., begin : begin + len(box[-1])]


class Transposed(Expression):
    """An array with its dimensions permuted."""

    def __init__(self, inner: Expression, order: Sequence[int]) -> None:
        self._order = tuple(order)
        super().__init__([inner.sizes[d] for d in order], inner.dtype, inner)

    def needs(self, box: Box) -> list[tuple[Expression, Box]]:
        return [(self.inputs[0], tuple(box[self._order.index(d)] for d in range(len(box))))]

    def made(self, box: Box, parts: list[Array]) -> Array:
        return parts[0].transpose(self._order)


class Reversed(Expression):
    """An array with one dimension in reverse order."""

    def __init__(self, inner: Expression, dimension: int) -> None:
        self._at = dimension
        super().__init__(inner.sizes, inner.dtype, inner)

    def needs(self, box: Box) -> list[tuple[Expression, Box]]:
        d, size = self._at, self.sizes[self._at]
        return [(self.inputs[0], (*box[:d], range(size - box[d].stop, size - box[d].start), *box[d + 1 :]))]

    def made(self, box: Box, parts: list[Array]) -> Array:
        return np.flip(parts[0], self._at)


class Part(Expression):
    """A slice of one dimension; with `drops`, a single index whose dimension is removed."""

    def __init__(self, inner: Expression, dimension: int, along: range, drops: bool = False) -> None:
        self._at, self._along, self._drops = dimension, along, drops
        sizes = list(inner.sizes)
        sizes[dimension : dimension + 1] = [] if drops else [len(along)]
        super().__init__(sizes, inner.dtype, inner)

    def needs(self, box: Box) -> list[tuple[Expression, Box]]:
        d, begin = self._at, self._along.start
        own = range(begin, begin + 1) if self._drops else range(begin + box[d].start, begin + box[d].stop)
        return [(self.inputs[0], (*box[:d], own, *box[d + (not self._drops) :]))]

    def made(self, box: Box, parts: list[Array]) -> Array:
        return parts[0].reshape([len(along) for along in box])


class Joined(Expression):
    """Arrays concatenated along a dimension; with `is_stack`, stacked along a new first dimension."""

    def __init__(self, inners: Sequence[Expression], dimension: int, is_stack: bool = False) -> None:
        self._at, self._stacks = dimension, is_stack
        self._ends = [0]
        for one in inners:
            self._ends.append(self._ends[-1] + (1 if is_stack else one.sizes[dimension]))
        first = inners[0].sizes
        sizes = (len(inners), *first) if is_stack else (*first[:dimension], self._ends[-1], *first[dimension + 1 :])
        super().__init__(sizes, inners[0].dtype, *inners)

    def needs(self, box: Box) -> list[tuple[Expression, Box]]:
        found, d = [], self._at
        for one, begin, end in zip(self.inputs, self._ends, self._ends[1:], strict=False):
            own = range(max(box[d].start, begin) - begin, min(box[d].stop, end) - begin)
            if len(own):
                found.append((one, (*box[:d], *(() if self._stacks else (own,)), *box[d + 1 :])))
        return found

    def made(self, box: Box, parts: list[Array]) -> Array:
        if len(parts) == 1 and not self._stacks:
            return parts[0]
        return np.stack(parts) if self._stacks else np.concatenate(parts, self._at)


class Alternating(Expression):
    """The two halves of a dimension interleaved; with `to_halves`, deinterleaved, which is the inverse."""

    def __init__(self, inner: Expression, dimension: int, to_halves: bool) -> None:
        self._at, self._to_halves, self._half = dimension, to_halves, inner.sizes[dimension] // 2
        super().__init__(inner.sizes, inner.dtype, inner)

    def needs(self, box: Box) -> list[tuple[Expression, Box]]:
        d, half = self._at, self._half
        along = box[d]
        if not self._to_halves:
            own = range(along.start // 2, -(-along.stop // 2))
            places = [own, range(own.start + half, own.stop + half)]
        else:
            places = [
                range(2 * (max(along.start, begin) - begin), 2 * (min(along.stop, begin + half) - begin))
                for begin in (0, half)
            ]
        return [(self.inputs[0], (*box[:d], place if len(place) else range(0), *box[d + 1 :])) for place in places]

    def made(self, box: Box, parts: list[Array]) -> Array:
        first, second = (np.moveaxis(part, self._at, 0) for part in parts)
        along = box[self._at]
        if self._to_halves:
            mixed = np.concatenate([first[0::2], second[1::2]])
        else:
            mixed = np.stack([first, second], 1).reshape(-1, *first.shape[1:])[along.start % 2 :][: len(along)]
        return np.moveaxis(mixed, 0, self._at)


class Cast(Expression):
    """A cast to another element type, as `fastindex.pack` casts."""

    def __init__(self, inner: Expression, element_type: ElementType, casting: Any) -> None:
        self._type, self._casting = element_type, casting
        super().__init__(inner.sizes, element_type.numpy_dtype, inner)

    def needs_kernels(self) -> bool:
        return True

    def made(self, box: Box, parts: list[Array]) -> Array:
        shape = Shape(self._type, parts[0].shape)
        try:
            # Not ascontiguousarray, which gives scalars a dimension.
            made: Array = pack(np.asarray(parts[0], order="C"), shape, casting=self._casting)
        except MisfitError as found:
            raise found.moved([along.start for along in box]) from None
        return made.view(self.dtype).reshape(parts[0].shape)


class Constant(Expression):
    """An array of known values."""

    def __init__(self, values: Array) -> None:
        super().__init__(values.shape, values.dtype)
        self._values = values

    def made(self, box: Box, parts: list[Array]) -> Array:
        return self._values[tuple(slice(along.start, along.stop) for along in box)]


@dataclass(frozen=True, slots=True)
class _Side:
    """How one end of a move is stored.

    Attributes
    ----------
    sizes : tuple of int
        Of the stored array.
    units : tuple of (int, int), or None
        For each dimension, a number of codes and the number of stored values that hold them; edges of boxes are
        multiples of these. (0, 0) for a dimension that is only taken whole; None if the array is.
    """

    sizes: tuple[int, ...]
    units: tuple[tuple[int, int], ...] | None

    def stored(self, box: Box) -> Box:
        """Return the stored values that hold a box of codes, whose edges are multiples of the units."""
        return _scaled(box, self.units, self.sizes)

    def codes(self, box: Box, sizes: Sequence[int]) -> Box:
        """Return the codes that a box of stored values holds, rounded outwards to units."""
        return _scaled(box, self.units and tuple((own, codes) for codes, own in self.units), sizes)


def _scaled(box: Box, units: tuple[tuple[int, int], ...] | None, sizes: Sequence[int]) -> Box:
    """Return the box whose edges are those of a box in other units, rounded outwards; all of what is taken whole."""
    if units is None:
        return tuple(map(range, sizes))
    return tuple(
        range(along.start // given * wanted, min(-(-along.stop // given) * wanted, size)) if given else range(size)
        for along, (given, wanted), size in zip(box, units, sizes, strict=True)
    )


class Moved(Expression):
    """An array moved to another named format."""

    def __init__(self, inner: Expression, formats: Formats) -> None:
        self._plan = plan = formats.plan()
        self._formats, self._signed = formats, signed_bits(None, inner.dtype)
        own, given, nbytes = plan.letters, formats.sizes, plan.ends[1].side.nbytes
        lead = len(given) - len(own[0])
        self._order: tuple[int, ...] = tuple(range(len(given)))
        sides = _Side(inner.sizes, None), _Side((nbytes,), None)
        # Otherwise the format merges all dimensions into one, or has one that the array lacks.
        if lead >= 0 and (len(own[0]) > 1 or not lead):
            self._order = (*range(lead), *(lead + own[0].index(letter) for letter in own[1]))
            sides = _side_of(plan.ends[0], own[0], given[:lead]), _side_of(plan.ends[1], own[1], given[:lead])
        self._sizes = given, tuple(given[d] for d in self._order)
        dtype = _dtype_of(*plan.ends, inner.dtype)
        if math.prod(sides[1].sizes) * dtype.itemsize != nbytes:
            sides, dtype = (sides[0], _Side((nbytes,), None)), np.dtype("u1")
        if inner.sizes != sides[0].sizes or sides[1].units is None:
            sides = _Side(inner.sizes, None), _Side(sides[1].sizes, None)
        self._sides = sides
        super().__init__(sides[1].sizes, dtype, inner)

    @property
    def signs_flip(self) -> bool:
        """Whether one end is two's complement, and the other is not."""
        return self._plan.flips((self._signed, 0))

    def needs_kernels(self) -> bool:
        return not self._plan.plan.is_bitcast or super().needs_kernels()

    def _codes(self, box: Box) -> tuple[Box, Box]:
        """Return the codes that a box of the result needs, in the dimensions of the source and of the target."""
        source, target = self._sides
        wanted = target.codes(box, self._sizes[1])
        if source.units is None or target.units is None:
            return tuple(map(range, self._sizes[0])), wanted
        edges = []
        for d, along in enumerate(wanted):
            units = source.units[self._order[d]][0], target.units[d][0]
            step, size = math.lcm(*units), self._sizes[1][d]
            edges.append(
                range(along.start // step * step, min(-(-along.stop // step) * step, size)) if step else range(size)
            )
        return tuple(edges[self._order.index(d)] for d in range(len(edges))), tuple(edges)

    def needs(self, box: Box) -> list[tuple[Expression, Box]]:
        return [(self.inputs[0], self._sides[0].stored(self._codes(box)[0]))]

    def cost(self, box: Box) -> int:
        (inner, part), stored = self.needs(box)[0], self._sides[1].stored(self._codes(box)[1])
        most = max(inner._bytes_of(part), self._bytes_of(stored))
        return copies_of_move(self._plan) * most + inner.cost(part)

    def made(self, box: Box, parts: list[Array]) -> Array:
        source, target = self._codes(box)
        sizes = self._formats.sizes if self._sides[0].units is None else tuple(map(len, source))
        plan = repack_plan(*self._formats.names, sizes, self._plan.ends[0].bits, self._plan.parameters)
        data = np.ascontiguousarray(parts[0]).reshape(-1).view(np.uint8)
        written = np.empty(plan.ends[1].side.nbytes, np.uint8)
        plan.run(data, written, (self._signed, 0), None, source[0].start if source else 0)
        stored = self._sides[1].stored(target)
        found = written.view(self.dtype).reshape([len(along) for along in stored])
        return found[tuple(slice(o.start - a.start, o.stop - a.start) for o, a in zip(box, stored, strict=True))]


def _side_of(end: End, letters: str, lead: tuple[int, ...]) -> _Side:
    """Return how an end is stored; `letters` are the plan's names of its dimensions, `lead` the batch dimensions."""
    one, own = end.one, end.sizes[-len(letters) :]
    if one is None:
        return _Side((*lead, *own), ((1, 1),) * (len(lead) + len(own)))
    if has_words(end.name) and len(own) == 2:
        stored: tuple[int, ...] = words_of(one, own)
    else:
        *rows, last = padded_sizes(one, own)
        stored = (*rows, last * min(one.bits, 8) // 8)
    units = _units(end, one, "" if lead else letters[0])
    return _Side((*lead, *stored), (*((1, 1) for _ in lead), *units))


def _units(end: End, one: Chosen, first: str) -> list[tuple[int, int]]:
    """Return the units of boxes for each dimension of a format, as in `_Side`.

    `first` is the plan's letter for the first dimension.
    """
    letters = one.letters
    if end.name in _RECTANGULAR:
        units = [(step, step) for step in (multiple_of(one, letter) for letter in letters)]
        along = 1 if rows_of_words(one) else 0
        word, bits = word_bits(one), one.bits
        codes = word // bits if one.row.when.get("dense") is False else math.lcm(word, bits) // bits
        step = math.lcm(codes, units[along][0])
        words = 1 if one.row.when.get("dense") is False else codes * bits // word
        units[along] = step, step // codes * words
        return units
    units = [(0, 0)] * len(letters)
    found = outermost(end.side)
    if found is not None and found[0].key == first:
        step = math.lcm(found[1], multiple_of(one, letters[0]))
        rows = rows_of_words(one) if has_words(end.name) else 1
        if rows and step % rows == 0:
            units[0] = step, step // rows
    return units


def _dtype_of(left: End, right: End, given: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the stored array: integers as wide as words, or the dtype of the elements."""
    width = max(right.bits, 8)
    if right.one is not None and has_words(right.name):
        width = word_bits(right.one)
    if width != max(right.bits, 8) or (left.one is not None and has_words(left.name) and word_bits(left.one) != width):
        return np.dtype(f"{'i' if width > 8 and right.name != 'mlx' and right.one is not None else 'u'}{width // 8}")
    return given if 8 * given.itemsize == width else np.dtype(f"u{width // 8}")
