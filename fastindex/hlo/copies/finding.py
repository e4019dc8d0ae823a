"""Find the copies of a module and describe each as a row."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.hlo.attributes import MetadataReader
from fastindex.hlo.attributes import Origin as Metadata
from fastindex.hlo.computations import Computation
from fastindex.hlo.copies.calls import Calls, CallSite
from fastindex.hlo.copies.chains import Chains, Consumer, FusedBytes, Origin
from fastindex.hlo.copies.rows import CopyKind, CopyRow, Kinds, origin_text, wanted_text
from fastindex.hlo.modules import Module
from fastindex.hlo.presentation import Problem
from fastindex.hlo.read.protos import Profile
from fastindex.hlo.read.sources import TextSource
from fastindex.hlo.shape_table import Sizes, array_of

_OPCODES = frozenset(("copy", "copy-start", "reshape", "transpose"))
#: A fusion of only these moves data; its cycle estimate is that of its copies.
_FORMATTING = frozenset(("parameter", "copy", "bitcast", "reshape", "transpose", "tuple", "get-tuple-element"))
#: A fusion of only these reads and writes exactly the bytes of its copies.
_WHOLE = _FORMATTING | {"convert", "fusion"}
#: Operand that an asynchronous instruction moves to or from another memory space, by opcode.
_ASYNC_MOVES = {"slice": 0, "dynamic-slice": 0, "dynamic-update-slice": 1}
#: Memory on the TPU core (VMEM); XLA's estimates for copies within it are placeholders.
_FAST_MEMORY = 1


@dataclass(frozen=True, slots=True)
class _Found:
    """An instruction that moves data; `source` and `result` are numbers of shapes in the table."""

    computation: Computation
    place: int
    kind: CopyKind
    source: int
    result: int
    operand: int = 0


class _Finder:
    """Find the copies of one module."""

    def __init__(self, module: Module, kinds: Kinds, label: str, profile: Profile | None) -> None:
        self._module = module
        self._kinds = kinds
        self._table = kinds.table
        self._label = label
        self._profile = profile
        # No callbacks to this object: reference cycles would keep the module alive until garbage collection.
        self._sizes = Sizes(module, kinds.table)
        self._calls = Calls(module)
        self._chains = Chains(module, self._calls, self._sizes)
        self._fused = FusedBytes(self._calls, self._chains, self._sizes)
        self._reader = MetadataReader(module.tables, module.metadata)
        self._wholes: dict[str, bool] = {}
        self._movers: frozenset[tuple[str, int]] = frozenset()
        self._still: set[tuple[str, int]] = set()
        #: Copies and transposes inside fusions that keep the layout.
        self._plain: list[_Found] = []
        self.lost: list[tuple[Computation, int]] = []

    def rows(self) -> list[CopyRow]:
        """Return the rows of the module, in schedule order."""
        found = [item for computation in self._calls.computations for item in self._in(computation)]
        found += self._plain_fusions(found)
        self._movers = frozenset((item.computation.name, item.place) for item in found)
        passes = frozenset(self._still).union(
            (item.computation.name, item.place) for item in found if item.kind in ("memory space", "same layout")
        )
        rows = [self._row(item, passes) for item in found]
        return sorted(rows, key=lambda row: row.step)

    def _in(self, computation: Computation) -> Iterator[_Found]:
        is_fused = self._calls.is_fused(computation)
        moved = computation.opcodes[computation.root] if computation.opcodes else ""
        if moved in _ASYNC_MOVES and self._async_site(computation) is not None:
            yield from self._async_move(computation)
        if _OPCODES.isdisjoint(computation.opcodes):
            return
        for place, opcode in enumerate(computation.opcodes):
            if opcode not in _OPCODES:
                continue
            operands = computation.operands(place)
            if not len(operands) or operands[0] < 0:
                self.lost.append((computation, place))
                continue
            source = self._sizes.leaves(computation, operands[0])
            result = self._sizes.leaves(computation, place)
            if opcode == "copy-start":
                # The result is a tuple: destination, operand, context.
                result = result[: len(source)]
            fact = computation.facts.get(place)
            for before, after in zip(source, result, strict=False):
                kind = self._kinds.kind(opcode, before, after, fact if opcode == "transpose" else None)
                if kind is None and opcode in ("reshape", "transpose"):
                    # A bitcast; only XLA's TPU compiler prints it as one.
                    self._still.add((computation.name, place))
                if is_fused and kind in (None, "memory space", "same layout"):
                    if opcode != "reshape" and min(self._table.nbytes[before], self._table.nbytes[after]) >= 0:
                        self._plain.append(_Found(computation, place, kind or "same layout", before, after))
                elif kind is not None:
                    yield _Found(computation, place, kind, before, after)

    def _plain_fusions(self, found: list[_Found]) -> Iterator[_Found]:
        """Find the fusions that only copy, within one layout: inside others there are no buffers to copy."""
        others = {self._fusion_of(item.computation) for item in found if self._calls.is_fused(item.computation)}
        movers: set[tuple[str, int]] = set()
        for item in self._plain:
            if self._fusion_of(item.computation) not in others and self._fills_fusion(item, movers):
                movers.add((item.computation.name, item.place))
                yield item

    def _async_site(self, computation: Computation) -> CallSite | None:
        """Return the asynchronous call that runs a computation; None if none does."""
        site = self._calls.site(computation)
        is_async = site is not None and site.computation.opcodes[site.place].endswith(("-start", "-update"))
        return site if is_async else None

    def _async_move(self, computation: Computation) -> Iterator[_Found]:
        """Find the move of an asynchronous slice or update: part of an array, to or from another memory space."""
        place = computation.root
        operands = computation.operands(place)
        opcode = computation.opcodes[place]
        number = _ASYNC_MOVES[opcode]
        if len(operands) <= number or operands[number] < 0:
            self.lost.append((computation, place))
            return
        before = self._sizes.leaves(computation, operands[number])
        after = self._sizes.leaves(computation, place)
        if len(before) != 1 or len(after) != 1:
            return
        source, result = self._table.shapes[before[0]], self._table.shapes[after[0]]
        try:
            # Give the larger array the size of the part that moves.
            if opcode == "dynamic-update-slice":
                result = source.with_layout(result.layout)
            else:
                source = result.with_layout(source.layout)
        except FastIndexError:
            return
        parts = self._table.number(source), self._table.number(result)
        kind = self._kinds.kind("copy", *parts, None)
        if kind is not None and kind != "same layout":
            yield _Found(computation, place, kind, *parts, number)

    def _only_moves(self, computation: Computation, depth: int) -> bool:
        known = self._wholes.get(computation.name)
        if known is None:
            callees = [
                self._module.computations.get(name)
                for place, details in enumerate(computation.details)
                if computation.opcodes[place] == "fusion"
                for name in details.callees
            ]
            known = _WHOLE.issuperset(computation.opcodes) and all(
                callee is not None and depth < len(self._module.computations) and self._only_moves(callee, depth + 1)
                for callee in callees
            )
            self._wholes[computation.name] = known
        return known

    def _fills_fusion(self, item: _Found, movers: Set[tuple[str, int]]) -> bool:
        """Whether a fusion only performs this copy; of consecutive copies in one fusion, true for the first only."""
        around = self._fusions(item.computation)
        outermost = around[-2].computation if len(around) > 1 else item.computation
        is_whole = self._only_moves(outermost, 0)
        return is_whole and not self._fused.follows(item.computation, item.place, movers)

    def _row(self, item: _Found, passes: frozenset[tuple[str, int]]) -> CopyRow:
        computation, place = item.computation, item.place
        operand = computation.operands(place)[item.operand]
        is_fused = self._calls.is_fused(computation)
        source, result = self._table.shapes[item.source], self._table.shapes[item.result]
        nbytes = self._table.nbytes[item.source], self._table.nbytes[item.result]
        if is_fused:
            nbytes = self._fused.read(computation, operand), self._fused.written(computation, place)
        origin = self._chains.origin(computation, operand, passes)
        if computation.opcodes[place] in ("slice", "dynamic-slice"):
            origin.is_sliced = True
        consumers = self._chains.consumers(computation, place, passes)
        metadata = self._metadata_of(computation, place, consumers, origin)
        is_argument = origin.kind == "argument" and not origin.is_changed
        # Of a computation made for a shorthand, show the call site: the text contains only the shorthand.
        site = self._calls.site(computation) if computation.is_made else None
        shown, shown_place = (computation, place) if site is None else (site.computation, site.place)
        name = self._chains.name(shown, shown_place)
        is_alone = not is_fused or self._fills_fusion(item, self._movers)
        return CopyRow(
            instruction=name,
            computation=shown.name + (" (host)" if self._calls.is_on_host(shown) else ""),
            opcode=shown.opcodes[shown_place],
            kind=item.kind,
            source=source,
            result=result,
            nbytes_read=nbytes[0],
            nbytes_written=nbytes[1],
            trips=self._calls.trips(computation),
            estimated_cycles=self._cycles(item, source, result),
            fusion=self._fusion_of(computation),
            is_alone=is_alone,
            origin=self._origin_text(origin, source),
            wanted_by=wanted_text([self._consumer_text(consumer) for consumer in consumers], _array(result)),
            argument=origin.computation.details[origin.place].number if is_argument else None,
            argument_path=self._path_text(origin) if is_argument else "",
            chain=tuple(origin.chain),
            is_invariant=origin.is_invariant,
            at_loop=self._calls.is_looped(computation)
            or bool(origin.carry)
            or any(consumer.kind == "loop carry" for consumer in consumers),
            op_name=metadata.op_name,
            source_file=metadata.source_file,
            source_line=metadata.source_line,
            step=self._calls.step(computation, place),
            steps=self._calls.steps,
            line=shown.line(shown_place),
            module=self._label,
            measured_nanoseconds=self._measured(item, name) if is_alone else None,
        )

    def _measured(self, item: _Found, name: str) -> int | None:
        """Return the profiled time of an instruction, of its fusion, or of the asynchronous call that runs it."""
        if self._profile is None:
            return None
        name = self._fusion_of(item.computation) or name
        site = self._async_site(item.computation) if item.place == item.computation.root else None
        if site is not None:
            name = self._chains.name(site.computation, site.place)
        return self._profile.nanoseconds(name, self._calls.trips(item.computation))

    def _fusions(self, computation: Computation) -> list[CallSite]:
        """Return the fusions around a computation, innermost first."""
        found: list[CallSite] = []
        for _ in range(len(self._calls.computations)):
            site = self._calls.site(computation)
            if site is None or not self._calls.is_fused(computation):
                break
            found.append(site)
            computation = site.computation
        return found

    def _fusion_of(self, computation: Computation) -> str:
        """Return the outermost fusion around a computation, or ""."""
        around = self._fusions(computation)
        return self._chains.name(around[-1].computation, around[-1].place) if around else ""

    def _cycles(self, item: _Found, source: Shape, result: Shape) -> int | None:
        spaces = {_array(shape).layout.memory_space for shape in (source, result)}
        computation, place = item.computation, item.place
        if fusions := self._fusions(computation):
            if len(fusions) > 1 or not _FORMATTING.issuperset(computation.opcodes):
                return None
            computation, place = fusions[0].computation, fusions[0].place
        cycles = computation.facts.get(place)
        if spaces == {_FAST_MEMORY} or computation.opcodes[place] not in ("copy", "fusion"):
            return None
        return cycles if isinstance(cycles, int) else None

    def _origin_text(self, origin: Origin, source: Shape) -> str:
        name = self._chains.name(origin.computation, origin.place)
        entry = self._sizes.entry(origin.computation, origin.place)
        begin, end = entry.at(origin.path)
        leaves = entry.leaves[begin:end]
        only = array_of(self._table.shapes[leaves[0]]) if len(leaves) == 1 else None
        shape = _array(source) if only is None else only
        what, verb = name, "writes"
        if origin.kind == "argument":
            path = self._path_text(origin)
            number = origin.computation.details[origin.place].number
            what, verb = f"argument {number}" + (f", {path}" if path else ""), "is"
        elif origin.kind == "constant":
            what, verb = f"the constant {name}", "is"
        elif origin.computation.opcodes[origin.place] == "parameter":
            what, verb = f"{name} of {origin.computation.name}", "is"
        return origin_text(
            what,
            verb,
            shape,
            _array(source),
            origin.carry,
            is_changed=origin.is_changed,
            is_invariant=origin.is_invariant,
            is_sliced=origin.is_sliced,
        )

    def _path_text(self, origin: Origin) -> str:
        """Return the name of an argument; JAX writes its path into the metadata."""
        metadata = self._read_metadata(origin.computation, origin.place)
        name = metadata.op_name or self._chains.name(origin.computation, origin.place)
        return name + "".join(f"[{number}]" for number in origin.path)

    def _consumer_text(self, consumer: Consumer) -> tuple[str, str]:
        name = self._chains.name(consumer.computation, consumer.place)
        if consumer.kind == "result":
            return ("the result" if not consumer.path else f"result {consumer.path[0]}"), "be"
        if consumer.kind == "loop carry":
            element = f", element {consumer.path[0]}," if consumer.path else ""
            return f"the carry of {name}{element}", "be"
        if consumer.kind == "branch":
            return f"a branch of {name}", "need"
        operation = self._read_metadata(consumer.computation, consumer.place).op_name.rpartition("/")[2]
        is_new = operation.isidentifier() and operation not in name
        return (f"{name} ({operation})" if is_new else name), "need"

    def _read_metadata(self, computation: Computation, place: int) -> Metadata:
        return self._reader.origin_at(computation.metadata(place))

    def _metadata_of(self, computation: Computation, place: int, consumers: list[Consumer], origin: Origin) -> Metadata:
        """Return the metadata of a copy, or else of its fusion, of a consumer, or of the origin."""
        own = self._read_metadata(computation, place)
        others = [self._read_metadata(site.computation, site.place) for site in self._fusions(computation)]
        others += [self._read_metadata(consumer.computation, consumer.place) for consumer in consumers[:4]]
        others.append(self._read_metadata(origin.computation, origin.place))
        located = next((item for item in (own, *others) if item.source_file), own)
        named = next((item for item in (own, *others) if item.op_name), own)
        return Metadata(named.op_name, located.source_file, located.source_line)


def _array(shape: Shape) -> Shape:
    array = array_of(shape)
    return array if array is not None else shape


def module_copies(
    module: Module, kinds: Kinds, label: str, source: TextSource, problems: list[Problem]
) -> list[CopyRow]:
    """Return the instructions of a module that move data, in the order in which they run."""
    finder = _Finder(module, kinds, label, source.profile)
    rows = finder.rows()
    for computation, place in finder.lost:
        name = computation.names()[place]
        problems.append(Problem(computation.line(place), "an operand that is not in the text", name, source.name))
    return rows
