"""Where the elements of an array live in memory under XLA's layouts: exact, in bulk, at copy speed."""

from __future__ import annotations

from fastindex.lazy import HOOKS, lazy_names

__version__ = "0.1.0"

# Functions of higher layers that lower ones call.
HOOKS.update(
    (prefix + function, (home, function))
    for home, prefix, functions in (
        ("fastindex.show.picture", "", ("shape_html", "plan_html")),
        ("fastindex.show.shard_picture", "", ("reshard_html",)),
        ("fastindex.cuda.relayouts", "cuda.", ("pack", "unpack", "rearrange", "DevicePlan", "copyto", "contiguous")),
        ("fastindex.cuda.indices", "cuda.", ("convert",)),
        ("fastindex.dask.indices", "dask.", ("convert",)),
        ("fastindex.dask", "dask.", ("pack", "unpack", "relayout", "rearrange")),
    )
    for function in functions
)

# The public names; `__init__.pyi` tells type checkers the same.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.errors": (
            "ArgumentTypeError",
            "FastIndexError",
            "LayoutError",
            "OutOfBoundsError",
            "ParseError",
            "UnsupportedError",
        ),
        "fastindex.core.element_types": ("ElementType",),
        "fastindex.core.layout": ("Layout",),
        "fastindex.core.shape": ("Shape",),
        "fastindex.algebra.strided_runs": ("StridedRun",),
        "fastindex.moving.relayout_plans": ("RelayoutPlan",),
        "fastindex.moving.relayout_calls": ("pack", "plan_relayout", "relayout", "unpack"),
        "fastindex.moving.rearranged_arrays": ("rearrange",),
        "fastindex.moving.rearrange_plans": ("RearrangePlan", "plan_rearrange", "reshape"),
        "fastindex.index.indices": ("convert_index", "linear_index", "multi_index"),
        "fastindex.index.tiles": ("TileSlots", "from_tile_index", "tile_index", "tile_slots"),
        "fastindex.index.runs": ("runs", "strided_runs"),
        "fastindex.show.sentences": ("explain",),
        "fastindex.show.picture": ("draw",),
    },
    submodules=("cuda", "dask", "hlo", "layouts", "numpy", "paged", "sharding", "weights", "xla"),
    meant={
        # Commands.
        "convert": "fastindex.weights.convert_checkpoint(source, folder, rules)",
        "copies": "fastindex.hlo.layout_copies(program), or fastindex.hlo.try_layouts(function, *arguments)",
        "demo": "the command 'fastindex demo'",
        "explore": "draw(shape) for a picture, or the command 'fastindex explore'",
        "index": "linear_index(shape, coordinates), or multi_index(shape, slots) for the way back",
        "info": "explain(shape), or the attributes of Shape.parse(text)",
        "show": "draw(shape)",
        "verify": "fastindex.weights.open_checkpoint(folder).verify()",
        "warmup": "the command 'fastindex warmup'",
        # What other libraries call it.
        "load_checkpoint": "fastindex.weights.open_checkpoint(folder)",
        "parse": "Shape.parse(text)",
        "reduce": "einops.reduce: rearrange only splits, merges and reorders axes",
        "repeat": "einops.repeat: rearrange only splits, merges and reorders axes",
        "save_checkpoint": "fastindex.weights.pack_checkpoint(source, folder, rules)",
        "transpose": "rearrange(array, 'a b -> b a'), fastindex.numpy.ascontiguousarray(array.T), or relayout(...)",
    },
)
