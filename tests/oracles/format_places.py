"""Where each code of a named format lies, by arithmetic on its coordinates, from the definitions of those who pack it.

A place is the number of the code's first bit in the buffer, or a list with one number for each of its bits. Nothing of
the package is imported, and nothing here knows shapes or digits.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from numpy.typing import NDArray

Places = int | list[int]
Definition = Callable[[tuple[int, ...], tuple[int, ...], int, dict[str, Any]], Places]

AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
BLOCK_16 = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
BLOCK_32 = [0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27]
BLOCK_32 += [at + 4 for at in BLOCK_32]


def up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def awq(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    order = [0, 2, 1, 3] if bits == 8 and p["packer"] == "vllm" else AWQ
    if bits != 4 and p["packer"] == "gptqmodel":
        # Rows of bits, each of whole words.
        return i[0] * up(n[1] * bits, 32) + i[1] * bits
    return (i[0] * n[1] + i[1] // len(order) * len(order) + order.index(i[1] % len(order))) * bits


def awq_gemv_fast(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # 32 along K: eight pairs in the order 0 4 8 12 1 ..., then 0 2 4 6 1 3 5 7 in eights, then four rows interleaved.
    row, k = i
    half, rest = divmod(k % 32, 8)
    first = [0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27]
    first += [4, 5, 12, 13, 20, 21, 28, 29, 6, 7, 14, 15, 22, 23, 30, 31]
    at = first.index(8 * half + rest)
    at = at // 8 * 8 + AWQ.index(at % 8)
    run = p["kstride"]
    at += k % run // 32 * 32
    # Each run of a row is words of four codes; the runs of four rows take turns.
    block = (row // 4 * (n[1] // run) + k // run) * 4 * run
    return (block + row % 4 * run + at) * bits


def gptq(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    k, column = i
    if 32 % bits:
        stream = [k % 32 * bits + b for b in range(bits)]
        return [((k // 32 * bits + s // 32) * n[1] + column) * 32 + s % 32 for s in stream]
    per_word = 32 // bits
    return (k // per_word * n[1] + column) * 32 + k % per_word * bits


@cache
def places_in_marlin(bits: int, narrow: bool) -> dict[int, int]:
    """Return the place of each code of 1,024: making the permutation takes longer than a whole test."""
    return {code: place for place, code in enumerate(marlin_permutation(bits, narrow))}


def marlin_permutation(bits: int, narrow: bool) -> list[int]:
    found: list[int] = []
    for thread in range(32):
        one = []
        for block in (0, 1):
            q = thread % 4
            rows = [4 * q + j for j in range(4)] + [4 * (q + 4) + j for j in range(4)]
            rows = rows if narrow else [2 * q, 2 * q + 1, 2 * (q + 4), 2 * (q + 4) + 1]
            one += [16 * row + thread // 4 + 8 * block for row in rows]
        for j in range(2 if narrow else 4):
            found += [at + (512 if narrow else 256) * j for at in one]
    order = {(4, False): AWQ, (8, False): [0, 2, 1, 3], (4, True): [0, 4, 1, 5, 2, 6, 3, 7], (8, True): [0, 1, 2, 3]}
    turn = order[bits, narrow]
    return [found[g + t] for g in range(0, len(found), len(turn)) for t in turn]


_KNOWN: dict[tuple[Any, ...], dict[int, int]] = {}


def marlin(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    narrow = p["activation_bits"] == 8
    rows = 32 if narrow else 16
    at = places_in_marlin(bits, narrow)
    k, column = i
    flat = k // rows * rows * n[1] + (column // 16) * rows * 16 + k % rows * 16 + column % 16
    return (flat // 1024 * 1024 + at[flat % 1024]) * bits


def marlin_24(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    key = ("marlin_24", bits)
    if key not in _KNOWN:
        found: list[int] = []
        for thread in range(32):
            column = thread // 4
            one = []
            for block in (0, 1):
                q = thread % 4
                rows = (2 * q, 2 * q + 1, 2 * (q + 4), 2 * (q + 4) + 1)
                one += [16 * row + column // 2 * 256 + 8 * (column % 2) + 4 * block for row in rows]
            for j in range(4):
                found += [at + j for at in one]
        turn = AWQ if bits == 4 else [0, 2, 1, 3]
        ordered = [found[g + t] for g in range(0, len(found), len(turn)) for t in turn]
        _KNOWN[key] = {v: j for j, v in enumerate(ordered)}
    k, column = i
    flat = k // 16 * 16 * n[1] + (column // 16) * 256 + k % 16 * 16 + column % 16
    return (flat // 1024 * 1024 + _KNOWN[key][flat % 1024]) * bits


def marlin_scales(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    order = [a + 8 * b for a in range(8) for b in range(8)]
    if not (n[0] > 1 if p["grouped"] is None else p["grouped"]):
        order = [2 * a + b for a in range(4) for b in (0, 1, 8, 9, 16, 17, 24, 25)]
    column = i[1]
    return (i[0] * n[1] + column // len(order) * len(order) + order.index(column % len(order))) * bits


def marlin_zero_points(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    scale = [a + 8 * b for a in range(8) for b in range(8)].index(i[1] % 64)
    turn = AWQ if bits == 4 else [0, 2, 1, 3]
    # Kernels of 8-bit activations take them in order.
    turn = turn if p["activation_bits"] == 16 else sorted(turn)
    at = scale // len(turn) * len(turn) + turn.index(scale % len(turn))
    return (i[0] * n[1] + i[1] // 64 * 64 + at) * bits


def pack_quantized(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    along, across, rows = (i[1], i[0], n[1]) if p["packed_dim"] == 1 else (i[0], i[1], n[0])
    words = -(-rows * bits // 32) if p["dense"] else -(-rows // (32 // bits))
    first = along * bits if p["dense"] else along // (32 // bits) * 32 + along % (32 // bits) * bits
    stream = [first + b for b in range(bits)]
    if p["packed_dim"] == 1:
        return [(across * words + s // 32) * 32 + s % 32 for s in stream]
    return [(s // 32 * n[1] + across) * 32 + s % 32 for s in stream]


def mlx(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    return (i[0] * n[1] + i[1]) * bits


def tinygemm(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # A warp has 8 rows by 16 * inner_k_tiles; a thread has of row t / 4 the columns 2 (t % 4), + 1, + 8, + 9 of each
    # tile of 16; a word holds two tiles, their eight codes in the order 0 2 4 6 1 3 5 7.
    row, k = i
    inner = p["inner_k_tiles"]
    tile, within = divmod(k % (16 * inner), 16)
    thread = row % 8 * 4 + within % 8 // 2
    value = tile % 2 * 4 + within // 8 * 2 + within % 2
    word = ((row // 8 * (n[1] // (16 * inner)) + k // (16 * inner)) * 32 + thread) * (inner // 2) + tile // 2
    return (word * 8 + AWQ.index(value)) * 4


def aten(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    row, k = i
    block = {"avx512": 64, "avx2": 32, "default": 32, "last": n[0]}[p["capability"]]
    begin = n[0] // block * block
    if row >= begin or p["capability"] == "last":
        # The last rows, if they are no whole block: a byte has two neighbours.
        rows = n[0] - begin or n[0]
        begin = n[0] - rows
        return (begin // 2 * n[1] + k * (rows // 2) + (row - begin) // 2) * 8 + row % 2 * 4
    if p["capability"] == "avx512":
        # Blocks of 64 rows; a byte has rows 32 apart.
        return (row // 64 * 32 * n[1] + k * 32 + row % 32) * 8 + row % 64 // 32 * 4
    byte = row // 32 * 16 * n[1]
    if p["capability"] == "avx2":
        return (byte + k * 16 + row % 16) * 8 + row % 32 // 16 * 4
    return (byte + k * 16 + row % 32 // 2) * 8 + row % 2 * 4


def cutlass(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Rows are permuted in sixteens (32 for 4 bits), columns interleaved in pairs (fours), values in fours (eights).
    k, column = i
    group, turn = (16, [0, 2, 1, 3]) if bits == 8 else (32, AWQ)
    order = []
    for pair in range(4):
        for part in range(group // 8):
            order += [pair * 2 + part * 8, pair * 2 + part * 8 + 1]
    at = order.index(k % group) + k % 64 // group * group
    columns = 2 if bits == 8 else 4
    position = (column // columns * n[0] + k // 64 * 64) * columns + column % columns * 64 + at
    return (position // len(turn) * len(turn) + turn.index(position % len(turn))) * bits


def bnb(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    flat = 0
    for j, size in zip(i, n, strict=True):
        flat = flat * size + j
    return flat // 2 * 8 + (4 if flat % 2 == 0 else 0)


def nvfp4(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    return (i[0] * n[1] + i[1]) * 4


def packed_bytes(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    count = 8 // bits
    byte = i[0] * (n[1] // count) + i[1] // count if p["dimension"] else i[0] // count * n[1] + i[1]
    within = i[p["dimension"]] % count
    return byte * 8 + (within if p["first"] == "low" else count - 1 - within) * bits


def matmul_nbits(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    return (i[1] * up(n[0], p["block_size"]) + i[0]) * bits


def flat(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    place = 0
    for j, size in zip(i, n, strict=True):
        place = place * size + j
    return place * bits


def openvino(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    place = int(flat(i, n, 1, p))  # type: ignore[arg-type]
    if bits in (2, 4):
        return place * bits
    if bits == 1:
        return place // 8 * 8 + 7 - place % 8
    # Three bytes: two of the low bits of each half of the values, one of the high bits, always the first value on top.
    values, low = (8, 2) if bits == 3 else (4, 4)
    group, value = place // values * 24, place % values
    in_half = value % (values // 2)
    begin = group + value // (values // 2) * 8 + 8 - low * (in_half + 1)
    last = group + 16 + 8 - (bits - low) * (value + 1)
    return [*range(begin, begin + low), *range(last, last + bits - low)]


def modelopt(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    return (i[0] // 2 * n[1] + i[1]) * 8 + i[0] % 2 * 4


def quanto(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    rows = -(-n[0] // (8 // bits))
    return (i[0] % rows * n[1] + i[1]) * 8 + i[0] // rows * bits


def hqq(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    if bits == 3:
        # Words of 32 bits, of which the two highest are not used.
        rows = up(n[0], 10) // 10
        return (i[0] % rows * n[1] + i[1]) * 32 + 27 - i[0] // rows * 3
    rows = n[0] // (8 // bits)
    return (i[0] % rows * n[1] + i[1]) * 8 + 8 - bits - i[0] // rows * bits


def uintx(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    columns = n[1] // (8 // bits)
    return (i[0] * columns + i[1] % columns) * 8 + i[1] // columns * bits


def exllama(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # The words of GPTQ, with even rows in the low half.
    return ((i[0] // 8 * n[1] + i[1]) * 8 + i[0] % 2 * 4 + i[0] % 8 // 2) * 4


def bnb_cpu(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Pairs of columns of 32 rows are a run of 64 codes: 32 low halves of bytes, then their high halves.
    run = i[0] % 32 * 2 + i[1] % 2
    return (i[0] // 32 * n[1] * 16 + i[1] // 2 * 32 + run % 32) * 8 + run // 32 * 4


def sparse_24(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Rows change places in groups of 32 (16 for 32 bits), then the corners of squares of two by two, as CUTLASS does.
    group, spread = (32, 4) if bits == 16 else (16, 2)
    row, column = i[0] // group * group + i[0] % 8 * spread + i[0] % group // 8, i[1]
    if row % 2 != column % 2:
        move = 1 if column % 2 else -1
        row, column = row + move, column - move
    return (column // 2 * n[0] * 2 + row * 2 + column % 2) * bits


def repacked_q8(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    rows, run = p["rows"], p["interleave"]
    block = (i[0] // rows * (n[1] // 32) + i[1] // 32) * rows * 32
    return (block + i[1] % 32 // run * rows * run + i[0] % rows * run + i[1] % run) * 8


def blocked_scales(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    row, column = i
    tile = row // 128 * (up(n[1], 4) // 4) + column // 4
    return (tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4) * 8


def scales_8x4(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    return ((i[0] // 8 * (up(n[1], 4) // 4) + i[1] // 4) * 32 + i[0] % 8 * 4 + i[1] % 4) * 8


def deep_gemm(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Words of four scales along K, column after column of words, each as long as M aligned to 16 bytes.
    return ((i[1] // 4 * up(n[0], 4) + i[0]) * 4 + i[1] % 4) * 8


def blackwell_scale(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    k, row = i
    tile = row // 128 * (up(n[0], 8) // 4) + k // 4
    return (tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + k % 4) * 8


def hopper_scale(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    row, k = i
    w = p["num_warps"]
    block, rest = divmod(row, 32 * w)
    half, rest = divmod(rest, 16 * w)
    warp, rest = divmod(rest, 16)
    eight, thread = divmod(rest, 8)
    width = up(n[1], 2)
    at = (block * w + warp) * (width // 2) + k // 2
    return (((at * 2 + half) * 8 + thread) * 4 + k % 2 * 2 + eight) * 8


def cdna4(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    k, row = i
    at = row // 32 * (n[0] // 8) + k // 8
    at = (at * 4 + k % 4) * 16 + row % 16
    return ((at * 2 + k % 8 // 4) * 2 + row % 32 // 16) * 8


def aiter_scale(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Rows in 32 and columns in 8: a word has two rows 16 apart of two columns 4 apart.
    row, k = i
    at = row // 32 * (up(n[1], 8) // 8) + k // 8
    at = (at * 4 + k % 4) * 16 + row % 16
    return ((at * 2 + k % 8 // 4) * 2 + row % 32 // 16) * 8


def blackwell_value(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    k, column = i
    block = k // p["block_k"] * (up(n[1], p["block_n"]) // p["block_n"]) + column // p["block_n"]
    return ((block * p["block_n"] + column % p["block_n"]) * p["block_k"] + k % p["block_k"]) * 4


def shuffle_a(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # The table says where a row goes.
    to = BLOCK_32 if p["epilogue_tile_m"] % 128 == 0 else BLOCK_16
    return ((i[0] // len(to) * len(to) + to[i[0] % len(to)]) * n[1] + i[1]) * bits


def gated_rows(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    half = n[0] // 2
    row = 2 * i[0] if i[0] < half else 2 * (i[0] - half) + 1
    return (row * n[1] + i[1]) * bits


def block_layout(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    block = p["block_k"]
    return ((i[1] // block * n[0] + i[0]) * block + i[1] % block) * 8


def shuffle_sf_a(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    moved = shuffle_a(i, n, 1, p)
    assert isinstance(moved, int)
    return blocked_scales((moved // n[1], i[1]), n, 8, p)


def aiter_weight(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    rows, chunk = p["layout"][0], 128 // bits
    block = i[0] // rows * (n[1] // chunk) + i[1] // chunk
    return ((block * rows + i[0] % rows) * chunk + i[1] % chunk) * bits


def gguf(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    flat = i[0] * n[1] + i[1]
    if bits == 8 or p["type"] in ("q1_0", "q2_0") or (p["type"] in ("q5_0", "q5_1") and bits == 1):
        return flat * bits
    if bits == 1:
        # Value 32g + l of a block is bit g of byte l.
        return (flat // 256 * 32 + flat % 32) * 8 + flat % 256 // 32
    if bits == 2:
        return q6_k_high(i, n, bits, p)
    if p["type"] in ("q4_k", "q5_k", "q6_k"):
        return q6_k_low(i, n, bits, p) if p["type"] == "q6_k" else q4_k(i, n, bits, p)
    half = 8 if p["type"] == "nvfp4" else 16
    return (flat // (2 * half) * half + flat % half) * 8 + flat % (2 * half) // half * 4


def q4_k(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    flat = i[0] * n[1] + i[1]
    return (flat // 64 * 32 + flat % 32) * 8 + flat % 64 // 32 * 4


def q6_k_low(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    flat = i[0] * n[1] + i[1]
    return (flat // 128 * 64 + flat % 64) * 8 + flat % 128 // 64 * 4


def q6_k_high(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    flat = i[0] * n[1] + i[1]
    return (flat // 128 * 32 + flat % 32) * 8 + flat % 128 // 32 * 2


def repacked(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Blocks of 32 of `rows` rows: runs of s bytes of each row in turn, byte j with value j low, j + 16 high.
    rows, run = p["rows"], p["interleave"]
    byte, value = i[1] % 16, i[1] % 32
    block = (i[0] // rows * (n[1] // 32) + i[1] // 32) * rows * 16
    return (block + byte // run * rows * run + i[0] % rows * run + byte % run) * 8 + value // 16 * 4


def ggml_repacked(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Bytes of a block of GGUF, of which those of `rows` rows take turns, run by run.
    rows, run = p["rows"], p["interleave"]
    values = {"q1_0": 128, "q2_k": 256, "q4_k": 256, "q5_k": 256, "q6_k": 256}.get(p["type"], 32)
    count = values * bits // 8
    place = gguf((0, i[1]), n, bits, p)
    assert isinstance(place, int)
    block, byte = divmod(place // 8, count)
    at = (i[0] // rows * (n[1] // values) + block) * rows * count
    return (at + byte // run * rows * run + i[0] % rows * run + byte % run) * 8 + place % 8


def nunchaku(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Tiles of 128 rows by 32 bytes. A thread has four words of each 16 rows: two rows 8 apart, two halves of the tile.
    row, k = i[0] % 128, i[1] * bits // 32
    tile = i[0] // 128 * (n[1] * bits // 256) + k // 8
    thread = row // 16 * 32 + row % 8 * 4 + k % 4
    return (tile * 1024 + thread * 4 + row % 16 // 8 * 2 + k % 8 // 4) * 32 + i[1] * bits % 32


def nunchaku_scales(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    row, column = i[0] % 128, i[1]
    if bits == 8:
        tile = i[0] // 128 * (n[1] // 4) + column // 4
        return (tile * 512 + row % 8 * 64 + row % 32 // 8 * 16 + row // 32 * 4 + column % 4) * 8
    # The pairs of eights 0 1 8 9, 2 3 10 11 and so on of 16 rows.
    at = row // 16 * 16 + row % 8 // 2 * 4 + row % 16 // 8 * 2 + row % 2
    return ((i[0] // 128 * n[1] + column) * 128 + at) * 16


def mxfp6(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    return (i[0] * n[1] + i[1]) * 6


def col32(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    return (i[1] // 32 * n[0] * 32 + i[0] * 32 + i[1] % 32) * bits


def col4(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    # Tiles of 8 rows by 32 columns; in them 4 columns of 4 even rows, or of 4 odd ones, are together.
    row, column = i[0], i[1] % 32
    inner = row % 2 * 128 + column // 8 * 32 + (16 if column % 8 >= 4 else 0) + row % 8 // 2 * 4 + column % 4
    return (i[1] // 32 * 32 * up(n[0], 8) + row // 8 * 256 + (inner)) * bits


def col32_4r4(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    row, column = i[0], i[1] % 32
    inner = ((row % 8 // 2 * 4 + row % 32 // 8) * 2 + row % 2) * 32 + column
    return (i[1] // 32 * 32 * up(n[0], 32) + row // 32 * 1024 + inner) * bits


def fractal(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    c = p["c0"] or 256 // bits
    return (i[1] // c * up(n[0], 16) * c + i[0] * c + i[1] % c) * bits


def tenstorrent(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    (th, tw), (fh, fw) = p["tile"], p["face"]
    y, x = i[0] % th, i[1] % tw
    tile = i[0] // th * (up(n[1], tw) // tw) + i[1] // tw
    face = y // fh * (tw // fw) + x // fw
    return (tile * th * tw + face * fh * fw + y % fh * fw + x % fw) * bits


def vnni(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    f = p["factor"] or 32 // bits
    return ((i[0] // f * n[1] + i[1]) * f + i[0] % f) * bits


def paged_key(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    block, token, head, d = i
    x = p["x"] or 128 // bits
    return ((((block * n[2] + head) * (n[3] // x) + d // x) * n[1] + token) * x + d % x) * bits


def paged_value(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    block, token, head, d = i
    return (((block * n[2] + head) * n[3] + d) * n[1] + token) * bits


def hopper_value(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    row, k = i
    c, high = divmod(k, 2)
    if p["mma_version"] == 3:
        j = row // 8 % 2 + 2 * (c // 4 % 2)
        order = [c >> 3, c >> 4, c, c >> 1, row]
    else:
        j = c % 4
        order = [row >> 3, c >> 4, c >> 2, c >> 3, row]
    word = sum((bit & 1) << e for e, bit in enumerate(order))
    columns = up(n[1], 64) // 64
    word += 32 * (c // 32 + columns * (row // 2 % 4 + 4 * (row // 16)))
    base = word * 32 + 16 * high
    if j < 3:
        return [base + 6 - 3 * j, base + 7 - 3 * j, base + 8 - 3 * j, base + 15 - 3 * j]
    return [base + 13, base + 10, base + 11, base + 14]


def tag_parts(p: dict[str, Any]) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Return the dimensions of a tag from the outside in, its blocks as size and dimension, and each's whole block."""
    outer = re.match("[A-Za-z]+", p["tag"])
    assert outer is not None
    letters = outer[0].lower()
    family = next(f for f in ("ncdhw", "goidhw", "abcdefghijkl") if set(letters) <= set(f))
    logical = sorted(letters, key=family.index)
    blocks = [(int(size), logical.index(letter)) for size, letter in re.findall("([0-9]+)([a-z])", p["tag"])]
    whole = [math.prod(size for size, of in blocks if of == d) for d in range(len(logical))]
    return [logical.index(letter) for letter in letters], blocks, whole


def onednn(i: tuple[int, ...], n: tuple[int, ...], bits: int, p: dict[str, Any]) -> Places:
    outer, blocks, whole = tag_parts(p)
    place = 0
    for d in outer:
        place = place * -(-n[d] // whole[d]) + i[d] // whole[d]
    rest = [index % block for index, block in zip(i, whole, strict=True)]
    left = list(whole)
    for size, d in blocks:
        left[d] //= size
        place = place * size + rest[d] // left[d]
        rest[d] %= left[d]
    return place * bits


DEFINITIONS: dict[str, Definition] = {
    "awq": awq,
    "awq_gemv_fast": awq_gemv_fast,
    "gptq": gptq,
    "marlin": marlin,
    "marlin_24_values": marlin_24,
    "marlin_scales": marlin_scales,
    "marlin_zero_points": marlin_zero_points,
    "pack_quantized": pack_quantized,
    "mlx": mlx,
    "packed_bytes": packed_bytes,
    "onnx_matmul_nbits": matmul_nbits,
    "nncf": flat,
    "tflite": flat,
    "coreml": flat,
    "openvino": openvino,
    "modelopt": modelopt,
    "quanto": quanto,
    "hqq": hqq,
    "torchao_uintx": uintx,
    "exllama": exllama,
    "bnb_nf4_cpu": bnb_cpu,
    "sparse_24_metadata": sparse_24,
    "tinygemm": tinygemm,
    "aten_int4pack_cpu": aten,
    "cutlass_mixed_gemm": cutlass,
    "bnb_nf4": bnb,
    "bnb_fp4": bnb,
    "nvfp4": nvfp4,
    "blocked_scales": blocked_scales,
    "trtllm_scales_8x4": scales_8x4,
    "deep_gemm_packed_ue8m0": deep_gemm,
    "blackwell_mx_scale": blackwell_scale,
    "hopper_mx_scale": hopper_scale,
    "hopper_mx_value": hopper_value,
    "cdna4_mx_scale": cdna4,
    "aiter_mx_scale": aiter_scale,
    "blackwell_mx4_value_shuffled": blackwell_value,
    "trtllm_shuffle_matrix_a": shuffle_a,
    "trtllm_gated_rows": gated_rows,
    "trtllm_block_layout": block_layout,
    "trtllm_shuffle_matrix_sf_a": shuffle_sf_a,
    "aiter_shuffle_weight": aiter_weight,
    "gguf_body": gguf,
    "gguf_q4_k_body": q4_k,
    "gguf_q6_k_low": q6_k_low,
    "gguf_q6_k_high": q6_k_high,
    "ggml_q4_0_repacked_body": repacked,
    "ggml_q8_0_repacked_body": repacked_q8,
    "ggml_repacked_body": ggml_repacked,
    "nunchaku": nunchaku,
    "nunchaku_scales": nunchaku_scales,
    "mxfp6": mxfp6,
    "col32": col32,
    "col4_4r2_8c": col4,
    "col32_2r_4r4": col32_4r4,
    "fractal_nz": fractal,
    "tenstorrent_tile": tenstorrent,
    "vnni": vnni,
    "vllm_paged_key": paged_key,
    "vllm_paged_value": paged_value,
    "onednn": onednn,
}


Sizes = Callable[[tuple[int, ...], int, dict[str, Any]], int]


def exact(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    return math.prod(n) * bits


def whole_bytes(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    return up(math.prod(n) * bits, 8)


def padded(*multiples: int | str) -> Sizes:
    """Bits of an array whose dimensions are padded to multiples, as numbers or the names of parameters."""

    def size(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
        found = [p[one] if isinstance(one, str) else one for one in multiples]
        return math.prod(map(up, n, found)) * bits

    return size


def gptq_bits(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    return n[0] * n[1] * bits if 32 % bits else -(-n[0] // (32 // bits)) * n[1] * 32


def awq_bits(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    return n[0] * (up(n[1] * bits, 32) if p["packer"] == "gptqmodel" else n[1] * bits)


def words(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    along = n[p["packed_dim"]]
    return n[1 - p["packed_dim"]] * (-(-along * bits // 32) if p["dense"] else -(-along // (32 // bits))) * 32


def hopper_scale_bits(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    return up(n[0], 32 * p["num_warps"]) * up(n[1], 2) * 8


def blackwell_value_bits(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    # A column has whole blocks of K, and whole lines of 128 bytes.
    return up(n[0], 2 * math.lcm(128, p["block_k"] // 2)) * up(n[1], p["block_n"]) * 4


def fractal_bits(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    return up(n[0], 16) * up(n[1], p["c0"] or 256 // bits) * bits


def vnni_bits(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    return up(n[0], p["factor"] or 32 // bits) * n[1] * bits


def tiled_bits(n: tuple[int, ...], bits: int, p: dict[str, Any]) -> int:
    return up(n[0], p["tile"][0]) * up(n[1], p["tile"][1]) * bits


#: How many bits a format takes, where padding makes it more than the codes have.
SIZES: dict[str, Sizes] = {
    "onnx_matmul_nbits": padded("block_size", 1),
    "nncf": whole_bytes,
    "tflite": whole_bytes,
    "coreml": whole_bytes,
    "openvino": lambda n, bits, p: up(math.prod(n) * bits, 24 if bits in (3, 6) else 8),
    "quanto": lambda n, bits, p: up(n[0], 8 // bits) * n[1] * bits,
    "hqq": lambda n, bits, p: up(n[0], 10) // 10 * n[1] * 32 if bits == 3 else math.prod(n) * bits,
    "awq": awq_bits,
    "gptq": gptq_bits,
    "pack_quantized": words,
    "tinygemm": padded(8, 1),
    **dict.fromkeys(("bnb_nf4", "bnb_fp4"), lambda n, bits, p: up(math.prod(n), 2) * 4),
    "blocked_scales": padded(128, 4),
    "trtllm_scales_8x4": padded(8, 4),
    "deep_gemm_packed_ue8m0": padded(4, 4),
    "blackwell_mx_scale": padded(8, 128),
    "hopper_mx_scale": hopper_scale_bits,
    "hopper_mx_value": padded(16, 64),
    "blackwell_mx4_value_shuffled": blackwell_value_bits,
    "trtllm_shuffle_matrix_sf_a": padded(128, 4),
    "col32": padded(1, 32),
    "col4_4r2_8c": padded(8, 32),
    "col32_2r_4r4": padded(32, 32),
    "fractal_nz": fractal_bits,
    "tenstorrent_tile": tiled_bits,
    "vnni": vnni_bits,
    "aiter_mx_scale": padded(256, 8),
    "onednn": lambda n, bits, p: math.prod(map(up, n, tag_parts(p)[2])) * bits,
}


def nbytes(name: str, sizes: tuple[int, ...], bits: int, parameters: dict[str, Any]) -> int:
    """Return how many bytes a format takes."""
    return SIZES.get(name, exact)(sizes, bits, parameters) // 8


def packed(name: str, codes: NDArray[Any], bits: int, parameters: dict[str, Any]) -> bytes:
    """Return the bytes of a format; padding is 0, but for the code 7 of nf4."""
    result = bytearray(nbytes(name, codes.shape, bits, parameters))
    for index in itertools.product(*map(range, codes.shape)):
        value = int(codes[index])
        place = DEFINITIONS[name](index, codes.shape, bits, parameters)
        places: Sequence[int] = range(place, place + bits) if isinstance(place, int) else place
        for b, at in enumerate(places):
            result[at // 8] |= (value >> b & 1) << at % 8
    if name == "bnb_nf4" and math.prod(codes.shape) % 2:
        result[-1] |= 7
    return bytes(result)
