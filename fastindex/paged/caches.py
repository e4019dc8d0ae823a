"""`Cache`: a pool of pages, as a text with named dimensions, as parts of a page, or from tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

from fastindex.core.integers import as_integer
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.paged.planes import Plane, planes_of, read_text, require_disjoint, stride_of


class Placement(TypedDict, total=False):
    """Which part of the heads and tokens of a model a rank holds, and which block it must not write."""

    tp: tuple[int, int]
    total_kv_heads: int
    cp: tuple[int, int]
    interleave: int
    null_block: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page: what one text cannot say, such as rows of mixed types or scales after the data.

    Attributes
    ----------
    name : str
        Parts of the same name move to each other.
    text : str
        Over kv_heads, block_size and head_dim, and the 2 of keys and values; with a layout.
    offset : int
        Where the part begins in a page, in bytes.
    head_dim : int, optional
        How many elements of a head and token belong to the part, where the text has more: what lies between them are
        other parts of the row.

    Examples
    --------
    >>> Part("scale", "f32[block_size=64,head_dim=1]", offset=64 * 128).offset
    8192
    """

    name: str
    text: str
    offset: int = 0
    head_dim: int | None = None


class Cache:
    """A pool of pages: where each layer, block, head, token and element of a cache of keys and values lies.

    Parameters
    ----------
    parts : str or sequence of Part
        A text of the whole pool whose dimensions are named ``layers``, ``num_blocks``, ``kv_heads``, ``block_size`` and
        ``head_dim``, in any order and with any layout; the dimension of size 2 without a name holds keys and values. A
        name may stand twice: its more major digits come first. Or the parts of a page.
    num_layers, num_blocks, layer_stride, block_stride : int
        Of parts only; strides in bytes.
    kv_heads, head_dim : int, optional
        Of a text only: how many heads and elements of a head there are, where the text has padding.
    tp : (int, int)
        Tensor parallel size and rank. With more ranks than heads, heads are replicated.
    total_kv_heads : int
        Heads of all ranks together; needed where a rank has one head and `tp` has several ranks, because that head may
        be replicated.
    cp : (int, int)
        Context parallel size and rank.
    interleave : int
        How many tokens in a row belong to one rank of `cp`; it divides the block size.
    null_block : int, optional
        A block that is never written.

    Attributes
    ----------
    planes : dict of Plane
        By name: "k" and "v", or "kv", or the names of the parts.
    num_layers, num_blocks, kv_heads, block_size, nbytes : int
    heads : range
        The heads of this rank among those of the model.

    Raises
    ------
    FastIndexError
        Sizes, strides or a placement that do not fit; the message names them.
    ShapeSyntaxError, LayoutError, UnsupportedError
        As `fastindex.Shape.parse`; a tile that merges dimensions or cuts num_blocks.

    Examples
    --------
    >>> cache = Cache("bf16[layers=2,num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]{5,3,4,2,1,0}", tp=(2, 1))
    >>> cache.num_blocks, cache.block_size, cache.nbytes, cache.heads
    (8, 16, 262144, range(4, 8))
    """

    def __init__(
        self,
        parts: str | Sequence[Part],
        *,
        num_layers: int | None = None,
        num_blocks: int | None = None,
        layer_stride: int | None = None,
        block_stride: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        **placement: Unpack[Placement],
    ) -> None:
        pool = (num_layers, num_blocks, layer_stride, block_stride)
        if isinstance(parts, str):
            if any(number is not None for number in pool):
                raise FastIndexError(
                    "num_layers, num_blocks and strides are in the text of a pool; give them for parts"
                )
            used = {"kv_heads": kv_heads, "head_dim": head_dim}
            self._fill(_of_text(parts, {name: size for name, size in used.items() if size is not None}), placement)
        else:
            if kv_heads is not None or head_dim is not None:
                raise FastIndexError("kv_heads and head_dim are in the texts of parts; give them for one text")
            self._fill(_of_parts(list(parts), *pool), placement)

    @classmethod
    def _made(cls, pool: Pool, placement: Placement) -> Cache:
        cache = cls.__new__(cls)
        cache._fill(pool, placement)
        return cache

    def _fill(self, pool: Pool, placement: Placement) -> None:
        self._pool = pool
        self.planes: dict[str, Plane] = {plane.name: plane for plane in pool.planes}
        if len(self.planes) < len(pool.planes):
            names = [plane.name for plane in pool.planes]
            raise FastIndexError(f"parts have names of their own, got {', '.join(names)}")
        first = pool.planes[0]
        self.num_layers, self.num_blocks, self.nbytes = len(first.layer_offsets), pool.num_blocks, pool.nbytes
        self.kv_heads, self.block_size = len(first.head_offsets), len(first.token_offsets)
        for plane in pool.planes:
            sizes = len(plane.layer_offsets), len(plane.head_offsets), len(plane.token_offsets)
            if sizes != (self.num_layers, self.kv_heads, self.block_size):
                raise FastIndexError(
                    f"the planes of a cache have the same layers, heads and tokens of a block: {plane.name} has "
                    f"{sizes}, {first.name} {(self.num_layers, self.kv_heads, self.block_size)}"
                )
        self._place(**placement)

    def _place(
        self,
        tp: tuple[int, int] = (1, 0),
        total_kv_heads: int | None = None,
        cp: tuple[int, int] = (1, 0),
        interleave: int = 1,
        null_block: int | None = None,
    ) -> None:
        self.tp, self.cp = size_and_rank(tp, "tp"), size_and_rank(cp, "cp")
        self.interleave = as_integer(interleave, "interleave")
        self.heads = _heads(self.kv_heads, self.tp, total_kv_heads)
        self.null_block = None if null_block is None else as_integer(null_block, "null_block")
        if self.null_block is not None and not 0 <= self.null_block < self.num_blocks:
            raise FastIndexError(f"null_block {null_block} is none of the {self.num_blocks} blocks")
        check_interleave(self.interleave, self.block_size)

    def placed(self, **placement: Unpack[Placement]) -> Cache:
        """Return the same pool of another rank, or with another null block; by default, that of one rank alone.

        Examples
        --------
        >>> Cache("bf16[num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]").placed(tp=(2, 1)).heads
        range(4, 8)
        """
        return Cache._made(self._pool, placement)

    @property
    def page_bytes(self) -> int:
        """Bytes of a block of a layer that hold elements.

        Examples
        --------
        >>> Cache("bf16[num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]").page_bytes
        16384
        """
        rows = self.kv_heads * self.block_size
        return sum(rows * len(plane.dim_offsets) * plane.unit_bytes for plane in self.planes.values())

    def __repr__(self) -> str:
        placed = [f"tp={self.tp}"] * (self.tp[0] > 1)
        placed += [f"cp={self.cp}, interleave={self.interleave}"] * (self.cp[0] > 1)
        return f"Cache({', '.join([self._pool.text, *placed])})"

    @property
    def base(self) -> int | None:
        """The address of byte 0 of a cache that was made from tensors; None of others."""
        return self._pool.base


@dataclass(frozen=True, eq=False, slots=True)
class Pool:
    """What the constructors of a cache find out.

    Attributes
    ----------
    text : str
        For messages.
    planes : list of Plane
    num_blocks, nbytes : int
    base : int or None
        The address of byte 0, where memory was given.
    """

    text: str
    planes: list[Plane]
    num_blocks: int
    nbytes: int
    base: int | None = None


def _of_text(text: str, used: Mapping[str, int]) -> Pool:
    found = read_text(text)
    layers = found.tables.get("layers", np.zeros(1, np.int64))
    blocks = found.tables.get("num_blocks", np.zeros(1, np.int64))
    if "block_size" not in found.tables or "head_dim" not in found.tables:
        raise FastIndexError(f"a cache has a block_size and a head_dim, got {text!r}")
    planes = planes_of(found, "", 0, layers, stride_of(blocks, "blocks"), used)
    return Pool(repr(text), planes, len(blocks), found.shape.nbytes)


def _of_parts(
    parts: list[Part], layers: int | None, blocks: int | None, layer_stride: int | None, block_stride: int | None
) -> Pool:
    if not parts or not all(isinstance(part, Part) for part in parts):
        raise ArgumentTypeError(f"a cache is made from a text, or from parts; got {parts!r}")
    if blocks is None or block_stride is None:
        raise FastIndexError("parts describe one page: give num_blocks and block_stride too, the latter in bytes")
    sizes = {"num_layers": 1 if layers is None else layers, "num_blocks": blocks, "block_stride": block_stride}
    for name, size in sizes.items():
        if as_integer(size, name) < 1:
            raise FastIndexError(f"{name} must be at least 1, got {size}")
    if sizes["num_layers"] > 1 and layer_stride is None:
        raise FastIndexError("several layers have a layer_stride, in bytes")
    stride = as_integer(layer_stride or 0, "layer_stride")
    offsets = np.arange(sizes["num_layers"]) * stride
    planes = []
    for part in parts:
        found = read_text(part.text)
        if "layers" in found.tables or "num_blocks" in found.tables or as_integer(part.offset, "offset") < 0:
            raise FastIndexError(
                f"a part describes one page, from an offset of at least 0: {part!r} does not; give num_layers, "
                "num_blocks and strides to the cache"
            )
        half = "_" + part.name if "kv" in found.tables and part.name else part.name
        used = {} if part.head_dim is None else {"head_dim": part.head_dim}
        planes += planes_of(found, half, part.offset, offsets, block_stride, used)
    text = f"[{', '.join(repr(part.text) for part in parts)}]"
    require_disjoint(planes, text)
    extents = [plane.page_extent for plane in planes]
    page = max(int(plane.layer_offsets[0]) + extent[1] for plane, extent in zip(planes, extents, strict=True))
    _check_strides(page, sizes, stride, text)
    steps = blocks * block_stride, sizes["num_layers"] * stride
    return Pool(text, planes, blocks, max(*steps, max(plane.end(blocks) for plane in planes)))


def _check_strides(page: int, sizes: Mapping[str, int], layer_stride: int, text: str) -> None:
    """Raise FastIndexError where pages overlap: layers within blocks, or blocks within layers."""
    blocks, layers, block_stride = sizes["num_blocks"], sizes["num_layers"], sizes["block_stride"]
    steps = sorted([(block_stride, blocks, "block_stride")] + [(layer_stride, layers, "layer_stride")] * (layers > 1))
    extent = page
    for stride, count, name in steps:
        if stride < extent and count > 1:
            raise FastIndexError(
                f"{name} of {stride} bytes is less than the {extent} bytes that it steps over in {text}"
            )
        extent = stride * (count - 1) + extent


def size_and_rank(pair: Any, name: str) -> tuple[int, int]:
    """Return a parallel size and rank.

    Raises
    ------
    FastIndexError
        The rank is none of the size.

    Examples
    --------
    >>> size_and_rank((4, 1), "tp")
    (4, 1)
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ArgumentTypeError(f"{name} is (size, rank), got {pair!r}")
    size, rank = (as_integer(number, name) for number in pair)
    if not 0 <= rank < size:
        raise FastIndexError(f"{name}=({size}, {rank}): the rank must be from 0 to below the size")
    return size, rank


def check_interleave(interleave: int, block_size: int) -> None:
    """Raise FastIndexError where tokens of one block would go to different columns."""
    if interleave < 1 or block_size % interleave:
        raise FastIndexError(f"interleave must divide the block size: {interleave} and {block_size} tokens")


def _heads(held: int, tp: tuple[int, int], total: int | None) -> range:
    size, rank = tp
    if total is None:
        if held == 1 and size > 1:
            raise FastIndexError(
                f"a rank of {size} has one KV head, which may be replicated; give total_kv_heads, those of the model"
            )
        total = held * size
    expected = max(1, as_integer(total, "total_kv_heads") // size)
    if total < 1 or held != expected or (total % size if total >= size else size % total):
        raise FastIndexError(
            f"{total} KV heads on {size} ranks are {expected} a rank, by even shares; this cache has {held}"
        )
    first = rank * total // size
    return range(first, first + held)
