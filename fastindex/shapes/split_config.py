"""`SplitConfig`: where a dimension of a layout is split."""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.errors import LayoutError
from fastindex.shapes.integers import as_integer, as_integers


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """Where one physical dimension is split into parts. It does not affect indices.

    Source: ``SplitConfig`` in ``xla/layout.h``.

    Parameters
    ----------
    dimension : int
        Physical dimension; 0 is the most major.
    split_indices : sequence of int
        Where the second and later parts begin: positive and strictly increasing.

    Raises
    ------
    LayoutError
        The dimension is negative, or the indices are not positive and strictly increasing.

    Examples
    --------
    >>> str(SplitConfig(0, (4, 8)))
    '(0:4,8)'
    """

    dimension: int
    split_indices: tuple[int, ...]

    def __post_init__(self) -> None:
        dimension = as_integer(self.dimension, "split dimension")
        indices = as_integers(self.split_indices, "split_indices")
        if dimension < 0:
            raise LayoutError(f"a split dimension must be at least 0, got {dimension}", field="split_configs")
        previous = 0
        for index in indices:
            if index <= previous:
                raise LayoutError(
                    f"split indices must be positive and strictly increasing: {index} comes after {previous}",
                    field="split_configs",
                )
            previous = index
        object.__setattr__(self, "dimension", dimension)
        object.__setattr__(self, "split_indices", indices)

    def __str__(self) -> str:
        return f"({self.dimension}:{','.join(map(str, self.split_indices))})"
