"""The grammar of rules for the tensors of a checkpoint, matched by name: for packing, and for conversion."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import translate
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.patterns.grammar import parse_pattern
from fastindex.patterns.known_names import known_name
from fastindex.weights.found_formats import FoundFormat, found_format_of, shown
from fastindex.weights.repack_arguments import checked_bits, checked_parameters, checked_sizes
from fastindex.weights.repack_jobs import Formats
from fastindex.weights.repack_plans import Format
from fastindex.weights.safetensors_files import Tensor

_KEYS = ("names", "layout", "dtype", "transpose", "stack", "format")
_RULE_KEYS = ("names", "type", "optional", "needs", "outputs")
_TEXT_KEYS = ("name", "field", "transpose", "stack", "unstack", "dtype", "remedy")
_OUTPUT_KEYS = (*_TEXT_KEYS, "format", "steps", "join", "constant", "equals")
_FORMAT_KEYS = ("from", "to", "shape", "bits")
_DEFAULT_REMEDY = "leave the tensor out of the rules, or convert what it was made of"
#: Steps of a rule, and their arguments.
STEPS = {
    "add": "a number",
    "flip": "",
    "multiply": "a power of two",
    "halves": "a dimension",
    "interleave": "a dimension",
    "swap": "a dimension",
    "reverse": "a dimension",
    "part": "a dimension, the first index and the one after the last, such as 0 1/2",
}
#: Most digits of the number in the name of a stacked tensor.
_MOST_DIGITS = 18
_TOKEN = re.compile(r"\{([A-Za-z_]\w*)\}|(\*)|(\?)|(\[!?\]?[^]]*\])")
_CAPTURE = re.compile(r"\{([A-Za-z_]\w*)\}")
#: The type and sizes of a tensor: ``n/8`` is an eighth of n, ``k%g`` a multiple of g.
_NEED = re.compile(r"([A-Z]\w* )?[a-z](/[1-9]\d?)?(%[a-z])?( [a-z](/[1-9]\d?)?(%[a-z])?)*", re.ASCII)
#: The longest name that a pattern with several captures matches: backtracking takes quadratic time, or worse.
_MOST_CAPTURED = 1000
#: The key, among captures, of the text that the first ``*`` matches.
STAR = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for the tensors whose names match a pattern.

    Attributes
    ----------
    names : str
        A shell pattern: ``*``, ``?``, ``[...]``; and captures such as ``{i}``, which `stack` may use.
    layout : str, optional
        The text of a layout, braces included, or "tpu" for the one that the TPU compiler chooses.
    dtype : str, optional
        The element type.
    transpose : str, optional
        The dimensions and their new order, as for `rearrange`: ``"out in -> in out"``.
    stack : str, optional
        The name of the array into which all these tensors are stacked, along a new first dimension, in the order of the
        numbers that the one ``*`` of `names` matches.
    format : Formats, optional
        The source and the target format, instead of `layout`, `dtype` and `transpose`.
    """

    names: str
    layout: str | None = None
    dtype: str | None = None
    transpose: str | None = None
    stack: str | None = None
    format: Formats | None = None

    def matches(self, name: str) -> bool:
        return captured(self.names, name) is not None


def rules_of(given: Any) -> tuple[Rule, ...]:
    """Parse rules given as mappings: a list of them, or ``{"rules": [...]}``, perhaps with "formats", as in files.

    Raises
    ------
    ArgumentTypeError
        A value is no text.
    FastIndexError
        An unknown key, or a rule without names.

    Examples
    --------
    >>> rules_of({"rules": [{"names": "*"}]}) == rules_of([{"names": "*"}])
    True
    """
    found, formats = [], formats_of(given)
    for one in mappings_of(given):
        unknown = set(one) - set(_KEYS)
        if unknown or "names" not in one:
            raise FastIndexError(f"a rule has names, and perhaps {', '.join(_KEYS[1:])}; got {shown(list(one))}")
        texts = {key: text for key, text in one.items() if key != "format"}
        if not all(isinstance(text, str) for text in texts.values()):
            raise ArgumentTypeError(f"all of a rule are texts, its format aside; got {shown(dict(one))}")
        for key, text in texts.items():
            check_characters(key, text)
        if "format" in one and set(texts) - {"names", "stack"}:
            raise FastIndexError(
                f"the rule for {shown(one['names'])} has a format, so it has no {min(set(texts) - {'names', 'stack'})}"
            )
        found.append(Rule(**texts, format=format_rule_of(one["format"], formats) if "format" in one else None))
    return tuple(found)


def mappings_of(given: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings of a list of rules, or of ``{"rules": [...]}``, which may have "formats" too.

    Raises
    ------
    ArgumentTypeError
    """
    if isinstance(given, Mapping) and {"rules"} <= set(given) <= {"rules", "formats"}:
        given = given["rules"]
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise ArgumentTypeError(f'rules must be a list of mappings, or {{"rules": [...]}}, got {shown(given)}')
    for one in given:
        if not isinstance(one, Mapping):
            raise ArgumentTypeError(f"a rule must be a mapping with names and other keys, got {shown(one)}")
        yield one


@contextmanager
def errors_about(what: str) -> Iterator[None]:
    """Prefix errors with the tensor that they concern."""
    try:
        yield
    except FastIndexError as error:
        # Classes derived from these have other arguments.
        kinds = (kind for kind in (ArgumentTypeError, UnsupportedError) if isinstance(error, kind))
        raise next(kinds, FastIndexError)(f"{what}: {error}") from error


def check_characters(key: str, text: str) -> None:
    """Require a text to be valid Unicode, so that it can be written to a file.

    Raises
    ------
    FastIndexError
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FastIndexError(
            f"{key} of a rule has half a surrogate pair, after {text[max(error.start - 40, 0) : error.start]!r}"
        ) from None


def stacks_of(names: str, stack: str, tensors: Sequence[Tensor]) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Yield the name of each stack, and its tensors in the order of their numbers, which must be 0, 1, 2 ...

    Raises
    ------
    FastIndexError
        Other numbers, tensors that differ in type or size, or names and a stack that do not fit.
    """
    if not is_of_one_star(names):
        raise FastIndexError(f"stack needs names with one *, which stands for a number; got {shown(names)}")
    if captures_of(stack) - captures_of(names):
        raise FastIndexError(f"the stack {shown(stack)} has a capture that {shown(names)} lacks")
    found: dict[str, dict[int, Tensor]] = {}
    for tensor in tensors:
        captures = captured(names, tensor.name)
        assert captures is not None
        digits = captures[STAR]
        # Python refuses to parse integers of thousands of digits.
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
        if not is_number or str(int(digits)) != digits:
            raise FastIndexError(f"{shown(tensor.name)} is not to be stacked: {shown(digits)} is not a number")
        numbered = found.setdefault(filled(stack, captures), {})
        if numbered.setdefault(int(digits), tensor) is not tensor:
            raise FastIndexError(
                f"{shown(tensor.name)} and {shown(numbered[int(digits)].name)} have one place in a stack"
            )
    for name, numbered in found.items():
        yield name, _in_order(name, numbered)


def _in_order(stack: str, numbered: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
    missing = next(number for number in range(len(numbered) + 1) if number not in numbered)
    if missing < len(numbered):
        raise FastIndexError(
            f"{shown(stack)} stacks {len(numbered)} tensors by their numbers, which have to be 0, 1, 2 without "
            f"gaps: there is {max(numbered)}, but not {missing}"
        )
    tensors = tuple(numbered[number] for number in range(len(numbered)))
    odd = next((one for one in tensors if (one.shape, one.dtype) != (tensors[0].shape, tensors[0].dtype)), None)
    if odd is not None:
        raise FastIndexError(
            f"{shown(stack)} stacks tensors of one type and size: {shown(tensors[0].name)} is "
            f"{tensors[0].dtype} {tensors[0].shape.cut_text()}, {shown(odd.name)} is {odd.dtype} "
            f"{odd.shape.cut_text()}"
        )
    return tensors


def order_of(pattern: str | None, rank: int) -> tuple[int, ...]:
    """Return the source dimension of each dimension of the result."""
    if pattern is None:
        return tuple(range(rank))
    parse_pattern(pattern)
    left, right = (side.split() for side in pattern.split("->"))
    if sorted(left) != sorted(right) or len(set(left)) != len(left) or not all(one.isidentifier() for one in left):
        raise FastIndexError(f"transpose only orders dimensions by their names, as 'a b -> b a'; got {shown(pattern)}")
    if len(left) != rank:
        raise FastIndexError(f"transpose {shown(pattern)} names {len(left)} dimensions, the tensor has {rank}")
    return tuple(left.index(one) for one in right)


# Conversions: the same grammar, with keys for the output tensors


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
    format: Formats | None = None
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
    needs : tuple of (str, str)
        Names, with captures, of tensors that must exist beside each one that the rule matches, and their sizes or "".
    outputs : tuple of Output
    """

    names: tuple[str, ...]
    type: str | None
    is_optional: bool
    needs: tuple[tuple[str, str], ...]
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
        raise ArgumentTypeError(f"names of a rule must be text, or a list of texts, got {shown(one['names'])}")
    where = f"the rule for {shown(names[0])}"
    own = {key: value for key, value in one.items() if key in _OUTPUT_KEYS}
    outputs = one.get("outputs", [own])
    if "outputs" in one and own:
        raise FastIndexError(f"{where} has outputs, so {min(own)} belongs to one of these")
    if not isinstance(outputs, list | tuple) or not all(isinstance(output, Mapping) for output in outputs):
        raise ArgumentTypeError(f"{where}: outputs must be a list of mappings, got {shown(outputs)}")
    if not isinstance(one.get("type", ""), str) or type(one.get("optional", False)) is not bool:
        raise ArgumentTypeError(f"{where}: type must be text, and optional must be true or false")
    needs = one.get("needs", {})
    if isinstance(needs, list | tuple) and all(isinstance(name, str) for name in needs):
        needs = dict.fromkeys(needs, "")
    if not isinstance(needs, Mapping) or not all(isinstance(text, str) for text in (*needs, *needs.values())):
        raise ArgumentTypeError(f"{where}: needs must be names, or names with their sizes, got {shown(needs)}")
    for name, text in needs.items():
        if captures_of(name) - _common(names):
            raise FastIndexError(f"{where}: it needs {shown(name)}, which has a capture that its names lack")
        if text and not _NEED.fullmatch(text):
            raise FastIndexError(f"{where}: sizes are letters, as in 'I32 k%g n/8'; got {shown(text)}")
    sizes = " ".join(needs.values())
    for letter in re.findall("%([a-z])", sizes):
        if not re.search(f"(?<!%){letter}", sizes):
            raise FastIndexError(f"{where}: needs have a multiple of {letter}, and no size {letter}: {shown(sizes)}")
    made = tuple(_output_of(where, names, output, formats) for output in outputs)
    return ConversionRule(tuple(names), one.get("type"), one.get("optional", False), tuple(needs.items()), made)


def _output_of(
    where: str, names: Sequence[str], given: Mapping[str, Any], formats: Mapping[str, FoundFormat]
) -> Output:
    unknown = set(given) - set(_OUTPUT_KEYS)
    if unknown:
        raise FastIndexError(f"{where}: an output has {', '.join(_OUTPUT_KEYS)}; got {shown(min(unknown))}")
    texts = {key: given[key] for key in _TEXT_KEYS if key in given}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise ArgumentTypeError(f"{where}: {key} must be text, got {shown(text)}")
        check_characters(key, text)
        if key in ("name", "stack", "unstack") and captures_of(text) - _common(names):
            raise FastIndexError(f"{where}: {key} is {shown(text)}, which has a capture that its names lack")
    if len({"stack", "unstack", "name", "equals"} & set(given)) > 1:
        raise FastIndexError(f"{where}: an output has one of name, stack, unstack and equals; got {shown(list(given))}")
    join = given.get("join")
    if (type(join) is not int or join < 0) if len(names) > 1 else join is not None:
        raise FastIndexError(f"{where}: join must be the dimension along which names are joined, got {shown(join)}")
    if len(names) > 1 and not {"name", "equals"} & set(given):
        raise FastIndexError(f"{where}: several joined names need a name for the result")
    if "unstack" in texts and not is_of_one_star(texts["unstack"]):
        raise FastIndexError(
            f"{where}: unstack is a name with one *, which stands for the number; got {given['unstack']!r}"
        )
    steps = given.get("steps", [])
    if not isinstance(steps, list | tuple) or not all(isinstance(step, str) for step in steps):
        raise ArgumentTypeError(f"{where}: steps must be a list of texts, got {shown(steps)}")
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
        raise FastIndexError(f"{where}: the step {shown(text)} is not one of: {known}")
    for i, word in enumerate(words[1:]):
        number = re.fullmatch(r"-?\d{1,18}(/\d{1,18})?", word)
        if number is None or (number[1] and (kind == "add" or (kind != "multiply" and i == 0))) or word.endswith("/0"):
            raise FastIndexError(f"{where}: the step {shown(text)} has {shown(word)} in place of a number")
    if kind == "multiply" and math.frexp(abs(float(Fraction(words[1]))))[0] != 0.5:
        raise FastIndexError(f"{where}: {shown(text)} is not exact; a power of two, such as -8 or 1/16, is")
    return words


# Names: shell patterns, with captures such as {i}


def captured(pattern: str, name: str) -> dict[str, str] | None:
    """Return the text that each capture, and the first ``*``, of a pattern matches in a name; None without a match.

    Examples
    --------
    >>> captured("layers.{i}.experts.*.w", "layers.3.experts.12.w")
    {'i': '3', '*': '12'}
    >>> captured("*.[qk]", "a.v") is None
    True
    """
    count = len(_CAPTURE.findall(pattern)) + pattern.count("*")
    if count > 1 and not captures_of(pattern):
        return None if re.fullmatch(translate(pattern), name) is None else {}
    if count > 1 and len(name) > _MOST_CAPTURED:
        return None
    found = _compiled(pattern).fullmatch(name)
    return None if found is None else {STAR if key == "_star" else key: text for key, text in found.groupdict().items()}


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    made, at, known = "", 0, set[str]()
    for token in _TOKEN.finditer(pattern):
        made += re.escape(pattern[at : token.start()])
        at = token.end()
        capture, star, one, _ = token.groups()
        if capture or (star and "_star" not in known):
            key = capture or "_star"
            made += f"(?P={key})" if key in known else f"(?P<{key}>{'.+' if capture else '.*'})"
            known.add(key)
        else:
            made += (
                ".*"
                if star
                else "."
                if one
                else f"(?:{translate(token.group())})".replace(r"\Z", "").replace(r"\z", "")
            )
    return re.compile(made + re.escape(pattern[at:]), re.DOTALL)


def is_of_one_star(pattern: str) -> bool:
    """Whether a pattern has one ``*``, and no other wildcard."""
    return [token.group() for token in _TOKEN.finditer(pattern) if not token[1]] == ["*"]


def captures_of(text: str) -> set[str]:
    """Return the names of the captures in a text.

    Examples
    --------
    >>> sorted(captures_of("layers.{i}.{x}.weight"))
    ['i', 'x']
    """
    return set(_CAPTURE.findall(text))


def filled(text: str, captures: Mapping[str, str]) -> str:
    """Return a text with its captures replaced by their values.

    Examples
    --------
    >>> filled("model.{i}.w", {"i": "3"})
    'model.3.w'
    """
    return _CAPTURE.sub(lambda token: captures[token[1]], text)


def formats_of(given: Any) -> dict[str, FoundFormat]:
    """Return the discovered formats that rules bring along, by their names: ``{"formats": {...}, "rules": [...]}``.

    Raises
    ------
    ArgumentTypeError, FastIndexError
        No mapping of names to objects that `Discovery.to_json` makes.
    """
    formats = given.get("formats", {}) if isinstance(given, Mapping) else {}
    if not isinstance(formats, Mapping):
        raise ArgumentTypeError(f"formats must be a mapping of names to what was discovered, got {str(formats)[:200]}")
    return {name: found_format_of(one, name) for name, one in formats.items()}


def format_rule_of(given: Any, formats: Mapping[str, FoundFormat]) -> Formats:
    """Parse the ``format`` of a rule.

    Parameters
    ----------
    given : object
    formats : mapping
        The discovered formats by their names.

    Raises
    ------
    ArgumentTypeError
        Not a mapping, or sizes, bits or parameters of another type.
    FastIndexError
        A missing or unknown name of a format.
    """
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        keys = ", ".join(_FORMAT_KEYS)
        raise ArgumentTypeError(f"the format of a rule must be a mapping with {keys}, got {str(given)[:200]}")
    if not {"from", "to"} <= set(given):
        raise FastIndexError(f"the format of a rule says from what to what; got {', '.join(given)[:200]}")
    source, target = (_format_of(given[key], formats) for key in ("from", "to"))
    sizes = () if given.get("shape") is None else checked_sizes(given["shape"])
    parameters = checked_parameters({key: value for key, value in given.items() if key not in _FORMAT_KEYS})
    return Formats((source, target), sizes, checked_bits(given.get("bits")), parameters)


def _format_of(name: Any, formats: Mapping[str, FoundFormat]) -> Format:
    if isinstance(name, str) and name in formats:
        return formats[name]
    return known_name(name)
