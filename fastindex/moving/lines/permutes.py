"""Byte shuffles with patterns in tables: a vector of the destination is assembled from fragments of the source.

For each vector, a table holds the mask of its padding bytes, and for each fragment its offset and its shuffle pattern.
So one compilation serves every pattern. The vector is the longest that the machine shuffles with one instruction: a
line with AVX-512 VBMI, 16 bytes elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from fastindex.moving.assembly_numbers import HIGH_NIBBLE, patterns_of_piece
from fastindex.runtime.kernels import instructions
from fastindex.runtime.lines.lines import shuffle
from fastindex.runtime.lines.memory import load_at, offset_by, store_at
from fastindex.runtime.machine_code import features
from fastindex.runtime.numbers import LINE_BYTES

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
# Shuffles bytes of two lines, by positions from 0 to 127.
_OF_TWO_LINES = "llvm.x86.avx512.vpermi2var.qi.512"


def _called(builder: Any, name: str, *vectors: Any) -> Any:
    """Call an LLVM intrinsic whose operands and result have one vector type."""
    kind = ir.FunctionType(vectors[0].type, [vector.type for vector in vectors])
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), vectors)


def _permuted(builder: Any, value: Any, pattern: Any) -> Any:
    """Shuffle the bytes of a vector by a pattern; 0 where the pattern has `NOTHING`."""
    vector = value.type
    zero = ir.Constant(vector, [0] * vector.count)
    if vector.count == 64 and "avx512vbmi" in features():
        taken = _called(builder, "llvm.x86.avx512.permvar.qi.512", value, pattern)
        return builder.select(builder.icmp_signed("<", pattern, zero), zero, taken)
    if vector.count == 16 and "ssse3" in features():
        return _called(builder, "llvm.x86.ssse3.pshuf.b.128", value, pattern)
    if vector.count == 16 and "neon" in features():
        # tbl1 gives 0 for positions beyond the vector.
        places = builder.and_(pattern, ir.Constant(vector, [0x8F] * vector.count))
        return _called(builder, "llvm.aarch64.neon.tbl1.v16i8", value, places)
    low = builder.and_(pattern, ir.Constant(vector, [vector.count - 1] * vector.count))
    return builder.select(builder.icmp_signed("<", pattern, zero), zero, _byte_by_byte(builder, [value], low))


def permuted_line(builder: Any, line: Any, pattern: Any) -> Any:
    """Shuffle the bytes of a line by a pattern of positions from 0 to 63."""
    if "avx512vbmi" in features():
        return _called(builder, "llvm.x86.avx512.permvar.qi.512", line, pattern)
    return _byte_by_byte(builder, [line], pattern)


def permuted_pair(builder: Any, first: Any, second: Any, pattern: Any) -> Any:
    """Shuffle the bytes of two lines by a pattern of positions from 0 to 127; the second line starts at 64."""
    if "avx512vbmi" in features():
        return _called(builder, _OF_TWO_LINES, first, pattern, second)
    return _byte_by_byte(builder, [first, second], pattern)


def _byte_by_byte(builder: Any, lines: Sequence[Any], pattern: Any) -> Any:
    """Shuffle bytes in memory, for machines without the instruction: correct, but too slow for any plan."""
    vector = pattern.type
    room = cgutils.alloca_once(builder, ir.ArrayType(vector, len(lines) + 2))
    places = [builder.gep(room, [_INT32(0), _INT32(k)]) for k in range(len(lines) + 2)]
    for place, value in zip(places, (*lines, pattern), strict=False):
        builder.store(value, place)
    bytes_at = [builder.bitcast(place, _INT8.as_pointer()) for place in (places[0], places[-2], places[-1])]
    with cgutils.for_range(builder, _INT64(vector.count)) as loop:
        at = builder.zext(builder.load(builder.gep(bytes_at[1], [loop.index])), _INT64)
        builder.store(builder.load(builder.gep(bytes_at[0], [at])), builder.gep(bytes_at[2], [loop.index]))
    return builder.load(places[-1])


def permuted_in_lanes(builder: Any, line: Any, mask: Any) -> Any:
    """Shuffle the bytes of a line within each 16-byte lane, by the pattern at address `mask`; 0 where negative."""
    lane = load_at(builder, mask, 16, 1)
    size, name = 16, ""
    if line.type.count == 64 and "avx512bw" in features():
        size, name = 64, "llvm.x86.avx512.pshuf.b.512"
    elif "avx2" in features():
        size, name = 32, "llvm.x86.avx2.pshuf.b"
    pattern = shuffle(builder, lane, lane, [k % 16 for k in range(size)])
    parts = [shuffle(builder, line, line, range(at, at + size)) for at in range(0, line.type.count, size)]
    parts = [_called(builder, name, part, pattern) if name else _permuted(builder, part, pattern) for part in parts]
    while len(parts) > 1:
        pairs = zip(parts[0::2], parts[1::2], strict=True)
        parts = [shuffle(builder, *pair, range(2 * parts[0].type.count)) for pair in pairs]
    return parts[0]


def shifted_lines(builder: Any, lines: Sequence[Any], lead: Any, numbers: Any, room: Any) -> list[Any]:
    """Return the lines that start `lead` bytes into each given line but the last, continued from the next line.

    `numbers` is the address of the bytes from 0 to 127, `room` of scratch memory for all lines.
    """
    line = ir.VectorType(_INT8, LINE_BYTES)
    given = [builder.bitcast(one, line) for one in lines]
    if "avx512vbmi" in features():
        places = load_at(builder, builder.add(numbers, lead), LINE_BYTES, 1)
        return [_called(builder, _OF_TWO_LINES, first, places, second) for first, second in pairwise(given)]
    for place, one in enumerate(given):
        store_at(builder, one, offset_by(builder, room, place * LINE_BYTES), False)
    begins = (builder.add(offset_by(builder, room, place * LINE_BYTES), lead) for place in range(len(given) - 1))
    return [load_at(builder, begin, LINE_BYTES, 1) for begin in begins]


def _nibbles(builder: Any, value: Any, patterns: Sequence[Any]) -> Any:
    """Shuffle nibbles: one pattern gives the low nibbles of the result, one the high nibbles.

    A nibble for which a pattern has `NOTHING` is undefined.
    """
    vector, words = value.type, ir.VectorType(ir.IntType(16), value.type.count // 2)
    whole, four = builder.bitcast(value, words), ir.Constant(words, [4] * words.count)
    # Bits that shifts carry from one byte to the next are in the nibble that is masked out.
    lowered = builder.bitcast(builder.lshr(whole, four), vector)
    raised = builder.bitcast(builder.shl(whole, four), vector)
    low = _permuted_of_two(builder, value, lowered, patterns[0])
    high = _permuted_of_two(builder, raised, value, patterns[1])
    low_half, high_half = (ir.Constant(vector, [number] * vector.count) for number in (0x0F, 0xF0))
    return builder.or_(builder.and_(low, low_half), builder.and_(high, high_half))


def _permuted_of_two(builder: Any, first: Any, second: Any, pattern: Any) -> Any:
    """Shuffle the bytes of a vector by a pattern; bytes with `HIGH_NIBBLE` come from a second vector."""
    vector = first.type
    if vector.count == 64 and "avx512vbmi" in features():
        return _called(builder, _OF_TWO_LINES, first, pattern, second)
    found = [_permuted(builder, value, pattern) for value in (first, second)]
    high = ir.Constant(vector, [HIGH_NIBBLE] * vector.count)
    is_high = builder.icmp_unsigned("!=", builder.and_(pattern, high), ir.Constant(vector, [0] * vector.count))
    return builder.select(is_high, found[1], found[0])


def _merged(builder: Any, made: Any, piece: Any, patterns: Sequence[Any]) -> Any:
    """Return a vector with the bytes of a fragment inserted, by `patterns_of_piece` patterns."""
    if len(patterns) > 1:
        return builder.or_(made, builder.and_(_nibbles(builder, piece, patterns), patterns[2]))
    vector = made.type
    if vector.count == 64 and "avx512vbmi" in features():
        taken = _called(builder, "llvm.x86.avx512.permvar.qi.512", piece, patterns[0])
        is_nothing = builder.icmp_signed("<", patterns[0], ir.Constant(vector, [0] * vector.count))
        return builder.select(is_nothing, made, taken)
    return builder.or_(made, _permuted(builder, piece, patterns[0]))


def _with_piece(builder: Any, made: Any, number: Any, sizes: tuple[int, int], addresses: tuple[Any, Any, Any]) -> Any:
    """Load fragment `number` and return a vector with its bytes inserted.

    `sizes` is (bytes of the fragment to read, number of its patterns); `addresses` are those of the source, the
    fragment offsets and the patterns.
    """
    source, offsets, patterns = addresses
    (read, parts), size = sizes, made.type.count
    place = builder.inttoptr(builder.add(offsets, builder.mul(number, _INT64(8))), _INT64.as_pointer())
    piece = load_at(builder, builder.add(source, builder.load(place)), read, 1)
    if read < size:
        # No pattern selects a byte after the fragment.
        piece = shuffle(builder, piece, piece, [k % read for k in range(size)])
    first = builder.add(patterns, builder.mul(number, _INT64(size * parts)))
    found = [load_at(builder, offset_by(builder, first, size * (1 + part)), size, 1) for part in range(parts)]
    return _merged(builder, made, piece, found)


@instructions("vector_bytes", "piece_bytes", "nibbles", "streamed", "pieces")
def assemble_vector(
    builder: Any, vector_bytes: int, piece_bytes: int, nibbles: int, streamed: int, pieces: int, addresses: Any
) -> None:
    """Write one vector, assembled from fragments of the source and padding.

    Parameters
    ----------
    vector_bytes, piece_bytes, nibbles, streamed, pieces : literal int
        Bytes of a vector; bytes to read of a fragment; 2 for nibbles; whether to write a line with a non-temporal
        store; number of fragments if it is constant, else 0.
    addresses : (int64, int64, int64, int64, int64, int64)
        Address of the vector; address of the source; number of fragments; address of their byte offsets from the
        source, an int64 each; address of the patterns: a mask with ones at padding, then the patterns of each fragment,
        see `patterns_of_piece`; address of a vector of padding.
    """
    sizes = min(piece_bytes, vector_bytes), patterns_of_piece(nibbles)
    target, source, count, offsets, patterns, padding = cgutils.unpack_tuple(builder, addresses)
    places = source, offsets, patterns
    made = builder.and_(*(load_at(builder, address, vector_bytes, 1) for address in (padding, patterns)))
    if pieces:
        for number in range(pieces):
            made = _with_piece(builder, made, _INT64(number), sizes, places)
    else:
        kept = cgutils.alloca_once(builder, made.type)
        builder.store(made, kept)
        with cgutils.for_range(builder, count) as loop:
            builder.store(_with_piece(builder, builder.load(kept), loop.index, sizes, places), kept)
        made = builder.load(kept)
    store_at(builder, made, target, bool(streamed))


@instructions("vector_bytes", "streamed")
def pad_vector(builder: Any, vector_bytes: int, streamed: int, target: Any, padding: Any) -> None:
    """Write a vector of padding; a line with a non-temporal store if the literal `streamed` is not 0."""
    store_at(builder, load_at(builder, padding, vector_bytes, 1), target, bool(streamed))
