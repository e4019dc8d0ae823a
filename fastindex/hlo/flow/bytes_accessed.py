"""The bytes that an instruction reads of each operand and writes of its result, as XLA's cost analysis counts them.

Source: ``xla/service/hlo_cost_analysis.cc`` (Preprocess, FusionParameterReadBytes, HandleFusion, HandleSlice,
HandleDynamicSlice, HandleDynamicUpdateSlice). A TPU gathers and scatters whole tiles: the counts are those that libtpu
0.0.52 logs with ``TPU_VMODULE=algorithm=5``.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastindex.core.shape import Shape
from fastindex.hlo.computations import Computation
from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import ShapeTable

#: Bytes read of each operand, and bytes written of each array of the result.
Accessed = tuple[Sequence[int], Sequence[int]]
#: Limit on the nesting of fusions; beyond it, the bytes are not counted.
_DEEPEST = 50
#: Aliasing of a fusion within another one that only changes the tiles.
_IS_OPERAND = (((), 0, ()),)
#: Rows and columns of a vector register, which a TPU loads to gather a row or an element.
_SUBLANES, _LANES = 8, 128


class BytesAccessed:
    """Counts the bytes that the instructions of a module access.

    Examples
    --------
    >>> from fastindex.hlo.modules import ModuleReader
    >>> from fastindex.hlo.scanner import HloScanner
    >>> found = []
    >>> reader = ModuleReader(found.append)
    >>> scanner = HloScanner(reader)
    >>> scanner.feed(b'''HloModule m
    ... ENTRY e {
    ...   p = f32[800]{0} parameter(0)
    ...   ROOT s = f32[100]{0} slice(p), slice={[0:100]}
    ... }''')
    >>> scanner.close()
    >>> reader.finish()
    >>> BytesAccessed(found[0], ShapeTable()).of(found[0].entry, 1)
    ([400], [400])
    """

    def __init__(self, module: Module, table: ShapeTable) -> None:
        self._computations = module.computations
        self._table = table
        self._leaves = [table.entry(text).leaves for text in module.shapes]
        self._arrays = [[table.nbytes[leaf] for leaf in leaves] for leaves in self._leaves]
        #: Of the results that are tuples only a fusion's count as written.
        self._written = [
            [0] * len(arrays) if text.startswith(b"(") else arrays
            for text, arrays in zip(module.shapes, self._arrays, strict=True)
        ]
        self._sizes = [sum(arrays) for arrays in self._arrays]
        self._fusions: dict[tuple[str, str], Accessed | None] = {}
        self._read_by: dict[str, Sequence[int]] = {}
        self._depth = 0

    def of(self, computation: Computation, place: int) -> Accessed:
        """Return the bytes read of each operand and written of each array of the result of an instruction."""
        opcode, details = computation.opcodes[place], computation.details[place]
        if opcode == "custom-call" and details.kind != "Estimated":
            # XLA's analysis does not look into custom calls.
            return (), ()
        if opcode == "fusion" and details.callees:
            key = details.callees[0], details.kind
            if key not in self._fusions:
                fused = self._computations.get(key[0])
                self._fusions[key] = self._of_fusion(fused, details.kind) if fused is not None else None
            found = self._fusions[key]
            if found is not None:
                return found
        reads = [self._size(computation, operand) for operand in computation.operands(place)]
        written = self._written[computation.shape(place)]
        if opcode in ("slice", "dynamic-slice"):
            return [*written, *reads[1:]], written
        if opcode == "gather" and reads:
            sizes = computation.details[place].slices[1]
            source, result = self._array(computation, computation.operands(place)[0]), self._array(computation, place)
            return [_nbytes_in_tiles(source, sizes, result), *reads[1:]], written
        if opcode == "dynamic-update-slice":
            return [0, *reads[1:]], reads[1:2]
        if opcode == "scatter":
            count = len(reads) // 2
            tiles = [self._scattered(computation, place, number) for number in range(count)]
            return [*tiles, *reads[count:]], tiles
        return reads, written

    def _scattered(self, computation: Computation, place: int, number: int) -> int:
        """Return the bytes of the tiles that a scatter writes slices to, in one of its operands."""
        window, others = computation.details[place].slices
        operands = computation.operands(place)
        target, updates = (self._array(computation, operands[at]) for at in (number, number - len(operands) // 2))
        if updates is None:
            return 0
        if target is None or len(window) + len(others) != target.rank:
            return _nbytes_in_tiles(None, (), updates)
        within = iter(updates.dimensions[at] for at in window if at < updates.rank)
        sizes = [1 if at in others else next(within, 1) for at in range(target.rank)]
        return _nbytes_in_tiles(target, sizes, updates)

    def _array(self, computation: Computation, place: int) -> Shape | None:
        """Return the shape of the result of an instruction, if it is one array."""
        leaves = self._leaves[computation.shape(place)] if place >= 0 else ()
        return self._table.shapes[leaves[0]] if len(leaves) == 1 else None

    def _size(self, computation: Computation, place: int) -> int:
        return self._sizes[computation.shape(place)] if place >= 0 else 0

    def _of_fusion(self, fused: Computation, kind: str) -> Accessed:
        if kind == "Custom":
            for place, opcode in enumerate(fused.opcodes):
                if opcode in ("gather", "scatter"):
                    # XLA takes the operands of the fusion for those of this instruction.
                    return self.of(fused, place)
            if fused.root >= 0 and fused.details[fused.root].kind == "Output":
                # A product with ragged groups is limited by computation.
                return (), [0] * len(self._arrays[fused.shape(fused.root)])
        is_tuple = fused.root >= 0 and fused.opcodes[fused.root] == "tuple"
        written: list[int] = []
        for root in fused.operands(fused.root) if is_tuple else (fused.root,):
            is_update = root >= 0 and fused.opcodes[root] == "dynamic-update-slice" and len(fused.operands(root)) > 1
            place = fused.operands(root)[1] if is_update else root
            written += self._arrays[fused.shape(place)] if place >= 0 else [0]
        return self._reads(fused), written

    def _reads(self, fused: Computation) -> Sequence[int]:
        """Return the bytes that a fusion reads of each parameter."""
        found = self._read_by.get(fused.name)
        if found is None:
            # Damaged text may have a computation that calls itself: it reads nothing.
            self._read_by[fused.name] = ()
            self._depth += 1
            found = self._read_by[fused.name] = self._new_reads(fused) if self._depth < _DEEPEST else ()
            self._depth -= 1
        return found

    def _new_reads(self, fused: Computation) -> Sequence[int]:
        numbers = {
            place: fused.details[place].number
            for place, opcode in enumerate(fused.opcodes)
            # In damaged text, numbers may be out of range.
            if opcode == "parameter" and 0 <= fused.details[place].number < len(fused)
        }
        reads = [0] * (max(numbers.values(), default=-1) + 1)
        shared = set()
        for place, (opcode, operands) in enumerate(zip(fused.opcodes, fused.all_operands(), strict=True)):
            is_same = opcode == "fusion" and fused.details[place].aliases == _IS_OPERAND
            if is_same and len(operands) and operands[0] in numbers:
                numbers[place] = numbers[operands[0]]
                continue
            for operand in numbers.keys() & operands:
                number, whole = numbers[operand], self._size(fused, operand)
                is_first = operands[0] == operand
                if opcode == "fusion":
                    inner = self._computations.get((*fused.details[place].callees, "")[0])
                    sizes = self._reads(inner) if inner is not None and not _is_custom(inner) else ()
                    reads[number] += sum(size for at, size in zip(operands, sizes, strict=False) if at == operand)
                elif opcode == "slice" or (opcode == "dynamic-slice" and is_first):
                    reads[number] += self._size(fused, place)
                elif opcode in ("broadcast", "reshape"):
                    reads[number] += whole
                elif (opcode == "dynamic-update-slice" and is_first) or (opcode == "tuple" and not reads[number]):
                    # It is written in place, or passed on to the result.
                    continue
                elif number not in shared:
                    # Instructions that read the same values share the read.
                    shared.add(number)
                    reads[number] += whole
        return reads


def _is_custom(fused: Computation) -> bool:
    """Whether a fusion within another one ends in a scatter, or in a fusion for gathers or scatters."""
    root = fused.root
    return root >= 0 and (fused.opcodes[root] == "scatter" or fused.details[root].kind == "Custom")


def _nbytes_in_tiles(array: Shape | None, sizes: Sequence[int], slices: Shape | None) -> int:
    """Return the bytes of the tiles of an array that slices of it are in.

    Parameters
    ----------
    array : Shape or None
    sizes : sequence of int
        Of one slice.
    slices : Shape or None
        Of all slices together; no two share a row.

    Examples
    --------
    Rows are gathered from tiles of 8 of them:

    >>> array, slices = (Shape.parse(f"f32[{count},72]{{1,0:T(8,128)}}") for count in (900, 4000))
    >>> _nbytes_in_tiles(array, (1, 72), slices) == 8 * slices.nbytes
    True

    Tiles of 4 rows are gathered whole:

    >>> array, slices = (Shape.parse(f"f32[{count},4,16]{{2,1,0:T(4,128)}}") for count in (900, 4000))
    >>> _nbytes_in_tiles(array, (1, 4, 16), slices) == slices.nbytes
    True

    Each of 500 elements, in 512 lanes, is loaded with a register of 4,096 bytes:

    >>> array, slices = (Shape.parse(f"s32[{count}]{{0:T({tile})}}") for count, tile in ((4000, 1024), (500, 512)))
    >>> _nbytes_in_tiles(array, (1,), slices) == 512 * 4096
    True
    """
    if slices is None:
        return 0
    if array is None or array.layout is None or len(sizes) != array.rank or 0 in sizes:
        return slices.nbytes
    order, tiles = array.layout.minor_to_major, array.layout.tiles
    rows = sizes[order[1]] if array.rank > 1 else 1
    lanes = _LANES if all(size == 1 for size in sizes) else 1
    height = tiles[0][0] if tiles and len(tiles[0]) == 2 else _SUBLANES
    return slices.nbytes * lanes * -(-rows // height) * height // rows
