"""The bytes that an instruction reads of each operand and writes of its result, as XLA's cost analysis counts them.

Source: ``xla/service/hlo_cost_analysis.cc`` (FusionParameterReadBytes, HandleFusion, HandleGather, HandleScatter,
HandleSlice, HandleDynamicSlice, HandleDynamicUpdateSlice).
"""

from __future__ import annotations

from collections.abc import Sequence

from fastindex.hlo.computations import Computation
from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import ShapeTable

#: Bytes read of each operand, and bytes written of each array of the result.
Accessed = tuple[Sequence[int], Sequence[int]]
#: Limit on the nesting of fusions; beyond it, the bytes are not counted.
_DEEPEST = 50


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
        self._arrays = [[table.nbytes[leaf] for leaf in table.entry(text).leaves] for text in module.shapes]
        self._sizes = [sum(arrays) for arrays in self._arrays]
        self._fusions: dict[tuple[str, str], Accessed | None] = {}
        self._read_by: dict[str, Sequence[int]] = {}
        self._depth = 0

    def of(self, computation: Computation, place: int) -> Accessed:
        """Return the bytes read of each operand and written of each array of the result of an instruction."""
        opcode, details = computation.opcodes[place], computation.details[place]
        if opcode == "custom-call":
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
        written = self._arrays[computation.shape(place)]
        if opcode in ("slice", "dynamic-slice", "gather"):
            return [*written, *reads[1:]], written
        if opcode == "dynamic-update-slice":
            return [0, *reads[1:]], reads[1:2]
        if opcode == "scatter":
            count = len(reads) // 2
            updates = reads[count + 1 :]
            return [*updates, *reads[count:]], updates
        return reads, written

    def _size(self, computation: Computation, place: int) -> int:
        return self._sizes[computation.shape(place)] if place >= 0 else 0

    def _of_fusion(self, fused: Computation, kind: str) -> Accessed:
        if kind == "Custom":
            for place, opcode in enumerate(fused.opcodes):
                if opcode in ("gather", "scatter"):
                    # XLA takes the operands of the fusion for those of this instruction.
                    return self.of(fused, place)
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
        for place, opcode in enumerate(fused.opcodes):
            operands = fused.operands(place)
            for operand in set(operands) & numbers.keys():
                number, whole = numbers[operand], self._size(fused, operand)
                is_first = operands[0] == operand
                if opcode == "fusion":
                    inner = self._computations.get((*fused.details[place].callees, "")[0])
                    sizes = self._reads(inner) if inner is not None else ()
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
