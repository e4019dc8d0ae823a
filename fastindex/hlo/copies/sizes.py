"""Shapes and sizes of the results of a module's instructions."""

from __future__ import annotations

from fastindex.hlo.computations import Computation
from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import Leaves, ShapeTable, array_of


class Sizes:
    """Look up the result shapes of instructions in a shape table."""

    def __init__(self, module: Module, table: ShapeTable) -> None:
        self._texts = list(module.shapes)
        self._table = table

    def entry(self, computation: Computation, place: int) -> Leaves:
        """Return the result shape of an instruction, split into its arrays."""
        return self._table.entry(self._texts[computation.shape(place)])

    def leaves(self, computation: Computation, place: int) -> tuple[int, ...]:
        """Return the table numbers of the arrays in a result."""
        return self.entry(computation, place).leaves

    def element_count(self, computation: Computation, place: int) -> int:
        """Return the number of elements of a result; -1 if it is not a single array."""
        leaves = self.leaves(computation, place)
        array = array_of(self._table.shapes[leaves[0]]) if len(leaves) == 1 else None
        return -1 if array is None else array.element_count

    def nbytes(self, computation: Computation, place: int, element: int) -> int:
        """Return the bytes of a result, or of one element of its tuple; -1 stands for the whole result."""
        entry = self.entry(computation, place)
        begin, end = (0, len(entry.leaves))
        if element >= 0:
            begin, end = entry.spans[element] if element < len(entry.spans) else (0, 0)
        return sum(max(self._table.nbytes[leaf], 0) for leaf in entry.leaves[begin:end])
