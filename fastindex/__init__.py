"""Where the elements of an array live in memory under XLA's layouts: exact, in bulk, at copy speed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "fastindex.errors": (
        "DeviceMemoryError",
        "FastIndexError",
        "InvalidShapeError",
        "LayoutError",
        "OutOfBoundsError",
        "ShapeSyntaxError",
        "UnsupportedError",
    ),
    "fastindex.lowering.strided_runs": ("StridedRun",),
    "fastindex.shapes.element_types": ("ElementType",),
    "fastindex.shapes.integers": ("UNBOUNDED",),
    "fastindex.shapes.layout": ("Layout",),
    "fastindex.shapes.shape": ("Shape",),
    "fastindex.shapes.split_config": ("SplitConfig",),
    "fastindex.tiling.definition": ("COMBINE",),
    "fastindex.shapes.program_shape": ("ProgramShape",),
    "fastindex.xla.bitcasts": (
        "deduce_transpose_dimensions_for_bitcast",
        "is_reshape_or_transpose_bitcast",
        "is_untiled",
        "reshape_is_bitcast",
        "transpose_is_bitcast",
    ),
    "fastindex.xla.equality": (
        "compatible",
        "compatible_ignoring_element_type",
        "compatible_ignoring_fp_precision",
        "compatible_kind",
        "equal_structure",
        "layouts_equal",
        "layouts_in_shapes_equal",
        "same_dimensions",
        "same_element_type",
        "same_rank",
        "shapes_equal",
    ),
    "fastindex.xla.index_queries": ("bump_index", "compare_indices", "index_in_bounds", "indices"),
    "fastindex.xla.layout_queries": (
        "are_dimensions_consecutive",
        "byte_strides_are_major_to_minor",
        "has_custom_element_size",
        "is_monotonic_with_dim0_major",
        "is_monotonic_with_dim0_minor",
        "logical_to_physical",
        "major",
        "minor",
    ),
    "fastindex.xla.reshapes": (
        "align_layouts",
        "decompose_bitcast",
        "dimensions_unmodified_by_reshape",
        "inserted_or_deleted_1_sized_dimensions",
        "normalized_logical_transpose_shape",
        "reshape_leaves_dimensions_unmodified",
    ),
    "fastindex.xla.dimension_edits": (
        "append_major_dimension",
        "append_minor_dimension",
        "delete_dimensions",
        "descending_with_same_physical_layout",
        "drop_degenerate_dimensions",
        "filter_dimensions",
        "insert_dimensions",
        "move_dimension_to_major",
        "move_dimension_to_minor",
        "permute_dimensions",
        "permute_dimensions_ignoring_layout",
        "prepend_major_dimension",
    ),
    "fastindex.xla.shape_edits": (
        "change_element_type",
        "clear_tiles",
        "copy_layouts",
        "device_shape_to_host_shape",
        "static_shape",
        "update_element_size",
        "with_default_layout",
        "with_layout",
    ),
    "fastindex.xla.shape_queries": (
        "extent_product",
        "has_degenerate_dimensions",
        "is_dynamic",
        "is_effective_scalar",
        "is_effectively_most_major_dimension",
        "is_scalar",
        "is_zero_element_array",
        "last_dimension_is_minor_most",
        "packed_factor_for_1d_interleaved_array",
        "static_extent_product",
    ),
    "fastindex.xla.sizes": (
        "array_data_size",
        "byte_size_of",
        "element_count_recursive",
        "max_elements_per_split",
        "max_split_size",
        "split_config",
        "xla_array_size",
    ),
    "fastindex.xla.strides": ("byte_strides", "dimension_stride", "slot_strides", "unpacked_byte_strides"),
    "fastindex.xla.shape_trees": (
        "flatten_tuple_shape",
        "get_subshape",
        "leaf_shapes",
        "map_leaves",
        "subshapes",
        "try_get_subshape",
    ),
    "fastindex.bulk.indices": ("convert_index", "linear_index", "multi_index", "tile_index"),
    "fastindex.bulk.numpy_dropins": ("ravel_multi_index", "unravel_index"),
    "fastindex.bulk.strided_copies": ("ascontiguousarray", "asfortranarray", "copyto"),
    "fastindex.bulk.window_runs": ("runs", "strided_runs"),
    "fastindex.bulk.relayouts": ("pack", "plan_relayout", "relayout", "unpack"),
    "fastindex.advice.sentences": ("explain", "suggest_tiles"),
    "fastindex.advice.steps": ("steps",),
    "fastindex.advice.format_names": ("layout_name", "named_layout"),
    "fastindex.pictures.picture": ("draw",),
    "fastindex.hlo.module_report": ("report",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'fastindex' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
