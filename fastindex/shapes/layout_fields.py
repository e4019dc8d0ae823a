"""The fields of a layout, their validation and their text."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastindex.errors import LayoutError
from fastindex.shapes.integers import as_integer
from fastindex.shapes.layout_rules import (
    BOUNDS,
    INDEX_TYPES,
    PADDING_VALUES,
    checked_index_type,
    checked_levels,
    checked_order,
    checked_padding,
    checked_splits,
    checked_tiles,
)
from fastindex.shapes.split_config import SplitConfig
from fastindex.tiling.definition import COMBINE


@dataclass(frozen=True, slots=True)
class LayoutFields:
    """The fields of a `Layout`, as readers and writers need them; `Layout` documents them."""

    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    padded_dimensions: tuple[int, ...] | None = None
    padding_value: str | None = None
    element_size_in_bits: int = 0
    memory_space: int = 0
    tail_padding_alignment_in_elements: int = 1
    split_configs: tuple[SplitConfig, ...] = ()
    dynamic_shape_metadata_prefix_bytes: int = field(default=0, compare=False)
    dimension_levels: tuple[str, ...] = ()
    index_primitive_type: str = ""
    pointer_primitive_type: str = ""

    def __post_init__(self) -> None:
        put = object.__setattr__
        order = checked_order(self.minor_to_major)
        put(self, "minor_to_major", order)
        put(self, "tiles", tuple(checked_tiles(self.tiles)) if self.tiles else ())
        if self.padded_dimensions is not None:
            put(self, "padded_dimensions", checked_padding(self.padded_dimensions, len(order)))
        if self.padding_value not in (None, *PADDING_VALUES):
            raise LayoutError(
                f"padding_value must be {', '.join(PADDING_VALUES)} or None, got {self.padding_value!r}",
                field="padding_value",
            )
        for name, lowest, highest in BOUNDS:
            value = as_integer(getattr(self, name), name)
            if not lowest <= value <= highest:
                limit = f"at least {lowest}" if highest > 2**62 else f"{lowest} to {highest}"
                raise LayoutError(f"{name} must be {limit}, got {value}", field=name)
            put(self, name, value)
        put(
            self,
            "split_configs",
            checked_splits(self.split_configs, len(order)) if self.split_configs else (),
        )
        if self.dimension_levels:
            put(self, "dimension_levels", checked_levels(self.dimension_levels))
        if self.index_primitive_type or self.pointer_primitive_type:
            for name in INDEX_TYPES:
                put(self, name, checked_index_type(getattr(self, name), name))

    @property
    def rank(self) -> int:
        """Number of dimensions.

        Examples
        --------
        >>> LayoutFields((1, 0)).rank
        2
        """
        return len(self.minor_to_major)

    @property
    def major_to_minor(self) -> tuple[int, ...]:
        """The dimensions, most major first.

        Examples
        --------
        >>> LayoutFields((1, 2, 0)).major_to_minor
        (0, 2, 1)
        """
        return self.minor_to_major[::-1]

    def __str__(self) -> str:
        # As ``Layout::ToString`` in xla/layout.cc.
        order = ",".join(map(str, self.minor_to_major))
        attributes = ""
        if self.padded_dimensions is not None:
            attributes += f"PAD({','.join(map(str, self.padded_dimensions))})"
        if self.padding_value is not None:
            attributes += f"PV({self.padding_value})"
        if self.dimension_levels:
            attributes += f"D({','.join(self.dimension_levels)})"
        if self.tiles:
            attributes += "T"
            for tile in self.tiles:
                attributes += f"({','.join(['*' if size == COMBINE else str(size) for size in tile])})"
        if self.tail_padding_alignment_in_elements != 1:
            attributes += f"L({self.tail_padding_alignment_in_elements})"
        if self.index_primitive_type:
            attributes += f"#({self.index_primitive_type})"
        if self.pointer_primitive_type:
            attributes += f"*({self.pointer_primitive_type})"
        if self.element_size_in_bits:
            attributes += f"E({self.element_size_in_bits})"
        if self.memory_space:
            attributes += f"S({self.memory_space})"
        if self.split_configs:
            attributes += "SC" + "".join(map(str, self.split_configs))
        if self.dynamic_shape_metadata_prefix_bytes > 0:
            attributes += f"M({self.dynamic_shape_metadata_prefix_bytes})"
        return f"{{{order}:{attributes}}}" if attributes else f"{{{order}}}"
