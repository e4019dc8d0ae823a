"""oneDNN's tags against the reorders of oneDNN's own library, byte for byte, both ways, padded sizes included.

Skipped without the wheel ``onednn-cpu-gomp``. Every tag that the library has is compared by a campaign::

    python -m tests.moving.test_onednn_reorders

Tests of: show.format_names.
"""

from __future__ import annotations

import ctypes
import math
import random
import re
import sys
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from benchmarks import onednn

Sizes = tuple[int, ...]

#: A tag, what the library calls it, and sizes: whole blocks, a few of each, and padded ones.
TAGS: list[tuple[str, str, list[Sizes]]] = [
    ("nChw16c", "aBcd16b", [(1, 16, 1, 1), (2, 32, 3, 5), (3, 19, 4, 2), (2, 1, 7, 3)]),
    ("aBcd32b", "aBcd32b", [(1, 32, 1, 1), (2, 64, 3, 5), (3, 35, 4, 2), (2, 1, 7, 3)]),
    ("OIhw16i16o", "ABcd16b16a", [(16, 16, 1, 1), (32, 48, 3, 3), (19, 33, 2, 1), (1, 5, 3, 3)]),
    ("OIhw4i16o4i", "ABcd4b16a4b", [(16, 16, 1, 1), (32, 48, 3, 3), (19, 33, 2, 1), (1, 5, 3, 3)]),
    ("BA16a64b4a", "BA16a64b4a", [(64, 64), (128, 192), (70, 65), (3, 1)]),
    ("BA16a64b2a", "BA16a64b2a", [(32, 64), (96, 192), (70, 65), (3, 1)]),
    ("NHWC", "acdb", [(1, 1, 1, 1), (2, 3, 4, 5), (3, 17, 1, 2)]),
    ("gOIhw16i16o", "aBCde16c16b", [(1, 16, 16, 1, 1), (3, 19, 33, 2, 1), (2, 1, 5, 3, 3)]),
]
#: oneDNN's number of a type, and a dtype of as many bytes.
TYPES = [(5, np.int8), (2, np.uint16), (3, np.float32)]


def library() -> Any:
    found = onednn.onednn()
    if found is None:
        pytest.skip("onednn-cpu-gomp is not installed")
    # Threads of OpenMP wait busily for processors that others use.
    found.library.omp_set_num_threads(1)
    return found


def values(rng: np.random.Generator, dtype: Any, sizes: Sizes) -> Any:
    if dtype is np.uint16:
        # Patterns of bfloat16 that are neither tiny nor NaN, which a reorder may change.
        return rng.integers(0x3000, 0x5000, sizes).astype(dtype)
    return rng.integers(-128, 128, sizes).astype(dtype)


def compare(tag: str, theirs: str, sizes: Sizes, number: int, dtype: Any) -> None:
    """Reorder from the plain array to a tag and back, by the library and by `repack`."""
    reorder = library()
    size_of = reorder.library.dnnl_memory_desc_get_size
    size_of.restype = ctypes.c_size_t
    array = values(np.random.default_rng(sizes), dtype, sizes)
    strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    plain, tagged = reorder.strided(list(sizes), strides, number), reorder.tagged(sizes, number, theirs)
    expected = np.full(size_of(tagged), 0xA5, np.uint8)
    reorder.reorder(array, plain, expected, tagged)()
    keys: dict[str, Any] = {"shape": sizes, "tag": tag, "bits": 8 * array.itemsize}
    got = fi.weights.repack(array, "plain", "onednn", **keys)
    assert got.tobytes() == expected.tobytes(), (tag, sizes, dtype)
    back = np.empty_like(array)
    reorder.reorder(got, tagged, back, plain)()
    assert back.tobytes() == array.tobytes(), (tag, sizes, dtype)
    assert fi.weights.repack(expected, "onednn", "plain", **keys).tobytes() == array.tobytes(), (tag, sizes, dtype)


@pytest.mark.parametrize(("number", "dtype"), TYPES, ids=["s8", "bf16", "f32"])
@pytest.mark.parametrize(("tag", "theirs", "sizes"), TAGS, ids=[tag for tag, *_ in TAGS])
def test_reorders(tag: str, theirs: str, sizes: list[Sizes], number: int, dtype: Any) -> None:
    for one in sizes:
        compare(tag, theirs, one, number, dtype)


def sizes_for(tag: str, rng: random.Random) -> Sizes:
    """Sizes that are blocks, some blocks, or padded to them."""
    rank = len(re.match("[A-Za-z]+", tag)[0])  # type: ignore[index]
    blocks = dict.fromkeys("abcdefghijkl"[:rank], 1)
    for size, letter in re.findall(r"(\d+)([a-l])", tag):
        blocks[letter] *= int(size)
    sizes = [rng.choice((1, block, 2 * block, rng.randint(1, 2 * block + 2))) for block in blocks.values()]
    for d, block in enumerate(blocks.values()):
        if block == 1:
            sizes[d] = rng.randint(1, 3 if rank > 5 else 5)
    return tuple(sizes)


def all_tags() -> list[str]:
    """Return the tags that the library has, by its names."""
    named = (tag for tag in library().tags if re.fullmatch("[A-La-l]+([0-9]+[a-l])*", tag))
    return [tag for tag in named if tag != "any" and len(set(tag.lower()) - set("0123456789"))]


@pytest.mark.parametrize("seed", range(3))
def test_some_of_all_tags(seed: int) -> None:
    rng = random.Random(seed)
    for tag in rng.sample(all_tags(), 12):
        number, dtype = rng.choice(TYPES)
        sizes = sizes_for(tag, rng)
        if math.prod(sizes) < 1 << 18:
            compare(tag, tag, sizes, number, dtype)


def main() -> None:
    rng, count = random.Random(0), 0
    for tag in all_tags():
        for number, dtype in TYPES:
            sizes = sizes_for(tag, rng)
            while math.prod(sizes) >= 1 << 19:
                sizes = tuple((size + 1) // 2 for size in sizes)
            compare(tag, tag, sizes, number, dtype)
            count += 1
    sys.stdout.write(f"{len(all_tags())} tags, {count} arrays there and back: equal\n")


if __name__ == "__main__":
    main()
