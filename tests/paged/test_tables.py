"""Block tables: FlashInfer's and SGLang's forms there and back, kernel blocks, owners of slots.

Tests of: paged.tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastindex.paged as fp
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError
from tests.cases.strategies import seeds


def random_table(random: np.random.Generator) -> fp.BlockTable:
    requests, columns, size = (int(n) for n in random.integers(1, 7, 3))
    blocks = random.permutation(requests * columns).reshape(requests, columns).astype(np.int32)
    return fp.BlockTable(blocks, block_size=size, lengths=random.integers(0, columns * size + 1, requests))


@pytest.mark.parametrize("seed", seeds(40))
def test_forms_there_and_back(seed: int) -> None:
    table = random_table(np.random.default_rng(seed))
    size = table.block_size
    tokens = [
        [int(table.blocks[r, p // size]) * size + p % size for p in range(length)]
        for r, length in enumerate(table.lengths.tolist())
    ]
    csr = table.to_csr()
    for request, of_request in enumerate(tokens):
        pages = csr.indices[csr.indptr[request] : csr.indptr[request + 1]]
        length = (len(pages) - 1) * size + csr.last_page_len[request] if len(pages) else 0
        assert length == len(of_request)
        assert [int(pages[p // size]) * size + p % size for p in range(length)] == of_request
    slots = table.to_slots(pad=-5)
    for again in (
        fp.BlockTable.from_csr(*csr, page_size=size),
        fp.BlockTable.from_csr(*(array.astype(np.uint64) for array in csr), page_size=size),
        fp.BlockTable.from_slots(slots, table.lengths, page_size=size),
    ):
        assert again.lengths.tolist() == table.lengths.tolist()
        for request, of_request in enumerate(tokens):
            assert again.to_slots()[request, : len(of_request)].tolist() == of_request
    for request, of_request in enumerate(tokens):
        assert slots[request].tolist() == of_request + [-5] * (slots.shape[1] - len(of_request))
        owners = table.owners(of_request)
        assert owners.request.tolist() == [request] * len(of_request)
        assert owners.position.tolist() == list(range(len(of_request)))
    free = sorted(set(range(table.blocks.size * size)) - {slot for of_request in tokens for slot in of_request})
    assert set(table.owners(free).request.tolist()) <= {-1}


def test_dtypes_of_csr() -> None:
    assert fp.BlockTable([[2**31 - 1]], block_size=1).to_csr().indices.dtype == np.int32
    large = fp.BlockTable([[2**31]], block_size=1).to_csr()
    assert {array.dtype for array in large} == {np.dtype(np.int64)}


@pytest.mark.parametrize(
    ("csr", "message"),
    [
        (([0, 2], [3], [1]), "counts from 0 up to the 1 pages"),
        (([1, 1], [3], [1]), "counts from 0"),
        (([0, 2, 1], [3], [1, 1]), "counts from 0"),
        (([0, 1], [3], [1, 1]), "one entry more than last_page_len: 2 and 2"),
        (([], [], []), "counts from 0"),
        (([0, 1], [3], [0]), "last_page_len of request 0 is 0, of 1 pages of 16"),
        (([0, 1], [3], [17]), "last_page_len of request 0 is 17"),
        (([0, 0], [], [1]), "last_page_len of request 0 is 1, of 0 pages"),
    ],
)
def test_csr_that_is_damaged(csr: Any, message: str) -> None:
    with pytest.raises(FastIndexError, match=message):
        fp.BlockTable.from_csr(*csr, page_size=16)


def test_slots_that_are_no_pages() -> None:
    with pytest.raises(FastIndexError, match=r"token 2 of request 1 is in slot 11, .* puts it in slot 6"):
        fp.BlockTable.from_slots([[0, 1, 2, 3], [4, 5, 11, 7]], [4, 4], page_size=4)
    with pytest.raises(FastIndexError, match=r"token 0 of request 0 is in slot 1, .* puts it in slot 0"):
        fp.BlockTable.from_slots([[1, 2]], [2], page_size=4)
    with pytest.raises(FastIndexError, match=r"in slot 9223372036854775813, .* in slot 9223372036854775808"):
        fp.BlockTable.from_slots(np.array([[2**63 + 5]], np.uint64), [1], page_size=16)
    assert fp.BlockTable.from_slots([[0, 1, 99, 3]], [2], page_size=4).blocks.tolist() == [[0]]


def test_kernel_blocks_hold_the_same_tokens() -> None:
    table = fp.BlockTable([[3, 1]], block_size=12, lengths=[17], num_blocks=4, null_block=0)
    finer = table.kernel_blocks(3)
    assert (finer.block_size, finer.num_blocks, finer.null_block) == (4, 12, 0)
    assert finer.to_slots().tolist() == table.to_slots().tolist()
    with pytest.raises(FastIndexError, match="ratio 5 does not divide the 12 tokens"):
        table.kernel_blocks(5)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_products_beyond_64_bits(dtype: str) -> None:
    """Block numbers whose slots or kernel blocks do not fit int64 are errors; those of padding are not."""
    table = fp.BlockTable(np.array([[1, 2, 3], [1, 2**62, 2**62]], dtype), block_size=2, lengths=[6, 3])
    for convert in (table.to_slots, lambda: table.kernel_blocks(2)):
        with pytest.raises(OutOfBoundsError, match=f"block {2**62} in column 1 of request 1 is too large: 2 times"):
            convert()
    assert table.to_csr().indices.tolist() == [1, 2, 3, 1, 2**62]
    held = fp.BlockTable(table.blocks, block_size=2, lengths=[6, 2])
    assert held.to_slots().tolist() == [[2, 3, 4, 5, 6, 7], [2, 3, 0, 0, 0, 0]]
    with pytest.raises(OutOfBoundsError, match=f"block {2**64 - 1} in column 0 of request 0 is too large: 1 times"):
        fp.BlockTable(np.array([[2**64 - 1]], np.uint64), block_size=2).to_csr()
    with pytest.raises(FastIndexError, match="pad -1 does not fit uint8, the type of indices"):
        fp.BlockTable.from_csr([0, 1, 3], np.array([3, 4, 5], np.uint8), [1, 1], page_size=4, pad=-1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[3, 7], [5]], "row 0 has 2 entries, row 1 has 1; fill the shorter rows"),
        ([[3], [5], 8], "row 0 has 1 entries, row 2 has 0; fill"),
    ],
)
def test_rows_of_different_lengths(rows: Any, message: str) -> None:
    for name, give in (
        ("blocks", lambda: fp.BlockTable(rows, block_size=16)),
        ("blocks", lambda: fp.slot_mapping(rows, [0], [0, 1, 1], block_size=16)),
        ("slots", lambda: fp.BlockTable.from_slots(rows, [2, 1], page_size=4)),
        ("indices", lambda: fp.BlockTable.from_csr([0, 3], rows, [1], page_size=4)),
    ):
        with pytest.raises(FastIndexError, match=f"rows of {name} must have the same length: {message}"):
            give()


def test_lengths_that_do_not_fit() -> None:
    with pytest.raises(OutOfBoundsError, match="request 0 of 9223372036854775813 tokens does not fit its row, of 8"):
        fp.BlockTable([[1, 2]], block_size=4, lengths=np.array([2**63 + 5], np.uint64))
    with pytest.raises(OutOfBoundsError, match="request 1 of 9 tokens does not fit its row, of 8"):
        fp.BlockTable([[1, 2], [3, 4]], block_size=4, lengths=[8, 9])
    with pytest.raises(FastIndexError, match="one entry a request: 1 for 2 requests"):
        fp.BlockTable([[1], [2]], block_size=4, lengths=[1])
    with pytest.raises(ArgumentTypeError, match="blocks must hold integers"):
        fp.BlockTable([[0.5]], block_size=4)
    with pytest.raises(FastIndexError, match="got 3 dimensions"):
        fp.BlockTable([[[1]]], block_size=4)
    with pytest.raises(FastIndexError, match="block_size must be at least 1"):
        fp.BlockTable([[1]], block_size=0)


def test_owners_of_blocks_that_requests_share() -> None:
    table = fp.BlockTable([[3, 7], [3, 8]], block_size=2, lengths=[4, 3])
    assert table.owners(6) == (0, 0)
    assert table.owners([16, 17]).request.tolist() == [1, -1]
    assert fp.BlockTable(np.zeros((0, 0), int), block_size=2).owners([1]).request.tolist() == [-1]
