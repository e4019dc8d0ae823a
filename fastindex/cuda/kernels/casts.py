"""GPU kernels that convert elements to another type: runs, interleaved or deinterleaved rows, and tiles.

Parameters are those of the kernels that do not convert, and last the address of a table of results, for conversions
that look them up. Table layout: `cuda.numbers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from fastindex.algebra.cast_numbers import bytes_read, bytes_written, names_of
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, Each, cuda, device_function, intrinsic, several, types
from fastindex.cuda.kernels.geometry import PaddedGeometry, places
from fastindex.cuda.kernels.memory import GLOBAL, LOAD, LOAD_SHARED, STORE, STORE_SHARED
from fastindex.cuda.kernels.tiles import Mover, tile_kernel
from fastindex.cuda.kernels.units import unit_kernel
from fastindex.runtime.lines.conversions import Conversion


def _widths(code: int) -> tuple[int, int]:
    source, target = names_of(code)
    return bytes_read(source), bytes_written(target)


@cache
def cast_kernel(code: int, together: int) -> Kernel:
    """Make the kernel that converts `together` elements at once: a `unit_kernel` of one kind.

    Its last parameter is the address of the table of results.
    """
    read, written = _widths(code)
    load, store = LOAD[together * read], STORE[together * written]
    in_order = list(range(together))
    convert = converter(code, Vectors(1, together, read), Vectors(1, together, written), in_order)

    @device_function
    def read_vector(at: Any, extra: Any) -> Any:
        return load(at)

    @device_function
    def write_converted(at: Any, extra: Any, vector: Any) -> None:
        store(at, convert((vector,), extra[1])[0])

    return unit_kernel(f"cast {code} {together}", [(read_vector, write_converted)])


@cache
def cast_rows_kernel(code: int, rows: int, columns: int, deinterleave: bool) -> Kernel:
    """Make the kernel that converts `columns` elements of 2 or 4 rows at once, and interleaves or deinterleaves them.

    The rows have a stride of `step` bytes. Parameters: destination, source, table, units, loops, step, results.
    """
    read, written = _widths(code)
    count = rows * columns
    by_columns = [row * columns + column for column in range(columns) for row in range(rows)]
    by_rows = [column * rows + row for row in range(rows) for column in range(columns)]
    given = Vectors(1, count, read) if deinterleave else Vectors(rows, columns, read)
    made = Vectors(rows, columns, written) if deinterleave else Vectors(1, count, written)
    convert = converter(code, given, made, by_rows if deinterleave else by_columns)
    load, store = LOAD[given.elements * read], STORE[made.elements * written]

    @several(given.count)
    def read_rows(number: Any, at: Any, step: Any) -> Any:
        return load(at + number * step)

    @several(made.count)
    def write_rows(number: Any, at: Any, step: Any, vector: Each) -> None:
        store(at + number * step, vector)

    def cast_rows(destination, source, table, count, loops, step, results):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if n < count:
            s, d = places(n, table, loops)
            write_rows(destination + d, step, convert(read_rows(source + s, step), results))

    return Kernel(cast_rows, f"cast rows {code} {rows} {columns} {deinterleave}", resident=4, units=THREADS)


@cache
def cast_transpose_kernel(code: int, rows: int, columns: int) -> Kernel:
    """Make the kernel that transposes tiles and converts `columns` elements that are read, and `rows` that are written.

    A `tile_kernel` whose last parameter is the address of the table of results; shared memory holds converted elements.
    """
    read, written = _widths(code)
    geometry = PaddedGeometry((read, written), (64, 64), THREADS, (columns, rows))
    cell, pitch = max(written, 4), geometry.pitch
    load_cell, store_cell = LOAD_SHARED[cell], STORE_SHARED[cell]
    convert = converter(code, Vectors(1, columns, read), Vectors(columns, 1, written), list(range(columns)))
    join = converter(None, Vectors(rows, 1, written), Vectors(1, rows, written), list(range(rows)))

    @several(columns)
    def put_cells(number: Any, at: Any, value: Each) -> None:
        store_cell(at + number * pitch, value)

    @several(rows)
    def take_cells(number: Any, at: Any) -> Any:
        return load_cell(at + number * cell)

    @device_function
    def put(at: Any, vectors: Any, results: Any) -> None:
        put_cells(at, convert(vectors, results))

    @device_function
    def take(at: Any) -> Any:
        return join(take_cells(at), 0)[0]

    moved = Mover(geometry, LOAD[columns * read], put, take, STORE[rows * written])
    resident = 3 if read == 8 else 5 if max(cell, read) == 4 else 4
    return tile_kernel(f"cast transpose {code} {rows} {columns}", [moved], resident)


# Conversions of elements in registers, by the instructions of `runtime.lines.conversions`. A vector is a uint32, a
# uint64 or a pair of these, as `cuda.kernels.memory` reads it.


class Vectors:
    """`count` vectors of `elements` elements of `width` bytes, each in a word, or the 16 bytes of two words."""

    def __init__(self, count: int, elements: int, width: int) -> None:
        self.count, self.elements, self.width = count, elements, width
        self._word_bytes, self._is_pair = 8 if elements * width >= 8 else 4, elements * width == 16
        word = types.uint64 if self._word_bytes == 8 else types.uint32
        self._one = types.UniTuple(word, 2) if self._is_pair else word
        self.type = types.UniTuple(self._one, count)

    def parted(self, builder: Any, given: Any) -> list[Any]:
        """Return the elements of vectors, as integers of their width."""
        found, kind = [], ir.IntType(8 * self.width)
        for number in range(self.count):
            vector = builder.extract_value(given, number)
            words = [builder.extract_value(vector, i) for i in range(2)] if self._is_pair else [vector]
            for i in range(self.elements):
                word, place = divmod(i * self.width, self._word_bytes)
                part = words[word]
                if place:
                    part = builder.lshr(part, ir.Constant(part.type, 8 * place))
                found.append(builder.trunc(part, kind) if part.type.width > kind.width else part)
        return found

    def joined(self, context: Any, builder: Any, elements: list[Any]) -> Any:
        """Return the vectors that consist of these elements."""
        per_word = min(self._word_bytes // self.width, self.elements)
        made = [self._word(builder, elements[i : i + per_word]) for i in range(0, len(elements), per_word)]
        if self._is_pair:
            made = [context.make_tuple(builder, self._one, made[i : i + 2]) for i in range(0, len(made), 2)]
        return context.make_tuple(builder, self.type, made)

    def _word(self, builder: Any, elements: list[Any]) -> Any:
        found, kind = None, ir.IntType(8 * self._word_bytes)
        for i, one in enumerate(elements):
            wide = builder.zext(one, kind) if one.type.width < kind.width else one
            if i:
                wide = builder.shl(wide, ir.Constant(kind, 8 * self.width * i))
            found = wide if found is None else builder.or_(found, wide)
        return found


def converter(code: int | None, given: Vectors, made: Vectors, order: list[int]) -> Callable[[Any, Any], Any]:
    """Make the function that converts vectors, given them and the address of a table of results.

    Parameters
    ----------
    code : int or None
        Of the conversion, as `fastindex.algebra.cast_numbers.conversion_code` numbers them; None keeps elements as
        they are.
    given, made : Vectors
        With equal numbers of elements in total.
    order : list of int
        For each element of the result, the number of its source element.
    """

    def convert(typingctx: Any, vectors: Any, table: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            elements = given.parted(builder, arguments[0])
            if code is not None:
                conversion = Conversion(builder, names_of(code), space=GLOBAL, keeps_nan=False)
                elements = [conversion.converted(one, arguments[1]) for one in elements]
            return made.joined(context, builder, [elements[i] for i in order])

        return made.type(given.type, types.int64), generate

    return intrinsic(convert)  # type: ignore[no-any-return]
