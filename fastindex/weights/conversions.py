"""Expressions for the tensors of a converted checkpoint, built by a `ConversionRule`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from fastindex.algebra.casts import check_cast
from fastindex.arrays.fills import element_type_of, wanted_type
from fastindex.core.element_types import ElementType
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.patterns.format_table import PARAMETERS, ROWS
from fastindex.patterns.known_names import PLAIN, takes_any_width
from fastindex.patterns.named_formats import row_letters
from fastindex.weights.arithmetic import arithmetic, cast
from fastindex.weights.expressions import (
    Alternating,
    Constant,
    Expression,
    Field,
    Joined,
    Moved,
    Part,
    Reversed,
    Stored,
    Transposed,
)
from fastindex.weights.found_formats import shown
from fastindex.weights.gguf_files import FIELDS
from fastindex.weights.repack_jobs import Formats
from fastindex.weights.repack_sides import common_letters
from fastindex.weights.rules import (
    STAR,
    ConversionRule,
    Output,
    captured,
    captures_of,
    errors_about,
    filled,
    order_of,
    stacks_of,
)
from fastindex.weights.safetensors_files import DTYPES, OPAQUE_BITS, Tensor, packed_shape, stored_as

_REFERENCE = re.compile(r"(.+)\[(\d)\](?:\*(\d+))?")


@dataclass(frozen=True, slots=True)
class Conversion:
    """A tensor to write, or to compare with a constant.

    Attributes
    ----------
    name : str
        Empty if it is only compared.
    dtype : str
        As safetensors files name it.
    sizes : tuple of int
    expression : Expression
    sources : tuple of str
        The source tensors, as messages show them.
    how : str
        The steps in between, as text.
    equals : Constant, optional
        The values that it must have.
    remedy : str
    """

    name: str
    dtype: str
    sizes: tuple[int, ...]
    expression: Expression
    sources: tuple[str, ...]
    how: str
    equals: Constant | None = None
    remedy: str = ""

    def __str__(self) -> str:
        made = f"{_printed(self.name)} {self.dtype} {list(self.sizes)}" if self.equals is None else "(compared)"
        return f"{' + '.join(self.sources)} -> {made}{f'  ({self.how})' if self.how else ''}"


def conversions_of(tensors: Mapping[str, Tensor], rules: Sequence[ConversionRule], casting: str) -> list[Conversion]:
    """Return the conversion of each tensor by the first rule that matches its name and type; others are copied.

    Raises
    ------
    FastIndexError
        A rule matches no tensor or does not fit its tensors, or two results have one name.
    ArgumentTypeError, UnsupportedError
        As `rules.arrays_of`.
    """
    followed: dict[int, list[Tensor]] = {number: [] for number in range(len(rules))}
    found: list[Conversion] = []
    for name, tensor in tensors.items():
        number = next((i for i, rule in enumerate(rules) if _follows(rule, tensor)), None)
        if number is not None:
            followed[number].append(tensor)
        elif tensor.is_opaque and tensor.dtype not in OPAQUE_BITS:
            fields = ", ".join(FIELDS.get(tensor.dtype, ()))
            raise FastIndexError(
                f"{shown(name)} is blocks of {tensor.dtype}, and no rule says what becomes of them: add one"
                f'{f", with a field ({fields})" if fields else ""}, or one with "outputs": [] to leave it out'
            )
        else:
            found.append(Conversion(name, *stored_as(tensor), Stored(tensor), (_told(tensor),), ""))
    for rule, those in zip(rules, followed.values(), strict=True):
        if not those and not rule.is_optional:
            raise FastIndexError(
                f"the rule for {shown(rule.names[0])} applies to no tensor: no name and type match, or an earlier rule "
                "matches first"
            )
        for tensor in those:
            _check_needs(rule, tensor, tensors)
        for output in rule.outputs:
            with errors_about(f"the rule for {shown(rule.names[0])}"):
                groups = list(_groups(rule, output, those))
            for group, captures, name in groups:
                with errors_about(f"{shown(group[0].name)}, by the rule for {shown(rule.names[0])}"):
                    found.extend(_made(output, group, captures, name, tensors, casting))
    if rules and not any(followed.values()):
        raise FastIndexError("no tensor follows any of the rules: the checkpoint is of another format")
    # In the order of the source, so that what comes from one tensor is made while that is in memory.
    places = {_told(tensor): place for place, tensor in enumerate(tensors.values())}
    found.sort(key=lambda one: places[one.sources[0]])
    names: set[str] = set()
    for one in found:
        if one.equals is None and (one.name in names or not one.name or one.name == "__metadata__"):
            raise FastIndexError(
                f"two tensors would be called {shown(one.name)}; the second is made of {' + '.join(one.sources)}"
                if one.name in names
                else f"no tensor is called {shown(one.name)}"
            )
        names.add(one.name)
    return found


def _follows(rule: ConversionRule, tensor: Tensor) -> bool:
    return rule.type in (None, tensor.dtype) and any(captured(one, tensor.name) is not None for one in rule.names)


def _check_needs(rule: ConversionRule, tensor: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Require the other tensors of a layer to exist, and their sizes to agree."""
    captures = next(found for one in rule.names if (found := captured(one, tensor.name)) is not None)
    known: dict[str, tuple[int, Tensor]] = {}
    divisors = []
    for pattern, text in rule.needs:
        name = filled(pattern, captures)
        if name not in tensors:
            raise FastIndexError(
                f"{shown(tensor.name)} comes with {shown(name)}, by the rule for {shown(rule.names[0])}, and there is "
                "no such tensor: the checkpoint is not whole, or of another format"
            )
        one, words = tensors[name], text.split()
        if text[:1].isupper() and one.dtype != words.pop(0):
            raise FastIndexError(f"{_told(one)} has another type than {text.split()[0]}")
        if words and len(words) != len(one.sizes):
            raise FastIndexError(f"{_told(one)} has other dimensions than {', '.join(words)}")
        for word, size in zip(words, one.sizes, strict=False):
            letter, _, divisor = word.partition("%")
            letter, _, factor = letter.partition("/")
            size *= int(factor or 1)
            given, other = known.setdefault(letter, (size, one))
            divisors += [(letter, divisor)] if divisor else []
            if given != size:
                raise FastIndexError(f"{_told(one)} does not belong to {_told(other)}: {letter} is {size}, and {given}")
    for letter, divisor in divisors:
        (size, one), (step, other) = known[letter], known[divisor]
        if size % step if step else size:
            raise FastIndexError(f"{_told(one)} does not belong to {_told(other)}: {size} is no multiple of {step}")


def _printed(name: str) -> str:
    return name if name.isprintable() else repr(name)


def _told(tensor: Tensor) -> str:
    return f"{_printed(tensor.name)} {tensor.dtype} {list(tensor.sizes)}"


def _groups(
    rule: ConversionRule, output: Output, tensors: Sequence[Tensor]
) -> Iterator[tuple[tuple[Tensor, ...], dict[str, str], str]]:
    """Yield each group of tensors that makes one output tensor, with its captures and the name of the result."""
    if output.stack is not None:
        for name, group in stacks_of(rule.names[0], output.stack, tensors):
            yield group, captured(rule.names[0], group[0].name) or {}, name
        return
    if len(rule.names) == 1:
        for tensor in tensors:
            captures = captured(rule.names[0], tensor.name) or {}
            yield (tensor,), captures, tensor.name if output.name is None else filled(output.name, captures)
        return
    known: dict[tuple[tuple[str, str], ...], dict[str, Tensor]] = {}
    for tensor in tensors:
        pattern, captures = next((p, c) for p in rule.names if (c := captured(p, tensor.name)) is not None)
        captures.pop(STAR, None)
        mine = known.setdefault(tuple(sorted(captures.items())), {})
        if mine.setdefault(pattern, tensor) is not tensor:
            raise FastIndexError(f"{shown(tensor.name)} and {shown(mine[pattern].name)} both match {shown(pattern)}")
    for key, mine in known.items():
        missing = next((pattern for pattern in rule.names if pattern not in mine), None)
        if missing is not None:
            raise FastIndexError(
                f"it joins {len(rule.names)} tensors: there is "
                f"{shown(next(iter(mine.values())).name)}, and no {shown(filled(missing, dict(key)))}"
            )
        yield tuple(mine[pattern] for pattern in rule.names), dict(key), filled(output.name or "", dict(key))


def _made(
    output: Output,
    group: tuple[Tensor, ...],
    captures: Mapping[str, str],
    name: str,
    tensors: Mapping[str, Tensor],
    casting: str,
) -> Iterator[Conversion]:
    sources = tuple(map(_told, group))
    how = [f"field {output.field}"] if output.field else []
    if output.format is not None:
        how.append(" -> ".join(map(str, output.format.names)))
    how += [f"transpose {output.transpose}"] if output.transpose else []
    how += [" ".join(step) for step in output.steps]
    how += [f"dtype {output.dtype}"] if output.dtype and output.constant is None else []
    if output.constant is not None:
        values = _constant(output.constant, output.dtype or "s64", captures, tensors)
        yield Conversion(name, _dtype_name(values), values.sizes, values, sources[:1], "constant")
        return
    if output.unstack is not None:
        (tensor,) = group
        if tensor.is_opaque or tensor.shape.layout.element_size_in_bits or not tensor.sizes or output.field:
            raise UnsupportedError(f"{tensor.dtype} {list(tensor.sizes)} is not unstacked")
        inner = replace(tensor, sizes=tensor.sizes[1:], shape=packed_shape(tensor.shape.element_type, tensor.sizes[1:]))
        front, back = filled(output.unstack, captures).split("*")
        for number in range(tensor.sizes[0]):
            part = Part(Stored(tensor), 0, range(number, number + 1), drops=True)
            made = _expression(output, [(part, inner)], casting)
            how_one = "; ".join([f"index {number}", *how])
            yield Conversion(f"{front}{number}{back}", _dtype_name(made), made.sizes, made, sources, how_one)
        return
    if output.stack is not None:
        stacked = [_expression(output, [_leaf(output, tensor)], casting) for tensor in group]
        expression: Expression = Joined(stacked, 0, is_stack=True)
        how.append("stack")
    else:
        expression = _expression(output, [_leaf(output, tensor) for tensor in group], casting)
    if output.equals is not None:
        constant = _compared(output.equals, expression, captures, tensors)
        yield Conversion("", "", expression.sizes, expression, sources, "; ".join(how), constant, output.remedy)
        return
    unchanged = isinstance(expression, Stored)
    dtype, sizes = stored_as(group[0]) if unchanged else (_dtype_name(expression), expression.sizes)
    yield Conversion(name, dtype, sizes, expression, sources, "; ".join(how))


def _dtype_name(expression: Expression) -> str:
    element_type = element_type_of(expression.dtype)
    if element_type is None or element_type.is_sub_byte or element_type.name not in DTYPES:
        raise UnsupportedError(f"safetensors files have no {expression.dtype}")
    return DTYPES[element_type.name]


def _leaf(output: Output, tensor: Tensor) -> tuple[Expression, Tensor]:
    """Return the expression of a tensor, or of a field of its blocks, and a tensor that describes it to a format."""
    blocks = Stored(tensor)
    if output.field is None:
        needs = (output.transpose, output.steps, output.dtype, output.join, output.stack)
        is_whole = tensor.is_opaque or tensor.shape.layout.element_size_in_bits
        if is_whole and any(one not in (None, ()) for one in needs):
            raise UnsupportedError(f"elements of {tensor.dtype} are not moved one by one: they are copied as they are")
        return blocks, tensor
    fields = FIELDS.get(tensor.dtype, {})
    if output.field not in fields:
        known = f"its blocks have {', '.join(fields)}" if fields else "it is not blocks"
        raise FastIndexError(f"{tensor.dtype} has no field {shown(output.field)}; {known}")
    begin, end, kind = fields[output.field]
    field = Field(blocks, max(last for _, last, _ in fields.values()), (begin, end), kind)
    element_type = element_type_of(field.dtype)
    assert element_type is not None
    shape = packed_shape(element_type, field.sizes)
    is_codes = output.field in ("codes", "high")
    return field, replace(tensor, shape=shape, is_opaque=False, sizes=tensor.sizes if is_codes else field.sizes)


def _expression(output: Output, inputs: Sequence[tuple[Expression, Tensor]], casting: str) -> Expression:
    """Return the expression of an output: each tensor converted, then joined."""
    rule, arranged = output.format, [step for step in output.steps if step != ("flip",)]
    if rule is None:
        return _cast(output, _joined(output, [_stepped(output, one, None) for one, _ in inputs]), casting)
    is_said = ("flip",) in output.steps
    if len(inputs) == 1 and not arranged and output.transpose is None and output.dtype is None:
        expression, tensor = inputs[0]
        direct = Moved(expression, _told_formats(output, rule, tensor).of(tensor))
        if direct.signs_flip == is_said:
            return direct
        _check_signs(rule, direct.signs_flip, is_said)
    source, target = rule.names
    # Via plain codes. The first move gets, and rejects, parameters that neither format has.
    known = PARAMETERS.get(str(source), {}), PARAMETERS.get(str(target), {})
    parameters = tuple(one for one in rule.parameters if one[0] in known[0] or one[0] not in known[1])
    first = replace(rule, names=(source, PLAIN), parameters=parameters)
    decoded, bits = [], rule.bits
    for expression, tensor in inputs:
        if source != PLAIN:
            formats = _told_formats(output, first, tensor).of(tensor)
            expression, bits = Moved(expression, formats), formats.plan().ends[0].bits
        decoded.append(expression)
    theirs = tuple(one for one in rule.parameters if one[0] in known[1])

    def made(is_flipped: bool) -> Expression:
        parts = [_stepped(output, one, bits, is_flipped) for one in decoded]
        codes = _cast(output, _joined(output, parts), casting)
        if target == PLAIN:
            return codes
        if source != PLAIN and output.transpose is None:
            codes = _in_order_of(str(target), str(source), codes)
        width = 8 * codes.dtype.itemsize if takes_any_width(target) and bits is None else bits
        return Moved(codes, Formats((PLAIN, target), codes.sizes, width, theirs))

    found = made(False)
    ends = (decoded[0] if source != PLAIN else None, found if target != PLAIN else None)
    flips = sum(isinstance(one, Moved) and one.signs_flip for one in ends) == 1
    _check_signs(rule, flips, is_said)
    return made(True) if flips else found


def _check_signs(rule: Formats, flips: bool, is_said: bool) -> None:
    if flips and not is_said:
        raise FastIndexError(
            f"{' and '.join(map(str, rule.names))} mean codes differently, as two's complement and as the value plus "
            'an offset, so the sign bit flips: say so with "steps": ["flip"]'
        )


def _in_order_of(target: str, source: str, codes: Expression) -> Expression:
    """Transpose codes from the source format's order of dimensions to the target's, as `repack` does."""
    texts = [next((row.text for row in ROWS if row.name == name), None) for name in (source, target)]
    if None in texts:
        return codes
    own, theirs = common_letters(row_letters(str(texts[0])), row_letters(str(texts[1])), (source, target))
    lead = len(codes.sizes) - len(own)
    order = (*range(lead), *(lead + own.index(letter) for letter in theirs))
    return codes if lead < 0 or order == tuple(range(len(order))) else Transposed(codes, order)


def _told_formats(output: Output, rule: Formats, tensor: Tensor) -> Formats:
    """Return a rule, with the type and sizes that GGUF blocks give to their codes."""
    if output.field is None or not str(rule.names[0]).startswith("gguf_"):
        return rule
    given = {"type": tensor.dtype.lower()} if rule.names[0] == "gguf_body" else {}
    parameters = tuple(sorted({**given, **dict(rule.parameters)}.items()))
    return replace(rule, sizes=rule.sizes or tensor.sizes, parameters=parameters)


def _joined(output: Output, parts: Sequence[Expression]) -> Expression:
    first, at = parts[0], output.join
    if at is None or len(parts) == 1:
        return first
    for one in parts:
        others = [sizes[:at] + sizes[at + 1 :] for sizes in (first.sizes, one.sizes)]
        if at >= len(first.sizes) or one.dtype != first.dtype or others[0] != others[1]:
            raise FastIndexError(
                f"join {at} takes tensors of one type whose other dimensions agree; got {first.dtype} "
                f"{list(first.sizes)} and {one.dtype} {list(one.sizes)}"
            )
    return Joined(parts, at)


def _cast(output: Output, made: Expression, casting: str) -> Expression:
    if output.dtype is None:
        return made
    element_type, given = wanted_type(output.dtype), element_type_of(made.dtype)
    if given is None or given == element_type:
        return made
    check_cast(given, element_type, casting)
    return cast(made, element_type, casting)


def _stepped(output: Output, made: Expression, bits: int | None, is_flipped: bool = False) -> Expression:
    """Apply the transpose, then the steps of an output, in order."""
    if output.transpose is not None:
        made = Transposed(made, order_of(output.transpose, len(made.sizes)))
    for step in output.steps:
        if step[0] in ("add", "flip", "multiply"):
            if step != ("flip",) or not is_flipped:
                made = arithmetic(made, step, bits, output.remedy)
            continue
        at = int(step[1])
        size = made.sizes[at] if 0 <= at < len(made.sizes) else -1
        if size < 0 or (step[0] not in ("part", "reverse") and size % 2):
            even = "" if step[0] in ("part", "reverse") else " of an even size"
            raise FastIndexError(
                f"the step {' '.join(step)!r} is for a dimension{even}, the tensor is {list(made.sizes)}"
            )
        if step[0] == "part":
            made = Part(made, at, range(*(_index(word, size, step) for word in step[2:])))
            if not made.sizes[at]:
                raise FastIndexError(
                    f"the step {' '.join(step)!r} leaves nothing of dimension {at}, of {size}; {size} or 1/1 is its end"
                )
        elif step[0] == "reverse":
            made = Reversed(made, at)
        elif step[0] == "swap":
            made = Joined([Part(made, at, range(size // 2, size)), Part(made, at, range(size // 2))], at)
        else:
            made = Alternating(made, at, step[0] == "halves")
    return made


def _index(word: str, size: int, step: Sequence[str]) -> int:
    found = Fraction(word) * (size if "/" in word else 1)
    if found.denominator != 1 or not 0 <= found <= size:
        raise FastIndexError(f"the step {' '.join(step)!r}: {word} is not an index of a dimension of {size}")
    return int(found)


def _number(given: Any, captures: Mapping[str, str], tensors: Mapping[str, Tensor]) -> int:
    """Return an integer as it is, or the size of a tensor's dimension, as in ``"{x}.qweight[1]*8"``."""
    if type(given) is int:
        return given
    found = _REFERENCE.fullmatch(given) if isinstance(given, str) else None
    if found is None or captures_of(found[1]) - set(captures):
        raise FastIndexError(f"{shown(given)} is neither a number nor a dimension, as in '{{x}}.qweight[1]*8'")
    name = filled(found[1], captures)
    if name not in tensors or int(found[2]) >= len(tensors[name].sizes):
        raise FastIndexError(f"{shown(given)}: there is no dimension {found[2]} of a tensor {shown(name)}")
    return tensors[name].sizes[int(found[2])] * int(found[3] or 1)


def _constant(given: Any, dtype: str, captures: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Constant:
    """Return a constant: a list of integers, or the group of each row for a count of rows and groups."""
    kind = wanted_type(dtype).numpy_dtype
    if isinstance(given, Mapping) and set(given) == {"count", "groups"}:
        count, groups = (_number(given[key], captures, tensors) for key in ("count", "groups"))
        if groups < 1 or count % groups:
            raise FastIndexError(f"{count} rows are not {groups} groups of one size")
        return Constant((np.arange(count, dtype=np.int64) // (count // groups)).astype(kind))
    if not isinstance(given, list | tuple) or kind.kind not in "iu":
        raise FastIndexError(
            f'a constant must be a list of integers, dimensions, or {{"count": ..., "groups": ...}}; got {shown(given)}'
        )
    return Constant(np.array([_number(one, captures, tensors) for one in given], kind))


def _compared(
    given: Any, expression: Expression, captures: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> Constant:
    if isinstance(given, Mapping) and set(given) == {"fill"}:
        value = _number(given["fill"], captures, tensors)
        return Constant(np.broadcast_to(np.array(value).astype(expression.dtype), expression.sizes))
    constant = _constant(given, ElementType.from_numpy_dtype(expression.dtype).name, captures, tensors)
    if constant.sizes != expression.sizes:
        raise FastIndexError(f"it is {list(expression.sizes)}, and compared with {list(constant.sizes)}")
    return constant
