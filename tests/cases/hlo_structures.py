"""HLO modules whose text is well formed and whose structure is not: what `damaged` by characters hardly ever makes.

Operands that do not exist, callees with other parameters or none, tuples of other arities, aliases of nothing, names
twice, computations that are empty, missing or call themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

_OPENING = re.compile(r"^(?:ENTRY )?%?[\w.\-]+ .*\{$|^(?:ENTRY )?%?[\w.\-]+ \{$")
_OPERANDS = re.compile(r"(?<=[a-z\d])\(([^()]*)\)")
_CALLEE = re.compile(r"(?<=(?:alls|pply|body)=)%?[\w.\-]+|(?<=(?:dition|tation)=)%?[\w.\-]+")
_NAMED = re.compile(r"^(ENTRY )?(%?[\w.\-]+)")
_INSTRUCTION = re.compile(r"^(\s*(?:ROOT )?)(%?[\w.\-]+)( = )(.*)$")
_SHAPE = re.compile(r"^(\((?:[^()]|\([^()]*\))*\)|[a-z]\w*\[[^\]]*\](?:\{[^{}]*\})?) ([a-z][a-z\-]*)\(")
_OPCODES = (
    "add", "all-gather-done", "all-gather-start", "all-reduce-done", "all-reduce-start", "async-done", "async-start",
    "async-update", "bitcast", "call", "collective-permute-done", "collective-permute-start", "conditional", "constant",
    "copy", "copy-done", "copy-start", "custom-call", "domain", "dynamic-update-slice", "fusion", "get-tuple-element",
    "opt-barrier", "parameter", "recv", "recv-done", "scatter", "send", "slice-done", "slice-start", "sort", "tuple",
    "while",
)  # fmt: skip
_SHAPES = (
    "f32[]", "f32[8]{0}", "f32[4000,3]{1,0:T(8,128)}", "pred[]", "token[]", "opaque[]", "()", "(())", "(f32[8]{0})",
    "(f32[8]{0}, s32[])", "((f32[8]{0}, s32[]), f32[2]{0})", "((), f32[8]{0}, ())", "((f32[8]{0}), f32[8]{0}, u32[])",
    "f32[?]", "f32[9223372036854775807]{0}", "f32[2]{0,0}",
)  # fmt: skip
_NUMBERS = (0, 1, 2, 3, 7, 255, 256, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30)

#: Control flow of every kind, small: real programs are mostly fusions.
SMALL = (
    """HloModule loops, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}) }

%inner (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %y = f32[8]{0} negate(%x)
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %y)
}

%condition (p.1: (s32[], f32[8])) -> pred[] {
  %p.1 = (s32[], f32[8]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %n = s32[] constant(7)
  ROOT %less = pred[] compare(%i.1, %n), direction=LT
}

%body (p.2: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.2 = (s32[], f32[8]{0}) parameter(0)
  ROOT %w.2 = (s32[], f32[8]{0}) while(%p.2), condition=%condition, body=%inner
}

ENTRY %main (a: s32[], b: f32[8]) -> (s32[], f32[8]) {
  %a = s32[] parameter(0)
  %b = f32[8]{0} parameter(1)
  %t.3 = (s32[], f32[8]{0}) tuple(%a, %b)
  %w = (s32[], f32[8]{0}) while(%t.3), condition=%condition, body=%body
  %g = f32[8]{0} get-tuple-element(%w), index=1
  %h = s32[] get-tuple-element(%w), index=0
  ROOT %r = (s32[], f32[8]{0}) tuple(%h, %g)
}
""",
    """HloModule branches, is_scheduled=true

%yes (p: (f32[8], f32[8])) -> f32[8] {
  %p = (f32[8]{0}, f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%p), index=0
  ROOT %y = f32[8]{0} add(%x, %x)
}

%no (p.1: (f32[8], f32[8])) -> f32[8] {
  %p.1 = (f32[8]{0}, f32[8]{0}) parameter(0)
  ROOT %x.1 = f32[8]{0} get-tuple-element(%p.1), index=1
}

%called (q: f32[8], s: f32[8]) -> (f32[8], (f32[8], f32[8])) {
  %q = f32[8]{0} parameter(0)
  %s = f32[8]{0} parameter(1)
  %t = (f32[8]{0}, f32[8]{0}) tuple(%s, %q)
  %z = f32[8]{0} multiply(%q, %s)
  ROOT %u = (f32[8]{0}, (f32[8]{0}, f32[8]{0})) tuple(%z, %t)
}

ENTRY %main (which: pred[], number: s32[], a: f32[8]) -> f32[8] {
  %which = pred[] parameter(0)
  %number = s32[] parameter(1)
  %a = f32[8]{0} parameter(2)
  %v = (f32[8]{0}, (f32[8]{0}, f32[8]{0})) call(%a, %a), to_apply=%called
  %e = (f32[8]{0}, f32[8]{0}) get-tuple-element(%v), index=1
  %c = f32[8]{0} conditional(%which, %e, %e), true_computation=%yes, false_computation=%no
  %d = f32[8]{0} conditional(%number, %e, %e), branch_computations={%yes, %no}
  ROOT %f = f32[8]{0} subtract(%c, %d)
}
""",
    """HloModule starts, is_scheduled=true, input_output_alias={ {}: (0, {}, must-alias) }

%wrapped (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %x = f32[8]{0} custom-call(%p), custom_call_target="f", output_to_operand_aliasing={{}: (0, {})}
}

%fused (q: f32[8], s: f32[2], k: s32[]) -> (f32[8], f32[8]) {
  %q = f32[8]{0} parameter(0)
  %s = f32[2]{0} parameter(1)
  %k = s32[] parameter(2)
  %u = f32[8]{0} dynamic-update-slice(%q, %s, %k)
  %b = f32[8]{0} bitcast(%u)
  %m = f32[8]{0} negate(%q)
  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%b, %m)
}

ENTRY %main (a: f32[8], c: f32[2], k.1: s32[]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %c = f32[2]{0} parameter(1)
  %k.1 = s32[] parameter(2)
  %o = ((f32[8]{0}), f32[8]{0}, u32[]) async-start(%a), calls=%wrapped
  %o.1 = ((f32[8]{0}), f32[8]{0}, u32[]) async-update(%o), calls=%wrapped
  %o.2 = f32[8]{0} async-done(%o.1), calls=%wrapped
  %y = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%o.2)
  %y.1 = f32[8]{0} copy-done(%y)
  %l = ((f32[8]{0}), f32[2]{0}, s32[]) slice-start(%y.1), slice={[0:2]}
  %l.1 = f32[2]{0} slice-done(%l)
  %f = (f32[8]{0}, f32[8]{0}) fusion(%y.1, %l.1, %k.1), calls=%fused, output_to_operand_aliasing={{0}: (0, {})}
  %g = f32[8]{0} get-tuple-element(%f), index=0
  %g.1 = f32[8]{0} get-tuple-element(%f), index=1
  %n = token[] after-all()
  %d = (f32[8]{0}, u32[], token[]) send(%g.1, %n), channel_id=1
  %d.1 = token[] send-done(%d), channel_id=1
  %v = (f32[8]{0}, u32[], token[]) recv(%n), channel_id=2
  %v.1 = (f32[8]{0}, token[]) recv-done(%v), channel_id=2
  %v.2 = f32[8]{0} get-tuple-element(%v.1), index=0
  %z = (f32[8]{0}, f32[8]{0}) sort(%g, %v.2), dimensions={0}, to_apply=%wrapped
  ROOT %z.1 = f32[8]{0} get-tuple-element(%z), index=0
}
""",
)


@dataclass
class Parts:
    """A module as parts: its header, and of each computation the opening line and the instructions."""

    header: str
    computations: list[tuple[str, list[str]]]

    def text(self) -> str:
        """Put it together."""
        bodies = ["\n".join([opening, *lines, "}"]) for opening, lines in self.computations]
        return "\n\n".join([self.header, *bodies]) + "\n"

    def copy(self) -> Parts:
        """Return one whose lists can be changed."""
        return Parts(self.header, [(opening, [*lines]) for opening, lines in self.computations])


def taken_apart(text: str) -> Parts:
    """Split a module as XLA prints it into its parts."""
    header, _, rest = text.partition("\n")
    parts = Parts(header, [])
    for line in rest.splitlines():
        if _OPENING.match(line):
            parts.computations.append((line, []))
        elif " = " in line and parts.computations:
            parts.computations[-1][1].append(line)
    return parts


def damaged_structure(source: Random, parts: Parts, most: int = 4) -> str:
    """Return the text of a module after up to `most` changes of its structure."""
    parts = parts.copy()
    for _ in range(source.randint(1, most)):
        source.choice(CHANGES)(source, parts)
    return parts.text()


def _line(source: Random, parts: Parts) -> tuple[list[str], int] | None:
    """Choose an instruction: the list that it is in, and its place."""
    filled = [lines for _, lines in parts.computations if lines]
    if not filled:
        return None
    lines = source.choice(filled)
    return lines, source.randrange(len(lines))


def _name(source: Random, lines: list[str]) -> str:
    """Choose the name of an instruction, or one that there is not."""
    found = _INSTRUCTION.match(source.choice(lines)) if lines and source.random() < 0.8 else None
    return found[2] if found else source.choice(("%nothing", "nothing", "%p", "%"))


def _computation(source: Random, parts: Parts) -> str:
    """Choose the name of a computation, or one that there is not."""
    if not parts.computations or source.random() < 0.15:
        return "%absent"
    found = _NAMED.match(source.choice(parts.computations)[0])
    return found[2] if found else "%absent"


def _operands(source: Random, parts: Parts) -> None:
    chosen = _line(source, parts)
    if chosen is None:
        return
    lines, place = chosen

    def other(found: re.Match[str]) -> str:
        names = [name for name in found[1].split(", ") if name]
        kind = source.randrange(5)
        if kind == 0 and names:
            names.pop(source.randrange(len(names)))
        elif kind == 1 and names:
            names[source.randrange(len(names))] = _name(source, lines)
        elif kind == 2:
            names.insert(source.randint(0, len(names)), _name(source, lines))
        elif kind == 3:
            names *= 2
        else:
            names = []
        return f"({', '.join(names)})"

    before, equals, after = lines[place].partition(" = ")
    lines[place] = before + equals + _OPERANDS.sub(other, after, 1)


def _callees(source: Random, parts: Parts) -> None:
    calling = [(lines, n) for _, lines in parts.computations for n, line in enumerate(lines) if _CALLEE.search(line)]
    if calling:
        lines, place = source.choice(calling)
        lines[place] = _CALLEE.sub(lambda _: _computation(source, parts), lines[place])


def _branches(source: Random, parts: Parts) -> None:
    chosen = _line(source, parts)
    if chosen is not None:
        lines, place = chosen
        names = ", ".join(_computation(source, parts) for _ in range(source.randint(0, 4)))
        listed = re.sub(r"branch_computations=\{[^}]*\}", "", lines[place])
        lines[place] = f"{listed}, branch_computations={{{names}}}"


def _bodies(source: Random, parts: Parts) -> None:
    if not parts.computations:
        return
    at = source.randrange(len(parts.computations))
    opening, lines = parts.computations[at]
    kind = source.randrange(7)
    if kind < 2:
        lines.clear()
    elif kind == 2:
        del parts.computations[at]
    elif kind == 3:
        del lines[source.randint(0, len(lines)) :]
    elif kind == 4:
        source.shuffle(lines)
    elif kind == 5:
        parts.computations.append((opening, [*lines]))
    else:
        parts.computations[at] = (source.choice(parts.computations)[0], lines)


def _lines(source: Random, parts: Parts) -> None:
    chosen = _line(source, parts)
    if chosen is None:
        return
    lines, place = chosen
    kind = source.randrange(5)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(source.randint(0, len(lines)), lines[place])
    elif kind == 2:
        lines[place] = (
            lines[place].replace("ROOT ", "") if "ROOT " in lines[place] else f"  ROOT {lines[place].strip()}"
        )
    elif kind == 3:
        lines[place] = _INSTRUCTION.sub(
            lambda found: found[1] + _name(source, lines) + found[3] + found[4], lines[place]
        )
    else:
        other = _line(source, parts)
        if other is not None:
            lines[place] = other[0][other[1]]


def _results(source: Random, parts: Parts) -> None:
    """Another shape, or another opcode."""
    chosen = _line(source, parts)
    if chosen is None:
        return
    lines, place = chosen
    before, equals, after = lines[place].partition(" = ")
    found = _SHAPE.match(after)
    if found is None:
        return
    shape, opcode = found[1], found[2]
    kind = source.randrange(5)
    if kind == 0:
        shape = source.choice(_SHAPES)
    elif kind == 1:
        shape = f"({shape})"
    elif kind == 2 and shape.startswith("("):
        shape = source.choice((shape[:-1] + f", {source.choice(_SHAPES)})", f"({shape.partition(', ')[2] or ')'}"))
    else:
        opcode = source.choice(_OPCODES)
    after = f"{shape} {opcode}({after[found.end() :]}"
    if opcode in ("while", "call", "conditional", "async-start", "fusion") and source.random() < 0.7:
        called = [_computation(source, parts) for _ in range(2)]
        after += (
            f", calls={called[0]}, to_apply={called[0]}, condition={called[0]}, body={called[1]}, "
            f"true_computation={called[0]}, false_computation={called[1]}, kind=kLoop"
        )
    lines[place] = before + equals + after


def _numbers(source: Random, parts: Parts) -> None:
    """Other numbers of parameters and elements."""
    numbered = [
        (lines, place)
        for _, lines in parts.computations
        for place, line in enumerate(lines)
        if "parameter(" in line or "index=" in line
    ]
    if numbered:
        lines, place = source.choice(numbered)
        number = str(source.choice(_NUMBERS))
        lines[place] = re.sub(r"(?<=parameter\()\d*|(?<=index=)\d+", number, lines[place])


def _alias(source: Random) -> str:
    def path() -> str:
        return ", ".join(str(source.choice(_NUMBERS[:6])) for _ in range(source.choice((0, 1, 1, 1, 2, 3))))

    pairs = [f"{{{path()}}}: ({source.choice(_NUMBERS)}, {{{path()}}})" for _ in range(source.randint(0, 3))]
    return "{" + ", ".join(pairs) + "}"


def _aliases(source: Random, parts: Parts) -> None:
    """Tables of aliases of a module, of a fusion or of a custom call."""
    chosen = _line(source, parts)
    if source.random() < 0.5 or chosen is None:
        plain = re.sub(r", input_output_alias=\{.*\}(?=,|$)", "", parts.header)
        parts.header = f"{plain}, input_output_alias={_alias(source)}, buffer_donor={{ (9, {{7}}) }}"
        return
    aliasing = [
        (lines, place)
        for _, lines in parts.computations
        for place, line in enumerate(lines)
        if " fusion(" in line or " custom-call(" in line
    ]
    lines, place = source.choice(aliasing) if aliasing else chosen
    plain = re.sub(r", output_to_operand_aliasing=\{(?:[^{}]|\{[^{}]*\})*\}", "", lines[place])
    lines[place] = f"{plain}, output_to_operand_aliasing={_alias(source)}"


CHANGES: tuple[Callable[[Random, Parts], None], ...] = (
    _operands, _callees, _branches, _bodies, _lines, _results, _numbers, _aliases,
)  # fmt: skip
