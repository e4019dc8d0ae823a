"""XLA's shape utilities under XLA's names; they take shapes or their texts and never touch data."""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; `__init__.pyi` tells type checkers the same.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.core.program_shape": ("ProgramShape",),
        "fastindex.core.layout_fields": ("SplitConfig",),
        "fastindex.xla.bitcast_sequences": ("BitcastSequence", "bitcast_sequence"),
        "fastindex.xla.bitcasts": (
            "deduce_transpose_dimensions_for_bitcast",
            "is_reshape_or_transpose_bitcast",
            "is_untiled",
            "reshape_is_bitcast",
            "transpose_is_bitcast",
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
            "permute_dimensions_ignoring_layout",
            "prepend_major_dimension",
        ),
        "fastindex.xla.equality": (
            "compatible",
            "compatible_ignoring_element_type",
            "compatible_ignoring_fp_precision",
            "compatible_kind",
            "equal_structure",
            "layouts_in_shapes_equal",
            "same_dimensions",
        ),
        "fastindex.xla.index_queries": ("bump_index", "index_in_bounds", "indices"),
        "fastindex.xla.layout_queries": (
            "are_dimensions_consecutive",
            "byte_strides_are_major_to_minor",
            "has_custom_element_size",
            "is_monotonic_with_dim0_major",
            "is_monotonic_with_dim0_minor",
            "logical_to_physical",
        ),
        "fastindex.xla.reshapes": (
            "BitcastDecomposition",
            "align_layouts",
            "decompose_bitcast",
            "dimensions_unmodified_by_reshape",
            "inserted_or_deleted_1_sized_dimensions",
            "normalized_logical_transpose_shape",
            "reshape_leaves_dimensions_unmodified",
        ),
        "fastindex.xla.shape_edits": (
            "change_element_type",
            "clear_tiles",
            "copy_layouts",
            "device_shape_to_host_shape",
            "static_shape",
            "update_element_size",
            "with_default_layout",
        ),
        "fastindex.xla.shape_queries": (
            "extent_product",
            "is_dynamic",
            "is_effectively_most_major_dimension",
            "last_dimension_is_minor_most",
            "packed_factor_for_1d_interleaved_array",
            "static_extent_product",
        ),
        "fastindex.xla.shape_trees": ("get_subshape", "leaf_shapes", "map_leaves", "subshapes", "try_get_subshape"),
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
    },
)
