"""The rules of a conversion: the grammar of `fastindex.weights.rules`, with keys for the output tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.weights.format_rules import FormatRule, format_rule_of, formats_of
from fastindex.weights.found_formats import FoundFormat
from fastindex.weights.rules import captures_of, check_characters, is_of_one_star, mappings_of, shown

_RULE_KEYS = ("names", "type", "optional", "outputs")
_TEXT_KEYS = ("name", "field", "transpose", "stack", "unstack", "dtype", "remedy")
_OUTPUT_KEYS = (*_TEXT_KEYS, "format", "steps", "join", "constant", "equals")
_DEFAULT_REMEDY = "leave the tensor out of the rules, or convert what it was made of"
#: Steps of a rule, and their arguments.
STEPS = {
    "add": "a number",
    "flip": "",
    "multiply": "a power of two",
    "halves": "a dimension",
    "interleave": "a dimension",
    "swap": "a dimension",
    "part": "a dimension, the first index and the one after the last, such as 0 1/2",
}


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that a rule makes or checks; attributes are the keys of rules, and each step is a tuple of words."""

    name: str | None = None
    field: str | None = None
    transpose: str | None = None
    stack: str | None = None
    unstack: str | None = None
    dtype: str | None = None
    remedy: str = _DEFAULT_REMEDY
    format: FormatRule | None = None
    steps: tuple[tuple[str, ...], ...] = ()
    join: int | None = None
    constant: Any = None
    equals: Any = None


@dataclass(frozen=True, slots=True)
class ConversionRule:
    """A rule for the conversion of tensors.

    Attributes
    ----------
    names : tuple of str
        Patterns; if there are several, each matches one tensor, and all with the same captures.
    type : str, optional
        The file's name of the element type, such as Q4_0.
    is_optional : bool
        Whether the rule may match no tensor.
    outputs : tuple of Output
    """

    names: tuple[str, ...]
    type: str | None
    is_optional: bool
    outputs: tuple[Output, ...]


def conversion_rules_of(given: Any) -> tuple[ConversionRule, ...]:
    """Parse rules given as mappings.

    Raises
    ------
    ArgumentTypeError
        A value of another type than the key takes.
    FastIndexError
        An unknown key, or an invalid value; the message names the rule.
    """
    formats = formats_of(given)
    return tuple(_rule_of(one, formats) for one in mappings_of(given))


def _rule_of(one: Mapping[str, Any], formats: Mapping[str, FoundFormat]) -> ConversionRule:
    unknown = set(one) - {*_RULE_KEYS, *_OUTPUT_KEYS}
    if unknown or "names" not in one:
        raise FastIndexError(
            f"a rule has names, and perhaps {', '.join((*_RULE_KEYS[1:], *_OUTPUT_KEYS))}; got {shown(list(one))}"
        )
    names = [one["names"]] if isinstance(one["names"], str) else one["names"]
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"names of a rule are a text, or a list of texts, got {shown(one['names'])}")
    where = f"the rule for {shown(names[0])}"
    own = {key: value for key, value in one.items() if key in _OUTPUT_KEYS}
    outputs = one.get("outputs", [own])
    if "outputs" in one and own:
        raise FastIndexError(f"{where} has outputs, so {min(own)} belongs to one of these")
    if not isinstance(outputs, list | tuple) or not all(isinstance(output, Mapping) for output in outputs):
        raise ArgumentTypeError(f"{where}: outputs are a list of mappings, got {shown(outputs)}")
    if not isinstance(one.get("type", ""), str) or type(one.get("optional", False)) is not bool:
        raise ArgumentTypeError(f"{where}: type is a text, and optional true or false")
    made = tuple(_output_of(where, names, output, formats) for output in outputs)
    return ConversionRule(tuple(names), one.get("type"), one.get("optional", False), made)


def _output_of(
    where: str, names: Sequence[str], given: Mapping[str, Any], formats: Mapping[str, FoundFormat]
) -> Output:
    unknown = set(given) - set(_OUTPUT_KEYS)
    if unknown:
        raise FastIndexError(f"{where}: an output has {', '.join(_OUTPUT_KEYS)}; got {shown(min(unknown))}")
    texts = {key: given[key] for key in _TEXT_KEYS if key in given}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise ArgumentTypeError(f"{where}: {key} is a text, got {shown(text)}")
        check_characters(key, text)
        if key in ("name", "stack", "unstack") and captures_of(text) - _common(names):
            raise FastIndexError(f"{where}: {key} is {shown(text)}, which has a capture that its names have not")
    if len({"stack", "unstack", "name", "equals"} & set(given)) > 1:
        raise FastIndexError(f"{where}: an output has one of name, stack, unstack and equals; got {shown(list(given))}")
    join = given.get("join")
    if (type(join) is not int or join < 0) if len(names) > 1 else join is not None:
        raise FastIndexError(f"{where}: join is the dimension along which several names are joined, got {shown(join)}")
    if len(names) > 1 and not {"name", "equals"} & set(given):
        raise FastIndexError(f"{where}: what several names become has a name")
    if "unstack" in texts and not is_of_one_star(texts["unstack"]):
        raise FastIndexError(
            f"{where}: unstack is a name with one *, which stands for the number; got {given['unstack']!r}"
        )
    steps = given.get("steps", [])
    if not isinstance(steps, list | tuple) or not all(isinstance(step, str) for step in steps):
        raise ArgumentTypeError(f"{where}: steps are a list of texts, got {shown(steps)}")
    made = format_rule_of(given["format"], formats) if "format" in given else None
    parsed = tuple(_step_of(where, step) for step in steps)
    return Output(
        **texts, format=made, steps=parsed, join=join, **{k: given[k] for k in ("constant", "equals") if k in given}
    )


def _common(names: Sequence[str]) -> set[str]:
    """Return the captures that all patterns have."""
    found = captures_of(names[0])
    for name in names[1:]:
        found &= captures_of(name)
    return found


def _step_of(where: str, text: str) -> tuple[str, ...]:
    words = tuple(text.split())
    kind = words[0] if words else ""
    wanted = {"flip": 1, "part": 4}.get(kind, 2)
    if kind not in STEPS or len(words) != wanted:
        known = "; ".join(f"{name}{f' and {what}' if what else ''}" for name, what in STEPS.items())
        raise FastIndexError(f"{where}: the step {shown(text)} is none of: {known}")
    for i, word in enumerate(words[1:]):
        number = re.fullmatch(r"-?\d{1,18}(/\d{1,18})?", word)
        if number is None or (number[1] and (kind == "add" or (kind != "multiply" and i == 0))) or word.endswith("/0"):
            raise FastIndexError(f"{where}: the step {shown(text)} has {shown(word)} in place of a number")
    if kind == "multiply" and math.frexp(abs(float(Fraction(words[1]))))[0] != 0.5:
        raise FastIndexError(f"{where}: {shown(text)} is not exact; a power of two, such as -8 or 1/16, is")
    return words
