"""Cache layouts by the names that engines give them, as a table.

Sources: vllm 0.33.0, sglang 0.5.23, flashinfer-python 0.7.2, lmcache 0.5.6, tpu-inference 0.32.0, and the source code
of TensorRT-LLM, vllm-gaudi and llama.cpp of 2026. A row is a text, or the parts of a page; L, B, H, N, D are layers,
blocks, heads, tokens per block and elements per head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fastindex.core.element_types import ElementType
from fastindex.errors import FastIndexError


class Sizes(NamedTuple):
    """Sizes of a cache, and derived sizes.

    Attributes
    ----------
    x : int
        Elements in 16 bytes.
    p : int
        Elements in 4 bytes: the number that a TPU packs into a row of a register.
    """

    L: int
    B: int
    H: int
    N: int
    D: int
    dtype: str
    x: int
    p: int


class PresetPool(NamedTuple):
    """The pool that a preset describes: a text, or parts (name, text, offset, elements) and strides in bytes."""

    parts: str | list[tuple[str, str, int, int | None]]
    options: Mapping[str, Any]


Preset = Callable[[Sizes], PresetPool]

_AXES = {"L": "layers", "B": "num_blocks", "H": "kv_heads", "N": "block_size", "D": "head_dim"}


def _order(letters: str) -> Preset:
    """A pool of one text without padding; the letter 2 is the axis of K and V."""

    def describe(s: Sizes) -> PresetPool:
        dimensions = ("2" if letter == "2" else f"{_AXES[letter]}={getattr(s, letter)}" for letter in letters)
        return PresetPool(f"{s.dtype}[{','.join(dimensions)}]", {})

    return describe


def _padded(text: Callable[[Sizes], str], heads: bool = False) -> Preset:
    """A pool of one text with padding along head_dim and, with `heads`, along kv_heads."""

    def describe(s: Sizes) -> PresetPool:
        return PresetPool(text(s), {"head_dim": s.D, **({"kv_heads": s.H} if heads else {})})

    return describe


_Piece = tuple[str, str, int, int | None]


def _in_page(parts: Callable[[Sizes], list[_Piece]], page: Callable[[Sizes], int]) -> Preset:
    """Pages of `page(s)` bytes, layer by layer; each part has an offset in the page."""

    def describe(s: Sizes) -> PresetPool:
        size = page(s)
        strides = {"num_layers": s.L, "num_blocks": s.B, "block_stride": size, "layer_stride": size * s.B}
        return PresetPool(parts(s), strides)

    return describe


def _kv_by_layer(key: str, value: str) -> Preset:
    """All key pages of a layer, then all value pages."""

    def describe(s: Sizes) -> PresetPool:
        page = s.H * s.N * s.D * _width(s.dtype)
        texts = [f"{s.dtype}[{_filled(template, s)}]" for template in (key, value)]
        parts: list[_Piece] = [("k", texts[0], 0, None), ("v", texts[1], s.B * page, None)]
        strides = {"num_layers": s.L, "num_blocks": s.B, "block_stride": page, "layer_stride": 2 * s.B * page}
        return PresetPool(parts, strides)

    return describe


def _kv_by_head(key: str, value: str) -> Preset:
    """For each head, its keys, then its values."""

    def parts(s: Sizes) -> list[_Piece]:
        texts = [f"{s.dtype}[kv_heads={s.H},head_dim=2,{_filled(template, s)}]" for template in (key, value)]
        return [("k", texts[0], 0, s.D), ("v", texts[1], s.N * s.D * _width(s.dtype), s.D)]

    return _in_page(parts, lambda s: 2 * s.H * s.N * s.D * _width(s.dtype))


def _rows(row_bytes: int, *parts: tuple[str, str, int, int], scale: str = "") -> Preset:
    """One row of `row_bytes` bytes per token; parts are (name, type, offset in the row, elements)."""

    def describe(s: Sizes) -> list[_Piece]:
        found: list[_Piece] = []
        for name, dtype, offset, count in parts:
            dims = scale if scale and name == "scale" else f"head_dim={row_bytes // _width(dtype)}"
            layout = "{2,3,1,0}" if scale and name == "scale" else ""
            found.append((name, f"{dtype}[block_size={s.N},{dims}]{layout}", offset, count))
        return found

    return _in_page(describe, lambda s: s.N * row_bytes)


def _nvfp4(s: Sizes) -> list[_Piece]:
    rows = s.H * s.N
    data, scales = rows * s.D // 2, rows * s.D // 16
    packed = _filled("f4e2m1fn[kv_heads={H},block_size={N},head_dim={D}]", s) + "{2,1,0:E(4)}"
    linear = _filled("f8e4m3fn[kv_heads={H},block_size={N},head_dim={D/16}]", s)
    swizzled = _filled("f8e4m3fn[kv_heads={H},block_size={N/4},head_dim={D/16},block_size=4]", s)
    return [
        ("k", packed, 0, None),
        ("k_scale", linear, data, None),
        ("v", packed, data + scales, None),
        ("v_scale", swizzled, 2 * data + scales, None),
    ]


def _inline_scales(s: Sizes) -> list[_Piece]:
    row = 2 * s.D + 8
    rows = f"block_size={s.N},kv_heads={s.H}"
    data, scale = f"{s.dtype}[{rows},head_dim={row}]", f"f32[{rows},head_dim={row // 4}]"
    return [
        ("k", data, 0, s.D),
        ("v", data, s.D, s.D),
        ("k_scale", scale, 2 * s.D, 1),
        ("v_scale", scale, 2 * s.D + 4, 1),
    ]


def _v4(s: Sizes) -> list[_Piece]:
    return [
        ("data", f"f8e4m3fn[block_size={s.N},head_dim=576]", 0, 448),
        ("rope", f"bf16[block_size={s.N},head_dim=288]", 448, 64),
        ("scale", f"f8e8m0fnu[block_size={s.N},head_dim=8]", 576 * s.N, 7),
    ]


def _indexer(s: Sizes) -> list[_Piece]:
    data = ("data", f"f8e4m3fn[block_size={s.N},head_dim=128]", 0, None)
    return [data, ("scale", f"f32[block_size={s.N},head_dim=1]", 128 * s.N, None)]


class _Quotients(dict[str, Any]):
    """Sizes by letter, and exact quotients of them, such as D/16 and D/x."""

    def __missing__(self, key: str) -> int:
        size, _, divisor = key.partition("/")
        number = self.get(divisor) or int(divisor)
        _require(self[size] % number == 0, f"{_AXES[size]} must be a multiple of {number}", self[size])
        return int(self[size]) // number


def _filled(template: str, s: Sizes) -> str:
    return template.format_map(_Quotients(s._asdict()))


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _width(dtype: str) -> int:
    return max(ElementType.of(dtype).bits // 8, 1)


def _tpu(s: Sizes) -> str:
    heads, dims = _up(2 * s.H, max(s.p, 2)) // 2, _up(s.D, 128)
    return f"{s.dtype}[layers={s.L},num_blocks={s.B},block_size={s.N},kv_heads={heads},2,head_dim={dims}]"


def _tpu_64(s: Sizes) -> str:
    _require(s.D == 64, "the kernel of head_dim 64 has 64 elements a head", s.D)
    return f"{s.dtype}[layers={s.L},num_blocks={s.B},block_size={s.N},kv_heads={_up(s.H, s.p)},2,head_dim=64]"


def _tpu_batched(s: Sizes) -> str:
    dims = _up(s.D, 8 * s.p)
    return f"{s.dtype}[layers={s.L},num_blocks={s.B},kv_heads={s.H},2,head_dim={dims},block_size={s.N}]"


def _tpu_mla(s: Sizes) -> str:
    _require(s.N % s.p == 0, f"tokens of a block are packed {s.p} at a time", s.N)
    return f"{s.dtype}[layers={s.L},num_blocks={s.B},block_size={s.N},head_dim={_up(s.D, 128)}]"


def _require(holds: bool, rule: str, got: int) -> None:
    if not holds:
        raise FastIndexError(f"{rule}, got {got}")


_NHD = "block_size={N},kv_heads={H},head_dim={D}"

_PRESETS: dict[str, dict[str, Preset]] = {
    "vllm": {
        # The six orders; C is K followed by V of a head.
        "LBHNC": _order("LBHN2D"),
        "LBNHC": _order("LBNH2D"),
        "LHBNC": _order("LHBN2D"),
        "BLHNC": _order("BLHN2D"),
        "BLNHC": _order("BLNH2D"),
        "BHLNC": _order("BHLN2D"),
        # Layouts from before the orders had names.
        "flash_attn": _order("L2BNHD"),
        "flashinfer_nhd": _order("LB2NHD"),
        "flashinfer_hnd": _order("LB2HND"),
        "rocm": _kv_by_layer(
            "kv_heads={H},head_dim={D/x},block_size={N},head_dim={x}", "kv_heads={H},head_dim={D},block_size={N}"
        ),
        "rocm_shuffle": _kv_by_layer(
            "kv_heads={H},head_dim={D/x},block_size={N},head_dim={x}",
            "kv_heads={H},block_size={N/x},head_dim={D},block_size={x}",
        ),
        "cpu": _order("LBH2ND"),
        "cpu_vector": _kv_by_head("head_dim={D},block_size={N}", "block_size={N},head_dim={D}"),
        "cpu_amx": _kv_by_head(
            "block_size={N/16},head_dim={D/2},block_size=16,head_dim=2",
            "head_dim={D/16},block_size={N/2},head_dim=16,block_size=2",
        ),
        "mla": _order("LBND"),
        "fp8_ds_mla": _rows(656, ("data", "f8e4m3fn", 0, 512), ("scale", "f32", 512, 4), ("rope", "bf16", 528, 64)),
        "ds_v4": _in_page(_v4, lambda s: _up(584 * s.N, 576)),
        "ds_v4.1": _rows(528, ("data", "f8e4m3fn", 0, 512), ("scale", "f8e8m0fnu", 512, 16)),
        "nvfp4_ds_mla": _rows(
            352,
            ("data", "u8", 0, 256),
            ("rope", "f8e4m3fn", 256, 64),
            ("scale", "f8e4m3fn", 320, 32),
            scale="head_dim=11,head_dim=8,head_dim=4",
        ),
        "dsa_indexer": _in_page(_indexer, lambda s: 132 * s.N),
        "nvfp4": _in_page(_nvfp4, lambda s: 2 * s.H * s.N * (s.D // 2 + s.D // 16)),
        "token_head_scales": _in_page(_inline_scales, lambda s: s.H * s.N * (2 * s.D + 8)),
    },
    "flashinfer": {"NHD": _order("LB2NHD"), "HND": _order("LB2HND")},
    "sglang": {
        # Keys of all layers, then values of all layers; the last four are HiCache's host layouts.
        "nhd": _order("2LBNHD"),
        "hnd": _order("2LBHND"),
        "mla": _order("LBND"),
        "layer_first": _order("2LBNHD"),
        "page_first": _order("2BNLHD"),
        "page_first_direct": _order("2BLNHD"),
        "page_head": _order("2BHNLD"),
    },
    "trtllm": {"HND": _order("BL2HND"), "NHD": _order("BL2NHD")},
    "tpu_inference": {
        "rpa_v3": _padded(_tpu, heads=True),
        "rpa_v3_64": _padded(_tpu_64, heads=True),
        "batched_rpa": _padded(_tpu_batched),
        "mla_v2": _padded(_tpu_mla),
    },
    "gaudi": {"hpu": _order("L2BNHD")},
    "llama_cpp": {
        # A block is a stream; its tokens are cells.
        "flash_attn": _kv_by_layer(_NHD, _NHD),
        "v_transposed": _kv_by_layer(_NHD, "kv_heads={H},head_dim={D},block_size={N}"),
    },
    "lmcache": {
        "KV_2LTD": _order("2LBNHD"),
        "KV_MLA_FMT": _order("LBND"),
        "KV_T2D": _order("LBN2HD"),
        "NL_X_NB_BSV_BSS": _in_page(_indexer, lambda s: 132 * s.N),
    },
}

_LMCACHE = {"NL": "L", "NB": "B", "NBBS": "BN", "NH": "H", "BS": "N", "HS": "D", "TWO": "2", "CS": "2D", "ONE": ""}


def preset_pool(engine: str, layout: str, sizes: Mapping[str, Any]) -> PresetPool:
    """Return the pool that a preset describes.

    Raises
    ------
    FastIndexError
        An unknown engine or layout, or sizes that the layout does not support.

    Examples
    --------
    >>> sizes = {"num_layers": 2, "num_blocks": 8, "kv_heads": 4, "block_size": 16, "head_dim": 64, "dtype": "bf16"}
    >>> preset_pool("vllm", "BLNHC", sizes).parts
    'bf16[num_blocks=8,layers=2,block_size=16,kv_heads=4,2,head_dim=64]'
    """
    if str(engine) not in engines():
        raise FastIndexError(f"the engines with presets are {', '.join(_PRESETS)}; got {engine!r}")
    found = _PRESETS[str(engine)].get(str(layout)) or (_of_lmcache(str(layout)) if engine == "lmcache" else None)
    if found is None:
        raise FastIndexError(f"the layouts of {engine} are {', '.join(_PRESETS[engine])}; got {layout!r}")
    width = _width(sizes["dtype"])
    counts = [sizes[name] for name in ("num_layers", "num_blocks", "kv_heads", "block_size", "head_dim")]
    layers, blocks, heads, tokens, dims = counts
    pool = found(Sizes(layers, blocks, heads, tokens, dims, sizes["dtype"], max(16 // width, 1), max(4 // width, 1)))
    if heads > 1 and "kv_heads" not in str(pool.parts):
        raise FastIndexError(f"{engine} {layout} has one head, got kv_heads={heads}")
    return pool


def _of_lmcache(name: str) -> Preset | None:
    """Return the preset of a name such as NL_X_TWO_NB_BS_NH_HS; X separates the list axes from the tensor axes."""
    parts = [part for part in name.split("_") if part != "X"]
    order = "".join(_LMCACHE.get(part, "?") for part in parts)
    is_known = "?" not in order and len(set(order)) == len(order) and set("BND") <= set(order)
    return _order(order) if is_known else None


def layouts(engine: str) -> tuple[str, ...]:
    """Return the names of the layouts of an engine.

    Examples
    --------
    >>> layouts("trtllm")
    ('HND', 'NHD')
    """
    return tuple(_PRESETS[engine])


def engines() -> tuple[str, ...]:
    """Return the names of the engines.

    Examples
    --------
    >>> engines()[:2]
    ('vllm', 'flashinfer')
    """
    return tuple(_PRESETS)
