"""Where the elements of an array live in memory under XLA's layouts: exact, in bulk, at copy speed."""

from __future__ import annotations

from fastindex.lazy import lazy_names

__version__ = "0.1.0"

# The public names; `__init__.pyi` tells type checkers the same.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.errors": (
            "ArgumentTypeError",
            "DeviceMemoryError",
            "FastIndexError",
            "InvalidShapeError",
            "LayoutError",
            "OutOfBoundsError",
            "ShapeSyntaxError",
            "ShardingError",
            "ShardingSyntaxError",
            "UnsupportedError",
        ),
        "fastindex.shapes.element_types": ("ElementType",),
        "fastindex.shapes.split_config": ("SplitConfig",),
        "fastindex.shapes.layout": ("Layout",),
        "fastindex.shapes.shape": ("Shape",),
        "fastindex.shapes.program_shape": ("ProgramShape",),
        "fastindex.shardings.placement": ("Shard",),
        "fastindex.shardings.sharding": ("Sharding",),
        "fastindex.lowering.windows.strided_runs": ("StridedRun",),
        "fastindex.lowering.index.tile_programs": ("TileSlots",),
        "fastindex.bulk.indices": ("convert_index", "linear_index", "multi_index"),
        "fastindex.bulk.tile_indices": ("from_tile_index", "tile_index", "tile_slots"),
        "fastindex.bulk.numpy_dropins": ("ravel_multi_index", "unravel_index"),
        "fastindex.bulk.relayout_plans": ("RelayoutPlan",),
        "fastindex.bulk.relayouts": ("pack", "plan_relayout", "relayout", "unpack"),
        "fastindex.bulk.discovery": ("discover",),
        "fastindex.bulk.rearranged_arrays": ("rearrange",),
        "fastindex.bulk.rearrangements": ("plan_rearrange", "reshape", "same_bytes"),
        "fastindex.bulk.repacking": ("formats", "repack"),
        "fastindex.bulk.resharding": ("ReshardPlan", "plan_reshard"),
        "fastindex.bulk.sharded_arrays": ("shard", "unshard"),
        "fastindex.bulk.sharded_indices": ("shard_index", "shards", "unshard_index"),
        "fastindex.bulk.strided_copies": ("ascontiguousarray", "asfortranarray", "copyto"),
        "fastindex.bulk.window_runs": ("runs", "strided_runs"),
        "fastindex.bulk.wrong_slots": ("check",),
        "fastindex.files.weights.checkpoints": ("open_checkpoint",),
        "fastindex.files.weights.packing": ("pack_checkpoint",),
        "fastindex.advice.sentences": ("explain",),
        "fastindex.advice.linear_forms": ("LinearForm",),
        "fastindex.advice.suggestions": ("TileSuggestion", "suggest_tiles"),
        "fastindex.advice.steps": ("steps",),
        "fastindex.advice.format_names": ("layout_name", "named_layout"),
        "fastindex.pictures.picture": ("Picture", "draw"),
        "fastindex.hlo.copies.layout_copies": ("layout_copies",),
        "fastindex.hlo.report": ("Report", "report"),
        "fastindex.trials.try_layouts": ("try_layouts",),
        "fastindex.xla.bitcasts": ("reshape_is_bitcast", "transpose_is_bitcast"),
        "fastindex.xla.sizes": ("xla_array_size",),
    },
    submodules=("cuda", "dask", "xla"),
    meant={
        # Commands.
        "copies": "layout_copies(program), or try_layouts(function, *arguments)",
        "demo": "the command 'fastindex demo'",
        "explore": "draw(shape) for a picture, or the command 'fastindex explore'",
        "index": "linear_index(shape, coordinates), or multi_index(shape, slots) for the way back",
        "info": "explain(shape), or the attributes of Shape.parse(text)",
        "show": "draw(shape)",
        "verify": "open_checkpoint(folder).verify()",
        "warmup": "the command 'fastindex warmup'",
        # What other libraries call it.
        "load_checkpoint": "open_checkpoint(folder)",
        "parse": "Shape.parse(text)",
        "reduce": "einops.reduce: rearrange only splits, merges and reorders axes",
        "repeat": "einops.repeat: rearrange only splits, merges and reorders axes",
        "save_checkpoint": "pack_checkpoint(source, folder, rules)",
        "transpose": "rearrange(array, 'a b -> b a'), ascontiguousarray(array.T), or relayout(buffer, shape, shape)",
    },
)
