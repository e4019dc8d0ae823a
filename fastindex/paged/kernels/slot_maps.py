"""CPU kernel of slot mappings: a block table lookup for each token of a batch."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fastindex.paged.slot_numbers import COLLECTED, SLOT_MAP
from fastindex.runtime.kernels import inlined, instructions, kernel, subroutine
from fastindex.runtime.lines import element
from fastindex.runtime.lines.lines import copy_run
from fastindex.runtime.lines.memory import (
    barrier,
    entry,
    fence,
    literal,
    load_at,
    load_stored,
    pointer,
    store,
    store_at,
)

#: Tokens looked up one by one at a time, where positions are not consecutive.
_APART = 64

_INT64, _INT32 = 0, 2
_I64 = ir.IntType(64)

_quotient = inlined(element.narrow_quotient)


@subroutine(inline=True)
def _local(map_, within):  # type: ignore[no-untyped-def]
    """Return the index of a token in its block, or -1 if another rank has it; `within` is its index in the column.

    A column begins at a turn boundary, so the index in the column determines the rank.
    """
    interleave, turn = entry(map_, SLOT_MAP.interleave), entry(map_, SLOT_MAP.turn)
    turns = _quotient(within, entry(map_, SLOT_MAP.turn_magic), entry(map_, SLOT_MAP.turn_shift))
    left = within - turns * turn
    owner = _quotient(left, entry(map_, SLOT_MAP.interleave_magic), entry(map_, SLOT_MAP.interleave_shift))
    return turns * interleave + left - owner * interleave if owner == entry(map_, SLOT_MAP.rank) else -1


@instructions("code", result=types.int64)
def _count_on(builder: Any, target: Any, positions: Any, first: Any, base: Any, code: int) -> Any:
    """Write slots ``base, base + 1, ...`` for 8 tokens; return 0 if the positions are ``first, first + 1, ...``."""
    lanes = ir.VectorType(_I64, 8)
    steps = ir.Constant(lanes, [ir.Constant(_I64, lane) for lane in range(8)])
    width = 8 if code == _INT64 else 4
    found = load_at(builder, builder.ptrtoint(positions, _I64), 8, width)
    found = found if width == 8 else builder.sext(found, lanes)
    expected = builder.add(_splat(builder, first, lanes), steps)
    store_at(builder, builder.add(_splat(builder, base, lanes), steps), target, False)
    differs = builder.icmp_signed("!=", found, expected)
    return builder.zext(builder.bitcast(differs, ir.IntType(8)), _I64)


def _splat(builder: Any, number: Any, lanes: Any) -> Any:
    first = builder.insert_element(ir.Constant(lanes, ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8))


@subroutine("table_code", "position_code")
def _map_each(table_code, position_code, map_, request, at, count, target):  # type: ignore[no-untyped-def]
    """Write the slots of `count` tokens of a request; return the number of tokens out of bounds."""
    table_bytes, position_bytes = 8 - 2 * literal(table_code), 8 - 2 * literal(position_code)
    row = pointer(entry(map_, SLOT_MAP.table) + request * entry(map_, SLOT_MAP.row_bytes))
    positions = pointer(entry(map_, SLOT_MAP.positions) + at * position_bytes)
    limit = entry(entry(map_, SLOT_MAP.limits), request)
    size, magic, shift = entry(map_, SLOT_MAP.block_size), entry(map_, SLOT_MAP.magic), entry(map_, SLOT_MAP.shift)
    blocks, null, pad = entry(map_, SLOT_MAP.num_blocks), entry(map_, SLOT_MAP.null_block), entry(map_, SLOT_MAP.pad)
    ranks = entry(map_, SLOT_MAP.ranks)
    tokens, slots = size * ranks, pointer(target)
    bad = 0
    for i in range(count):
        position = load_stored(positions, i * position_bytes, position_code)
        good = (position >= 0) & (position < limit)
        position = position if good else 0
        column = _quotient(position, magic, shift)
        block = load_stored(row, column * table_bytes, table_code)
        good = good & (block >= 0) & (block < blocks) & (block != null)
        token = position - column * tokens
        if ranks > 1:
            token = _local(map_, token)
        store(slots, i, block * size + token if good & (token >= 0) else pad)
        bad += 0 if good else 1
    barrier()
    return bad


@subroutine("table_code", "position_code")
def _map_tokens(table_code, position_code, map_, request, at, count, target):  # type: ignore[no-untyped-def]
    """Same as `_map_each`, but with one table lookup per run of consecutive positions within a block."""
    if entry(map_, SLOT_MAP.ranks) > 1:
        return _map_each(table_code, position_code, map_, request, at, count, target)
    table_bytes, position_bytes = 8 - 2 * literal(table_code), 8 - 2 * literal(position_code)
    row = pointer(entry(map_, SLOT_MAP.table) + request * entry(map_, SLOT_MAP.row_bytes))
    limit = entry(entry(map_, SLOT_MAP.limits), request)
    size, magic, shift = entry(map_, SLOT_MAP.block_size), entry(map_, SLOT_MAP.magic), entry(map_, SLOT_MAP.shift)
    blocks, null = entry(map_, SLOT_MAP.num_blocks), entry(map_, SLOT_MAP.null_block)
    bad = done = 0
    while done < count:
        positions = pointer(entry(map_, SLOT_MAP.positions) + (at + done) * position_bytes)
        slots = pointer(target + 8 * done)
        first = load_stored(positions, 0, position_code)
        run, strays = min(count - done, _APART), 1
        follows = run == 1 or load_stored(positions, position_bytes, position_code) == first + 1
        if follows and 0 <= first < limit:
            column = _quotient(first, magic, shift)
            block = load_stored(row, column * table_bytes, table_code)
            if 0 <= block < blocks and block != null:
                token = first - column * size
                run, strays = min(count - done, size - token, limit - first), 0
                base = block * size + token
                for i in range(0, run - 7, 8):
                    at_positions = pointer(entry(map_, SLOT_MAP.positions) + (at + done + i) * position_bytes)
                    strays |= _count_on(target + 8 * (done + i), at_positions, first + i, base + i, position_code)
                for i in range(run & ~7, run):
                    strays |= load_stored(positions, i * position_bytes, position_code) - first - i
                    store(slots, i, base + i)
                barrier()
        if strays:
            bad += _map_each(table_code, position_code, map_, request, at + done, run, target + 8 * done)
        done += run
    return bad


@subroutine()
def _map_run(map_, request, at, count, target):  # type: ignore[no-untyped-def]
    narrow_table = entry(map_, SLOT_MAP.table_code) == _INT32
    if entry(map_, SLOT_MAP.position_code) == _INT32:
        if narrow_table:
            return _map_tokens(2, 2, map_, request, at, count, target)
        return _map_tokens(0, 2, map_, request, at, count, target)
    if narrow_table:
        return _map_tokens(2, 0, map_, request, at, count, target)
    return _map_tokens(0, 0, map_, request, at, count, target)


@kernel
def map_slots(map_: Any, scratch: Any, request: Any, begin: Any, end: Any) -> Any:
    """Write the slots of the tokens ``begin:end``.

    Parameters
    ----------
    map_ : int64
        Address of a `SlotMap`.
    scratch : int64
        Address of `COLLECTED` int64, at the start of a cache line.
    request : int64
        The request of token `begin`.
    begin, end : int64

    Returns
    -------
    int64
        The number of tokens with a position or a block out of bounds; their slot is `pad`.
    """
    starts, slots = entry(map_, SLOT_MAP.starts), entry(map_, SLOT_MAP.slots)
    streamed = entry(map_, SLOT_MAP.streamed) != 0
    bad, at = 0, begin
    # The first flush ends at a cache line boundary of the target, so that later flushes write whole lines.
    room = COLLECTED - (slots + 8 * begin) % 64 // 8
    filled = 0
    while at < end:
        while entry(starts, request + 1) <= at:
            request += 1
        count = min(entry(starts, request + 1), end) - at
        if streamed:
            count = min(count, room - filled)
            bad += _map_run(map_, request, at, count, scratch + 8 * filled)
            filled += count
            if filled == room:
                copy_run(slots + 8 * (at + count - filled), scratch, 8 * filled, True)
                barrier()
                filled, room = 0, COLLECTED
        else:
            bad += _map_run(map_, request, at, count, slots + 8 * at)
        at += count
    if filled:
        copy_run(slots + 8 * (end - filled), scratch, 8 * filled, True)
        barrier()
    fence()
    return bad
