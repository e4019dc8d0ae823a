"""`Cache`: a pool of pages, from a text with named dimensions, from the parts of a page, or from tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

from fastindex.arrays.arrays import Array, require_contiguous, strides_overlap
from fastindex.core.integers import as_integer
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.paged.planes import (
    Plane,
    Pool,
    may_meet,
    memories_of,
    memory_of,
    planes_of,
    pool_of_tensors,
    read_text,
    require_disjoint,
    stride_of,
)
from fastindex.paged.presets import preset_pool
from fastindex.paged.tables import at_least_one


class Placement(TypedDict, total=False):
    """The heads and tokens of a model that a rank holds, and the block that must not be written."""

    tp: tuple[int, int]
    total_kv_heads: int
    cp: tuple[int, int]
    interleave: int
    null_block: int | None


class TensorOptions(Placement, total=False):
    """The sizes of tensors."""

    num_blocks: int
    block_size: int
    kv_heads: int
    head_dim: int


class PresetOptions(TensorOptions, total=False):
    """The sizes of a preset."""

    num_layers: int
    dtype: str


SIZES = ("num_blocks", "block_size", "kv_heads", "head_dim")


def _engine(engine: str) -> Any:
    def of_engine(cls: type[Cache], layout: str, **options: Unpack[PresetOptions]) -> Cache:
        return cls.preset(engine, layout, **options)

    of_engine.__name__ = engine
    of_engine.__doc__ = f"Return a cache by {engine}'s name of its layout, as `preset`."
    return classmethod(of_engine)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page, for pages that one text cannot describe: rows of mixed types, scales after the data.

    Attributes
    ----------
    name : str
        Transfers match parts by name.
    text : str
        A text over kv_heads, block_size, head_dim and the 2 of keys and values; may have a layout.
    offset : int
        Byte offset of the part in a page.
    head_dim : int, optional
        Elements per head and token that belong to the part, if the text has more: the others belong to other parts of
        the row.

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
    """A pool of pages: the byte offset of each layer, block, head, token and element of a KV cache.

    Parameters
    ----------
    parts : str or sequence of Part
        A text of the whole pool whose dimensions are named ``layers``, ``num_blocks``, ``kv_heads``, ``block_size`` and
        ``head_dim``, in any order and with any layout; the dimension of size 2 without a name holds keys and values. A
        name may be repeated: its more major digits come first. Or the parts of a page.
    num_layers, num_blocks, layer_stride, block_stride : int
        For parts only; strides in bytes.
    kv_heads, head_dim : int, optional
        For a text only: logical number of heads and of elements per head, if the text has padding.
    **placement
        The heads and tokens that this rank holds.

        * ``tp``, (int, int): tensor parallel size and rank. With more ranks than heads, heads are replicated.
        * ``total_kv_heads``, int: heads of the model; needed if a rank has one head and ``tp`` has several ranks,
          because that head may be replicated.
        * ``cp``, (int, int): context parallel size and rank.
        * ``interleave``, int: consecutive tokens per rank of ``cp``; must divide the block size.
        * ``null_block``, int: a block that is never written.

    Attributes
    ----------
    planes : dict of Plane
        Planes by name: "k" and "v", or "kv", or the names of the parts.
    num_layers, num_blocks, kv_heads, block_size, nbytes : int
    tp, cp, interleave, null_block, total_kv_heads
        As given.
    heads : range
        The heads of this rank among those of the model.

    Raises
    ------
    FastIndexError
        Inconsistent sizes, strides or placement; the message names them.
    ParseError, LayoutError, UnsupportedError
        As `fastindex.Shape.parse`; a tile that merges dimensions or splits num_blocks.

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
            self._fill(_of_text(parts, {"kv_heads": kv_heads, "head_dim": head_dim}), placement)
        else:
            if kv_heads is not None or head_dim is not None:
                raise FastIndexError("kv_heads and head_dim are in the texts of parts; give them for one text")
            self._fill(_of_parts(parts, *pool), placement)

    @classmethod
    def from_tensors(cls, tensors: Any, axes: str | None = None, **options: Unpack[TensorOptions]) -> Cache:
        """Return the cache that tensors in memory form; any strides are allowed.

        Parameters
        ----------
        tensors : array, or sequence of arrays or of pairs of arrays
            One tensor for all layers, one per layer, or keys and values of each layer. Functions that take a buffer
            then take these tensors.
        axes : str, optional
            The axes of a tensor: ``"num_blocks 2 block_size kv_heads head_dim"``, or
            ``"num_blocks block_size kv_heads (2 head_dim)"``. Default: the only order that matches the sizes.
        **options
            The sizes ``num_blocks``, ``block_size``, ``kv_heads`` and ``head_dim``, needed to infer `axes` and to split
            axes in parentheses; the placement as for `Cache`.

        Raises
        ------
        FastIndexError
            No order matches the sizes, or several do, which the message names; tensors that differ, or whose elements
            overlap.

        Examples
        --------
        >>> layers = [np.zeros((8, 2, 16, 4, 64), np.float16) for _ in range(2)]
        >>> cache = Cache.from_tensors(layers, "num_blocks 2 block_size kv_heads head_dim")
        >>> cache.num_layers, cache.kv_heads, list(cache.planes)
        (2, 4, ['k', 'v'])
        """
        placement: dict[str, Any] = {**options}
        sizes = {name: at_least_one(placement.pop(name), name) for name in SIZES if name in placement}
        return cls._made(pool_of_tensors(tensors, axes, sizes), placement)  # type: ignore[arg-type]

    @classmethod
    def preset(cls, engine: str, layout: str, **options: Unpack[PresetOptions]) -> Cache:
        """Return a cache by an engine's name for its layout; each engine also has a method, such as `vllm`.

        Parameters
        ----------
        engine : {"vllm", "flashinfer", "sglang", "trtllm", "tpu_inference", "gaudi", "llama_cpp", "lmcache"}
        layout : str
            The error message for an unknown name lists the valid ones.
        **options
            The sizes ``num_blocks``, ``block_size`` and ``head_dim`` (required even if rows of mixed types have a fixed
            number of elements); ``num_layers`` and ``kv_heads`` of this rank, 1 by default; ``dtype``, XLA's name of
            the element type, "bf16" by default; the placement as for `Cache`.

        Raises
        ------
        FastIndexError
            An unknown name, or sizes that the layout does not support.

        Examples
        --------
        >>> cache = Cache.vllm("BLNHC", num_layers=32, num_blocks=8, kv_heads=2, block_size=64, head_dim=128, tp=(4, 1))
        >>> cache.heads, cache.page_bytes
        (range(2, 4), 65536)
        """
        placement: dict[str, Any] = {"num_layers": 1, "kv_heads": 1, "dtype": "bf16", **options}
        missing = [name for name in SIZES if name not in placement]
        if missing:
            raise FastIndexError(f"{engine} {layout} needs {', '.join(missing)}")
        sizes = {name: placement.pop(name) for name in ("num_layers", *SIZES, "dtype")}
        for name in ("num_layers", *SIZES):
            at_least_one(sizes[name], name)
        parts, of_pool = preset_pool(engine, layout, sizes)
        if isinstance(parts, str):
            return cls(parts, **of_pool, **placement)
        return cls([Part(*part) for part in parts], **of_pool, **placement)

    vllm = _engine("vllm")
    flashinfer = _engine("flashinfer")
    sglang = _engine("sglang")
    trtllm = _engine("trtllm")
    tpu_inference = _engine("tpu_inference")
    gaudi = _engine("gaudi")
    llama_cpp = _engine("llama_cpp")
    lmcache = _engine("lmcache")

    @classmethod
    def _made(cls, pool: Pool, placement: Placement) -> Cache:
        cache = cls.__new__(cls)
        cache._fill(pool, placement)
        return cache

    def _fill(self, pool: Pool, placement: Placement) -> None:
        unknown = [name for name in placement if name not in Placement.__annotations__]
        if unknown:
            raise ArgumentTypeError(f"{unknown[0]!r} is none of the options {', '.join(Placement.__annotations__)}")
        self._pool = pool
        self.planes: dict[str, Plane] = {plane.name: plane for plane in pool.planes}
        if len(self.planes) < len(pool.planes):
            names = [plane.name for plane in pool.planes]
            raise FastIndexError(f"parts have different names, got {', '.join(names)}")
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
        self.total_kv_heads = self.kv_heads * self.tp[0] if total_kv_heads is None else total_kv_heads
        self.null_block = None if null_block is None else as_integer(null_block, "null_block")
        if self.null_block is not None and not 0 <= self.null_block < self.num_blocks:
            raise FastIndexError(f"null_block {null_block} is not one of the {self.num_blocks} blocks")
        check_interleave(self.interleave, self.block_size)

    def placed(self, **placement: Unpack[Placement]) -> Cache:
        """Return the same pool with another placement; by default, a single rank without a null block.

        Examples
        --------
        >>> Cache("bf16[num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]").placed(tp=(2, 1)).heads
        range(4, 8)
        """
        return Cache._made(self._pool, placement)

    @property
    def _shard(self) -> Placement:
        """The heads of this rank, without context parallelism or a null block."""
        return {"tp": self.tp, "total_kv_heads": self.total_kv_heads}

    @property
    def _alone(self) -> Cache:
        """The same pool and heads without context parallelism or a null block: tokens are numbered locally."""
        return self.placed(**self._shard)

    @property
    def page_bytes(self) -> int:
        """Bytes of the elements of one block of one layer, without padding.

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
    def tensors(self) -> Sequence[Array] | None:
        """Records of the tensors that the cache was made from; None for other caches."""
        return self._pool.tensors

    def shares_pool(self, other: Cache) -> bool:
        """Whether another cache has the same pool, possibly with another placement."""
        return self._pool is other._pool


def _of_text(text: str, used: Mapping[str, int | None]) -> Pool:
    found = read_text(text)
    blocks = found.offsets("num_blocks")
    if "block_size" not in found.tables or "head_dim" not in found.tables:
        raise FastIndexError(f"a cache has a block_size and a head_dim, got {text!r}")
    planes = planes_of(found, "", 0, found.offsets("layers"), stride_of(blocks, "blocks"), used)
    return Pool(repr(text), planes, len(blocks), found.nbytes)


def _of_parts(
    parts: Sequence[Part], layers: int | None, blocks: int | None, layer_stride: int | None, block_stride: int | None
) -> Pool:
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, Part) for part in parts):
        raise ArgumentTypeError(f"a cache is made from a text, or from parts; got {parts!r}")
    if not all(isinstance(part.name, str) for part in parts):
        raise ArgumentTypeError(f"names of parts are texts, got {[part.name for part in parts]!r:.200}")
    if blocks is None or block_stride is None:
        raise FastIndexError("parts describe one page: give num_blocks and block_stride too, the latter in bytes")
    if layer_stride is None and layers not in (None, 1):
        raise FastIndexError("several layers have a layer_stride, in bytes")
    given = {"num_layers": layers, "num_blocks": blocks, "layer_stride": layer_stride, "block_stride": block_stride}
    counts = [at_least_one(1 if size is None else size, name) for name, size in given.items()]
    ends = counts[0] * counts[2], counts[1] * counts[3]
    offsets = np.arange(counts[0]) * counts[2]
    planes = []
    for part in parts:
        found = read_text(part.text)
        if "layers" in found.tables or "num_blocks" in found.tables or as_integer(part.offset, "offset") < 0:
            raise FastIndexError(
                f"a part describes one page, from an offset of at least 0: {part!r} does not; give num_layers, "
                "num_blocks and strides to the cache"
            )
        if part.offset + found.nbytes + sum(ends) >= 2**63:
            raise FastIndexError(f"offsets of {part!r} do not fit int64, with num_blocks and strides of {counts[1:]}")
        half = "_" + part.name if "kv" in found.tables and part.name else part.name
        planes += planes_of(found, half, part.offset, offsets, counts[3], {"head_dim": part.head_dim})
    text = f"[{', '.join(repr(part.text) for part in parts)}]"
    _check_strides(planes, counts, text)
    return Pool(text, planes, counts[1], max(*ends, *(plane.end(counts[1]) for plane in planes)))


def _check_strides(planes: Sequence[Plane], counts: Sequence[int], text: str) -> None:
    """Raise FastIndexError if elements share bytes: within a page, or because pages overlap."""
    layers, blocks, layer_stride, block_stride = counts
    spans: list[tuple[int, int, list[Plane]]] = []
    for plane in sorted(planes, key=lambda plane: int(plane.layer_offsets[0])):
        begin, end, together = int(plane.layer_offsets[0]), int(plane.layer_offsets[0]) + plane.page_extent[1], [plane]
        if spans and begin < spans[-1][1]:
            begin, end, together = spans[-1][0], max(end, spans[-1][1]), [*spans.pop()[2], plane]
        spans.append((begin, end, together))
    for *_, together in spans:
        require_disjoint(together, text)
    steps = sorted(((block_stride, blocks), (layer_stride, layers)), reverse=True)
    for one, other in itertools.combinations_with_replacement(spans, 2):
        length = one[1] - one[0]
        if strides_overlap((blocks, layers), length, (block_stride, layer_stride)) or (
            one is not other and may_meet(one[0] - other[1], one[1] - other[0], steps)
        ):
            strides = f"a block_stride of {block_stride}" + f" and a layer_stride of {layer_stride}" * (layers > 1)
            raise FastIndexError(
                f"pages overlap with {strides} bytes in {text}: those at byte {one[0]} have {length} bytes, those at "
                f"byte {other[0]} {other[1] - other[0]}"
            )


def size_and_rank(pair: Any, name: str) -> tuple[int, int]:
    """Return a parallel size and rank.

    Raises
    ------
    FastIndexError
        The rank is not in ``range(size)``.

    Examples
    --------
    >>> size_and_rank((4, 1), "tp")
    (4, 1)
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ArgumentTypeError(f"{name} must be (size, rank), got {pair!r}")
    size, rank = (as_integer(number, name) for number in pair)
    if not 0 <= rank < size:
        raise FastIndexError(f"{name}=({size}, {rank}): the rank must be from 0 to below the size")
    return size, rank


def check_interleave(interleave: int, block_size: int) -> None:
    """Raise FastIndexError unless `interleave` divides the block size, so that a turn does not cross columns."""
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


# Memory of a pool


def check_cache(cache: object, name: str) -> None:
    """Raise ArgumentTypeError unless an argument is a `Cache`."""
    if not isinstance(cache, Cache):
        raise ArgumentTypeError(f"{name} must be a fastindex.paged.Cache, got {cache!r:.200}; Cache(text) makes one")


def address_of_pool(cache: Cache, buffer: Any, name: str, writes: bool) -> tuple[int, list[Array]]:
    """Return the address of byte 0 of a pool, and the records of its memory.

    Parameters
    ----------
    cache : Cache
    buffer : array, or sequence of tensors
        The bytes of the pool, contiguous, of any element type and dimensions; for a cache made from tensors, these
        tensors.
    name : str
        Argument name for messages.
    writes : bool

    Raises
    ------
    FastIndexError
        A buffer of the wrong size, not contiguous or read-only, or other tensors.
    ArgumentTypeError
        A buffer that does not expose its memory.
    """
    check_cache(cache, "cache")
    if cache.tensors is not None:
        found = memories_of(buffer, name, writes)
        places = [
            [(one.device, one.address, one.shape, one.strides) for one in side] for side in (found, cache.tensors)
        ]
        if places[0] != places[1]:
            raise FastIndexError(
                f"{name} must be the tensors that {cache} was made from, with the same memory and strides; make a "
                "cache from these with Cache.from_tensors"
            )
        return min(one.extent[0] for one in found), found
    one = memory_of(buffer, name, writes)
    if one.nbytes != cache.nbytes:
        raise FastIndexError(f"{name} of {cache} takes {cache.nbytes} bytes, got {one.nbytes}")
    require_contiguous(one, name)
    return one.address, [one]
