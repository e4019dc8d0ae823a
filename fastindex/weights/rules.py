"""Rules for the tensors of a checkpoint, matched by name, and the arrays that they produce."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Any

from fastindex.arrays.fills import check_cast, wanted_type
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.patterns.grammar import parse_pattern
from fastindex.show.tpu_layouts import TPUS, tpu_layout
from fastindex.weights.format_rules import FormatRule, format_rule_of, formats_of, shape_of
from fastindex.weights.repack_jobs import Formats
from fastindex.weights.safetensors_files import packed_shape
from fastindex.weights.tensors import Tensor

_KEYS = ("names", "layout", "dtype", "transpose", "stack", "format")
#: The most characters of a name, or another value, in a message.
_MOST_SHOWN = 200
#: Most digits of the number in the name of a stacked tensor.
_MOST_DIGITS = 18
_TOKEN = re.compile(r"\{([A-Za-z_]\w*)\}|(\*)|(\?)|(\[!?\]?[^]]*\])")
_CAPTURE = re.compile(r"\{([A-Za-z_]\w*)\}")
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
    format : FormatRule, optional
        The source and the target format, instead of `layout`, `dtype` and `transpose`.
    """

    names: str
    layout: str | None = None
    dtype: str | None = None
    transpose: str | None = None
    stack: str | None = None
    format: FormatRule | None = None

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
        raise ArgumentTypeError(f'rules are a list of mappings, or {{"rules": [...]}}, got {shown(given)}')
    for one in given:
        if not isinstance(one, Mapping):
            raise ArgumentTypeError(f"a rule is a mapping with names and other keys, got {shown(one)}")
        yield one


def shown(value: object) -> str:
    """Return the text of a value in messages, truncated if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


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


@dataclass(frozen=True, slots=True)
class Array:
    """An array to write.

    Attributes
    ----------
    name : str
    shape : Shape
        As written.
    tensors : tuple of Tensor
        Its sources; several if they are stacked.
    order : tuple of int
        For each dimension, the stacking one left out, the dimension of the tensors that it is.
    is_stacked : bool
    formats : Formats, optional
        The named formats that each tensor is moved between; the result is bytes, or the codes of a plain array.
    """

    name: str
    shape: Shape
    tensors: tuple[Tensor, ...]
    order: tuple[int, ...]
    is_stacked: bool
    formats: Formats | None = None

    def identity(self) -> list[Any]:
        """Return the properties that must be unchanged for an array written earlier to be reused."""
        formats = None if self.formats is None else repr(self.formats)
        return [str(self.shape), list(self.order), formats, [tensor.told() for tensor in self.tensors]]


def arrays_of(tensors: Mapping[str, Tensor], rules: Sequence[Rule], tpu: str | None, casting: str) -> list[Array]:
    """Return the arrays that tensors become by the first rule that matches their name; others stay as they are.

    Raises
    ------
    FastIndexError
        A rule matches no tensor, or its layout, order or stack does not fit them; or two arrays have one name.
    ArgumentTypeError
        `casting` does not allow an element type.
    """
    if tpu is not None:
        # The name of a topology, such as v5p:2x2x1, begins with that of its generation.
        tpu = tpu.partition(":")[0]
        if tpu not in TPUS:
            raise FastIndexError(f"the default layouts of {', '.join(TPUS)} are known, not those of {tpu!r}")
    followed: dict[Rule, list[Tensor]] = {rule: [] for rule in rules}
    found: dict[str, Array] = {}

    def add(array: Array) -> None:
        if array.name in found:
            raise FastIndexError(f"two arrays would be called {shown(array.name)}")
        found[array.name] = array

    plain = Rule("*")
    for name, tensor in tensors.items():
        rule = next((one for one in rules if one.matches(name)), plain)
        if rule is not plain:
            followed[rule].append(tensor)
        if rule.stack is None:
            add(_array_by(rule, name, (tensor,), tpu, casting))
    for rule, those in followed.items():
        if not those:
            raise FastIndexError(
                f"no tensor follows the rule for {shown(rule.names)}: none has such a name, or another rule is first"
            )
        if rule.stack is not None:
            for stack, ordered in stacks_of(rule.names, rule.stack, those):
                add(_array_by(rule, stack, ordered, tpu, casting))
    return list(found.values())


def stacks_of(names: str, stack: str, tensors: Sequence[Tensor]) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Yield the name of each stack, and its tensors in the order of their numbers, which must be 0, 1, 2 ...

    Raises
    ------
    FastIndexError
        Other numbers, tensors that differ in type or size, or names and a stack that do not fit.
    """
    if not is_of_one_star(names):
        raise FastIndexError(f"a stack is of names with one *, which stands for a number; got {shown(names)}")
    if captures_of(stack) - captures_of(names):
        raise FastIndexError(f"the stack {shown(stack)} has a capture that {shown(names)} has not")
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


def _array_by(rule: Rule, name: str, tensors: tuple[Tensor, ...], tpu: str | None, casting: str) -> Array:
    with errors_about(f"{shown(name)}, by the rule for {shown(rule.names)}"):
        return _array(name, tensors, rule, tpu, casting)


def _array(name: str, tensors: tuple[Tensor, ...], rule: Rule, tpu: str | None, casting: str) -> Array:
    first, is_stacked = tensors[0], rule.stack is not None
    if rule.format is not None:
        formats = rule.format.formats_of(first)
        shape = shape_of(formats.plan().ends[1])
        if is_stacked:
            shape = Shape(shape.element_type, (len(tensors), *shape.dimensions))
        return Array(name, shape, tensors, (), is_stacked, formats)
    if first.is_opaque:
        _check_copied(first, rule)
    shape = first.shape
    element_type = shape.element_type if rule.dtype is None else wanted_type(rule.dtype)
    check_cast(shape.element_type, element_type, casting)
    order = order_of(rule.transpose, shape.rank)
    dimensions = tuple(shape.dimensions[d] for d in order)
    if is_stacked:
        dimensions = (len(tensors), *dimensions)
    layout: Layout | None = None
    if rule.layout == "tpu" or (rule.layout is None and tpu is not None and not first.is_opaque):
        layout = tpu_layout(element_type, dimensions, tpu)
    elif rule.layout is not None:
        layout = Shape.parse(f"{element_type}[{','.join(map(str, dimensions))}]{rule.layout}").layout
    elif rule.dtype is None:
        layout = packed_shape(element_type, dimensions).layout if shape.layout.element_size_in_bits else None
    return Array(name, Shape(element_type, dimensions, layout), tensors, order, is_stacked)


def _check_copied(tensor: Tensor, rule: Rule) -> None:
    """Require the rule of a tensor whose elements cannot be moved individually to copy its bytes.

    Raises
    ------
    UnsupportedError
    """
    for key in ("layout", "dtype", "transpose"):
        if getattr(rule, key) is not None:
            raise UnsupportedError(
                f"{shown(tensor.name)} is {tensor.dtype}, whose elements are not moved one by one: its bytes are "
                f"copied as they are; the rule for {shown(rule.names)} has a {key}"
            )


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
