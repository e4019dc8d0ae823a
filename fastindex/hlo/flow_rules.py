"""Data-flow rules by opcode: which results are new values with their own memory, and which are those of operands.

An opcode without a rule defines every array of its result. Instructions inside fusions, reducers, comparators and other
computations applied per element need no memory; they are not looked up.

Sources, in ``xla/``: ``hlo/analysis/hlo_dataflow_analysis.cc`` (InitializeInstructionValueSets and the
Update...ValueSet functions), ``hlo/analysis/hlo_alias_analysis.cc`` (which values must share a buffer),
``hlo/analysis/alias_info.cc`` (in-place operations), ``hlo/ir/hlo_instruction.cc`` (elementwise opcodes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastindex.hlo.attributes import Details, Path
from fastindex.hlo.computations import Computation

Flow = Literal["operand", "element", "tuple", "part", "start", "while", "call", "conditional", "parameter"]


@dataclass(frozen=True, slots=True)
class Rule:
    """How the result of an opcode is composed.

    Attributes
    ----------
    flow : str
        "operand": the values of operand 0. "element": one tuple element of these. "tuple": the values of all operands.
        "part": element `part` of operand 0; further elements of the result are new values. "start": a tuple whose
        element `part` is the operands and whose other elements are new values. All others are calls.
    source : str
        The function in XLA that implements the rule.
    part : int
    """

    flow: Flow
    source: str
    part: int = 0


#: Opcodes that define no new value. Bitcasts: buffer assignment runs the analysis with bitcast_defines_value = false.
RULES: dict[str, Rule] = {
    "bitcast": Rule("operand", "UpdateBitcastValueSet"),
    "opt-barrier": Rule("operand", "UpdateOptimizationBarrierValueSet"),
    "domain": Rule("operand", "UpdateDomainValueSet"),
    "add-dependency": Rule("operand", "UpdateAddDependencyValueSet"),
    "get-tuple-element": Rule("element", "UpdateGetTupleElementValueSet"),
    "tuple": Rule("tuple", "UpdateTupleValueSet"),
    "parameter": Rule("parameter", "UpdateParameterValueSet"),
    "while": Rule("while", "UpdateWhileValueSet; ComputeWhileAliasedValues: init, carry and result share a buffer"),
    "call": Rule("call", "UpdateCallValueSet"),
    "conditional": Rule("conditional", "UpdateConditionalValueSet; ComputeConditionalAliasedValues"),
    "async-start": Rule("start", "UpdateAsyncStartValueSet: {{operands}, result, contexts}"),
    "async-update": Rule("operand", "UpdateAsyncUpdateValueSet"),
    "async-done": Rule("part", "UpdateAsyncDoneValueSet", 1),
    "copy-start": Rule("start", "UpdateCopyStartValueSet: {destination, operand, context}", 1),
    "copy-done": Rule("part", "UpdateCopyDoneValueSet", 0),
    "all-gather-start": Rule("start", "UpdateAllGatherStartValueSet: {operands, destinations}"),
    "all-gather-done": Rule("part", "UpdateAllGatherDoneValueSet", 1),
    "all-reduce-done": Rule("operand", "UpdateAllReduceDoneValueSet"),
    "collective-permute-start": Rule("start", "UpdateCollectivePermuteStartValueSet: {operands, results, contexts}"),
    "collective-permute-done": Rule("part", "UpdateCollectivePermuteDoneValueSet", 1),
    "send": Rule("start", "UpdateSendValueSet: {operand, context, token}"),
    "recv-done": Rule("part", "UpdateRecvDoneValueSet", 0),
}

#: Opcodes that write result i over operand i: ``AliasInfo::GetInPlaceInputOutputPairs``.
IN_PLACE = frozenset(("dynamic-update-slice", "scatter", "all-reduce-start", "set-dimension-size"))

#: ``HloInstruction::IsElementwise``: the result may reuse the memory of an operand at the end of its live range.
ELEMENTWISE = frozenset(
    (
        "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan2", "atanh", "bitcast-convert", "cbrt", "ceil",
        "clamp", "compare", "complex", "convert", "cosh", "cosine", "count-leading-zeros", "divide", "erf",
        "exponential", "exponential-minus-one", "floor", "imag", "is-finite", "log", "log-plus-one", "logistic",
        "map", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power", "real",
        "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt", "select",
        "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sinh", "sqrt",
        "stochastic-convert", "subtract", "tan", "tanh", "xor",
    )
)  # fmt: skip

#: Opcodes that pass a value through inside a fusion: ``AliasInfo::FollowNoOpIndirection``.
_NO_OPS = frozenset(("bitcast", "opt-barrier"))


def rule_of(opcode: str) -> Rule | None:
    """Return the rule of an opcode; None if its whole result is new.

    ``X-start``, ``X-update`` and ``X-done`` of any other X are shorthands for asynchronous calls.
    """
    rule = RULES.get(opcode)
    if rule is not None or "-" not in opcode:
        return rule
    if opcode.endswith("-start") and opcode != "all-reduce-start":
        return RULES["async-start"]
    if opcode.endswith("-update"):
        return RULES["async-update"]
    if opcode.endswith("-done") and opcode != "send-done":
        return RULES["async-done"]
    return None


@dataclass(frozen=True, slots=True)
class FusionFlow:
    """How a fusion may overwrite its operands.

    Attributes
    ----------
    in_place : tuple of (path, int)
        Paths in the result that are written over an operand, with the operand's number.
    elementwise : frozenset of int
        Operands with only elementwise uses, whose memory the result may reuse.
    """

    in_place: tuple[tuple[Path, int], ...]
    elementwise: frozenset[int]


def fusion_flow(fused: Computation, details: Details) -> FusionFlow:
    """Determine which results of a fused computation are written over operands, and which operands may be reused.

    Sources: ``AliasInfo::GetFusionInstructionInPlaceInputOutputPairs``;
    ``HloDataflowAnalysis::CanShareOperandBufferWithUser``.
    """
    in_place = []
    root = fused.root
    outputs: list[tuple[Path, int]] = [((), root)]
    if root >= 0 and fused.opcodes[root] == "tuple":
        outputs = [((number,), place) for number, place in enumerate(fused.operands(root))]
    for path, place in outputs:
        source = _through_no_ops(fused, place)
        if source >= 0 and fused.opcodes[source] in IN_PLACE and len(fused.operands(source)):
            target = _through_no_ops(fused, fused.operands(source)[0])
            if target >= 0 and fused.opcodes[target] == "parameter":
                in_place.append((path, fused.details[target].number))
    elementwise = _elementwise_parameters(fused) if details.kind in ("Loop", "Input") else frozenset()
    return FusionFlow(tuple(in_place), elementwise)


def _through_no_ops(fused: Computation, place: int) -> int:
    while place >= 0 and fused.opcodes[place] in _NO_OPS and len(fused.operands(place)):
        place = fused.operands(place)[0]
    return place


def _elementwise_parameters(fused: Computation) -> frozenset[int]:
    """Return the parameters whose transitive uses are all elementwise operations, copies or tuples."""
    whole = [True] * len(fused)
    for place in range(len(fused) - 1, -1, -1):
        opcode = fused.opcodes[place]
        # Whether elements keep their positions from this instruction's operands to the root.
        keeps = (opcode in ELEMENTWISE or opcode == "tuple" or opcode == "copy") and whole[place]
        if not keeps:
            for operand in fused.operands(place):
                if operand >= 0:
                    whole[operand] = False
    return frozenset(
        fused.details[place].number
        for place, opcode in enumerate(fused.opcodes)
        if opcode == "parameter" and whole[place]
    )


def may_reuse(opcode: str, number: int) -> bool:
    """Whether the result of an opcode other than fusion may reuse the memory of operand `number`.

    A sort writes each sorted operand to the result of the same number. Copies never reuse: ``HeapSimulator``.
    Source: ``HloDataflowAnalysis::CanShareOperandBufferWithUser``.
    """
    return opcode in ELEMENTWISE or opcode == "sort" or (opcode == "triangular-solve" and number == 1)
