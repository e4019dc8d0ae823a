"""What `Shape` has to do with other libraries and with notebooks; each method loads what it needs when it is called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

if TYPE_CHECKING:
    from fastindex.interop.layouts import CuteLayout
    from fastindex.shapes.shape import Shape


class ShapeConversions:
    """The base of `Shape` that knows other libraries' arrays."""

    __slots__ = ()

    @staticmethod
    def from_numpy(array: Any) -> Shape:
        """Give the shape and layout of a strided array: NumPy's, CuPy's, or what describes itself like them.

        Where a dimension has size 1 its place in the order is free, and the nearest to the default is taken.

        Raises
        ------
        UnsupportedError
            No layout has these strides: negative, zero, overlapping or with gaps between; or bytes in foreign order.
        FastIndexError
            XLA has no such element type.

        Examples
        --------
        >>> import numpy as np
        >>> import fastindex as fi
        >>> str(fi.Shape.from_numpy(np.zeros((3, 5), np.float32, order="F")))
        'f32[3,5]{0,1}'
        """
        from fastindex.interop.layouts import shape_from_numpy

        return shape_from_numpy(array)

    @staticmethod
    def from_torch(tensor: Any) -> Shape:
        """Give the shape and layout of a PyTorch tensor, whatever its memory format and device.

        Raises
        ------
        UnsupportedError
            Not a strided tensor, a lazy conjugate or negative, or no layout has its strides.
        FastIndexError
            XLA has no such element type.
        """
        from fastindex.interop.layouts import shape_from_torch

        return shape_from_torch(tensor)

    @staticmethod
    def from_jax(source: Any, dimensions: Iterable[SupportsIndex] | None = None, element_type: Any = None) -> Shape:
        """Give the shape and layout of a JAX array, or of a JAX ``Format`` or ``Layout`` and the array it is for.

        Raises
        ------
        UnsupportedError
            The layout is left to the compiler, or the array is sharded.
        FastIndexError
            A format or layout came without `dimensions` and `element_type`.
        """
        from fastindex.interop.layouts import shape_from_jax

        return shape_from_jax(source, dimensions, element_type)

    def to_jax(self) -> Any:
        """Give the layout as a ``jax.experimental.layout.Layout``.

        Raises
        ------
        UnsupportedError
            Not an array, or the layout has attributes that JAX's layouts do not have.
        """
        from fastindex.interop.layouts import layout_to_jax

        return layout_to_jax(cast("Shape", self).layout)

    def to_cute(self) -> CuteLayout:
        """Give the layout as nested sizes and strides, as CuTe writes it.

        Raises
        ------
        UnsupportedError
            Not an array, or a tile does not divide what it splits.

        Examples
        --------
        >>> import fastindex as fi
        >>> str(fi.Shape.parse("f32[4,8]{1,0:T(2,4)}").to_cute())
        '((2,2),(4,2)):((4,16),(1,8))'
        """
        from fastindex.interop.layouts import to_cute

        return to_cute(cast("Shape", self))

    def _repr_html_(self) -> str:
        from fastindex.pictures.picture import shape_html

        return shape_html(cast("Shape", self))
