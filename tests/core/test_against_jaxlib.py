"""The text and the protos of shapes against jaxlib: same canonical text, same bytes, same accept or reject.

Where fastindex means to differ there is a rule below, with inputs that show the difference.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

import fastindex as fi
from fastindex.core.element_types import BY_NUMBER
from tests.cases.shape_texts import REAL_TEXTS, TextMaker
from tests.cases.strategies import OTHER_SEEDS, seeds
from tests.oracles.jaxlib_process import Answer, JaxlibProcess


@pytest.fixture(scope="module")
def jaxlib() -> Iterator[JaxlibProcess]:
    pytest.importorskip("jaxlib")
    with JaxlibProcess() as process:
        yield process


@dataclass(frozen=True)
class Outcome:
    """What became of a text: jaxlib's canonical text or None, and fastindex's shape or error."""

    text: str
    theirs: str | None
    aborted: bool
    ours: fi.Shape | None
    error: fi.FastIndexError | None

    @property
    def agree(self) -> bool:
        return self.theirs == (None if self.ours is None else str(self.ours))


def outcome(jaxlib: JaxlibProcess, text: str) -> Outcome:
    # A bare array is not validated by XLA, one in a tuple is; the line break ends a comment.
    answer = jaxlib.parse(f"({text}\n)")
    theirs = None if answer.text is None else answer.text[1:-1]
    # "f32[2], f32[3]" is no shape, though it is one in parentheses.
    if theirs is not None and jaxlib.parse(text).text is None:
        theirs = None
    try:
        return Outcome(text, theirs, answer.aborted, fi.Shape.parse(text), None)
    except fi.FastIndexError as error:
        return Outcome(text, theirs, answer.aborted, None, error)


@dataclass(frozen=True)
class Difference:
    """A way in which fastindex means to differ."""

    applies: Callable[[Outcome], bool]
    examples: tuple[str, ...]
    #: The version of jaxlib that first differed so.
    since: tuple[int, int] = (0, 0)


def refused(rule: str) -> Callable[[Outcome], bool]:
    """XLA accepts; fastindex refuses with `rule`."""
    return lambda seen: seen.theirs is not None and re.search(rule, str(seen.error)) is not None


def broken_attribute(seen: Outcome) -> bool:
    """XLA accepts; fastindex finds the attributes of a layout malformed."""
    if seen.theirs is None or not isinstance(seen.error, fi.ParseError):
        return False
    if not re.match("expected|the attribute", seen.error.rule):
        return False
    before = seen.text[: seen.error.position]
    return ":" in before[before.rfind("{") :] and "}" not in before[before.rfind("{") :]


def without_levels(text: str) -> str:
    return re.sub(r"D\([^)]*\)", "", text).replace(":}", "}")


def sparse_levels_kept(seen: Outcome) -> bool:
    if seen.ours is None or seen.theirs is None:
        return False
    return str(seen.ours) != seen.theirs == without_levels(str(seen.ours))


def installed() -> tuple[int, int]:
    major, minor, *_ = importlib.metadata.version("jaxlib").split(".")
    return int(major), int(minor)


def without_orders(text: str) -> str:
    return re.sub(r"\{[\d,]+(?=:[^}]*S\()", "{", text)


def default_order(seen: Outcome) -> bool:
    """XLA leaves the order of an array with a memory space open, from jaxlib 0.12 on; fastindex says the default."""
    if seen.ours is None:
        return False
    if seen.theirs is None:
        return installed() < (0, 12) and re.search(r"\{\s*(/\*.*?\*/\s*)*:", seen.text) is not None
    return str(seen.ours) != seen.theirs == without_orders(seen.theirs) == without_orders(str(seen.ours))


def unchecked(seen: Outcome) -> bool:
    """XLA does not check a layout with a memory space and without an order; fastindex does."""
    return seen.theirs is not None and seen.error is not None and re.search(r"\{:[^}]*S\(", seen.theirs) is not None


DIFFERENCES = {
    "a memory space alone leaves the default order": Difference(
        default_order, ("f32[100]{:S(1)}", "f32[2,3]{:T(2,128)S(-3)}", "(f32[2]{0}, bf16[<=2,3]{ : S(5)})"), (0, 12)
    ),
    "layouts without an order are checked": Difference(unchecked, ("f32[]{:T(0)S(1)}", "f32[2,3]{:T()S(1)}"), (0, 12)),
    "attributes are read strictly": Difference(
        broken_attribute,
        ("f32[2]{0:T(2}", "f32[2]{0:S(1}", "f32[2]{0:S}", "f32[2]{0:#}", "f32[2]{0:T(2S(1)}", "f32[2]{0:SC}"),
    ),
    "memory spaces fit int8": Difference(
        refused("memory_space must be"), ("f32[2]{0:S(128)}", "f32[2]{0:S(256)}", "f32[2]{0:S(-129)}")
    ),
    "* is not the last entry of a tile": Difference(
        refused("last entry of a tile"), ("f32[2]{0:T(*)}", "f32[2,3]{1,0:T(2,*)(2)}")
    ),
    "integers fit int64": Difference(
        refused("must fit int64"),
        (
            "f32[<=9223372036854775808]",
            "f32[2,3]{1,0:T(9223372036854775808,2)}",
            "f32[2]{0:M(18446744073709551615)}",
        ),
    ),
    "the integer types of sparse arrays are read where XLA reads them in the text of a module": Difference(
        lambda seen: seen.theirs is None and re.search(r"[#*]\([su]\d+\)", str(seen.ours)) is not None,
        ("f32[2,3]{1,0:#(u32)}", "f32[2]{0:T(2)*(u16)E(32)}"),
    ),
    "sparse levels are kept": Difference(sparse_levels_kept, ("f32[2,3]{1,0:D(D,C+~)}", "f32[2]{0:D(S,H~)T(2)}")),
    "padding has a text": Difference(
        lambda seen: seen.theirs is None and re.search(r"PAD\(|PV\(", str(seen.ours)) is not None,
        ("f32[2]{0:PAD(3)}", "f32[2]{0:PV(lowest)T(4)}", "(f32[2,3]{1,0:PAD(2,4)PV(one)})"),
    ),
}

ABORTS = ("f32[2]{0:T(-2)}", "f32[2]{0:L(0)}", "token[3]", "opaque[]{0}", "(token[]{:})")


def texts() -> Iterator[str]:
    for _ in range(3):
        yield from REAL_TEXTS
    for seed in seeds(500):
        maker = TextMaker(seed)
        yield from (maker.valid(), maker.odd(), maker.damaged())


@pytest.mark.in_turn(seconds=2)
def test_texts_are_judged_and_printed_as_xla_does(jaxlib: JaxlibProcess) -> None:
    kinds: Counter[str] = Counter()
    for text in texts():
        seen = outcome(jaxlib, text)
        if seen.agree:
            kinds["rejected" if seen.theirs is None else "accepted"] += 1
            continue
        reasons = [name for name, difference in DIFFERENCES.items() if difference.applies(seen)]
        assert reasons, seen
        kinds.update(reasons)
    assert kinds["accepted"] > 700 or OTHER_SEEDS, kinds
    assert kinds["rejected"] > 500 or OTHER_SEEDS, kinds


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_is_real(jaxlib: JaxlibProcess, name: str) -> None:
    if installed() < DIFFERENCES[name].since:
        pytest.skip("this jaxlib does not differ so")
    for text in DIFFERENCES[name].examples:
        seen = outcome(jaxlib, text)
        assert not seen.agree, seen
        assert [key for key, difference in DIFFERENCES.items() if difference.applies(seen)] == [name], seen


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("text", ABORTS)
def test_what_aborts_jaxlib_is_an_error_here(jaxlib: JaxlibProcess, text: str) -> None:
    assert jaxlib.parse(text).aborted
    with pytest.raises(fi.ParseError):
        fi.Shape.parse(text)


@pytest.mark.in_turn(seconds=0.8)
def test_protos_are_the_same_bytes_both_ways(jaxlib: JaxlibProcess) -> None:
    compared = 0
    for text in [*REAL_TEXTS, *(TextMaker(seed).valid() for seed in seeds(600))]:
        answer = jaxlib.parse(text)
        assert answer.text is not None, text
        assert answer.proto is not None
        shape = fi.Shape.parse(text)
        assert shape.to_proto() == answer.proto, text
        assert fi.Shape.from_proto(answer.proto) == shape, text
        if "*" not in answer.text and "{" in answer.text:
            assert jaxlib.load(shape.to_proto()).text == answer.text, text
        compared += 1
    assert compared >= 600


def field(number: int, value: int | bytes) -> bytes:
    """Write a small field, by hand."""
    if isinstance(value, int):
        return bytes((number << 3, value)) if number < 16 else bytes((number << 3 & 0x7F | 0x80, number >> 4, value))
    head = (number << 3 | 2,) if number < 16 else ((number << 3 | 2) & 0x7F | 0x80, number >> 4)
    return bytes((*head, len(value))) + value


F32 = field(2, 11)
SIZES = field(3, b"\x02\x03")
ORDER = field(1, b"\x01\x00")
PROTOS = {
    "no layout": F32 + SIZES,
    "empty layout": F32 + SIZES + field(5, b""),
    "layout without alignment": F32 + SIZES + field(5, ORDER),
    "sizes one by one": F32 + field(3, 2) + field(3, 3) + field(5, ORDER),
    "layout in two parts": F32 + SIZES + field(5, field(1, b"\x01")) + field(5, field(1, b"\x00")),
    "fields backwards": field(5, ORDER) + SIZES + F32,
    "element type twice": field(2, 12) + F32 + SIZES + field(5, ORDER),
    "unknown field": F32 + SIZES + field(5, ORDER) + field(15, b"abc") + field(9, 1),
    "unknown element type": field(2, 77),
    "no element type": SIZES,
    "order too short": F32 + SIZES + field(5, field(1, b"\x00")),
    "order twice the same": F32 + SIZES + field(5, field(1, b"\x00\x00")),
    "order out of bounds": F32 + SIZES + field(5, field(1, b"\x02\x00")),
    "dynamic": F32 + SIZES + field(5, ORDER) + field(6, b"\x01\x00"),
    "too few dynamic": F32 + SIZES + field(5, ORDER) + field(6, b"\x01"),
    "tile": F32 + SIZES + field(5, ORDER + field(6, field(1, b"\x02\x02"))),
    "empty tile": F32 + SIZES + field(5, ORDER + field(6, b"")),
    "tile of 0": F32 + SIZES + field(5, ORDER + field(6, field(1, b"\x00"))),
    "tile of -1": F32 + SIZES + field(5, ORDER + field(6, field(1, b"\xff" * 9 + b"\x01"))),
    "alignment 0": F32 + SIZES + field(5, ORDER + field(16, 0)),
    "alignment 8": F32 + SIZES + field(5, ORDER + field(16, 8)),
    "negative alignment": F32 + SIZES + field(5, ORDER + field(16, b"")[:-1] + b"\x01"),
    "physical shape": F32 + SIZES + field(5, ORDER + field(10, F32)),
    "split": F32 + SIZES + field(5, ORDER + field(17, field(2, b"\x01"))),
    "split too far": F32 + SIZES + field(5, ORDER + field(17, field(2, b"\x02"))),
    "token": field(2, 17),
    "token with layout": field(2, 17) + field(5, ORDER),
    "tuple": field(2, 13) + field(4, F32) + field(4, field(2, 17)),
    "tuple with layout": field(2, 13) + field(4, F32) + field(5, b""),
    "buffer": field(2, 34) + field(4, F32),
    "truncated": F32 + b"\x1a\x05\x02",
    "truncated number": F32 + b"\x18\x80",
    "empty": b"",
}


@pytest.mark.parametrize("name", PROTOS)
def test_protos_are_judged_as_xla_does(jaxlib: JaxlibProcess, name: str) -> None:
    answer: Answer = jaxlib.load(PROTOS[name])
    try:
        ours: fi.Shape | None = fi.Shape.from_proto(PROTOS[name])
    except fi.FastIndexError:
        ours = None
    assert not answer.aborted
    assert (ours is None) == (answer.text is None), (ours, answer)
    if ours is not None and answer.text is not None and "{" in answer.text:
        assert str(ours) == answer.text


def test_element_types_are_the_ones_xla_has(jaxlib: JaxlibProcess) -> None:
    theirs = {}
    for number in range(64):
        answer = jaxlib.load(field(2, number) + field(3, b"\x02") + field(5, field(1, b"\x00")))
        if answer.text is not None:
            theirs[number] = answer.text.removesuffix("[2]{0}")
    assert theirs == {number: str(kind) for number, kind in BY_NUMBER.items() if kind.is_array}


def test_deep_tuples_are_read_as_xla_does(jaxlib: JaxlibProcess) -> None:
    text = "(" * 3000 + "f32[2]{0}" + ")" * 3000
    assert jaxlib.parse(text).text == text == str(fi.Shape.parse(text))
