"""Fuzzed texts and protos of shapes, layouts and shardings.

Whatever the text: a value that prints as a text that reads back as the same value, or a FastIndexError, soon. What is
read of an array shape is compared with the reference's own reader and sizes, and a list or counter form of a sharding
with the reference's.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import fastindex as fi
from tests.cases import sharding_texts, strategies
from tests.cases.damage import damaged, damaged_bytes
from tests.cases.shape_texts import REAL_TEXTS, TextMaker
from tests.faults.tally import Tally
from tests.oracles import reference, shard_reference

#: No text of a few hundred characters takes longer.
_MOST_SECONDS = 2.0
#: Pieces are looked up one by one where a layout is no loops.
_MOST_ELEMENTS = 100_000
_OPEN = ("?", "<=", "token", "opaque", "b(", "SC(")
_MOST_DEVICES = 1 << 16


def run(tally: Tally) -> None:
    """Fuzz texts until the time is over."""
    kinds: tuple[tuple[str, Callable[[Any], Any], Callable[[Tally, Any], None], list[Any]], ...] = (
        ("texts of shapes", fi.Shape.parse, _shape_holds, _shape_texts(tally)),
        ("texts of layouts", fi.Layout.parse, _layout_holds, _layout_texts(tally)),
        ("texts of shardings", fi.sharding.Sharding.parse, _sharding_holds, _sharding_texts(tally)),
        ("protos of shapes", fi.Shape.from_proto, _shape_holds, _protos(fi.Shape, REAL_TEXTS)),
        (
            "protos of shardings",
            fi.sharding.Sharding.from_proto,
            _sharding_holds,
            _protos(fi.sharding.Sharding, sharding_texts.REAL),
        ),
    )
    while tally.going():
        for row, read, holds, corpus in kinds:
            damage: Callable[[Random, Any], Any] = damaged_bytes if isinstance(corpus[0], bytes) else damaged
            count = 500 if damage is damaged else 100
            for _ in range(count):
                text = tally.random.choice(corpus)
                if tally.random.random() < 0.97:
                    text = damage(tally.random, text)
                with tally.in_time(row, repr(text), _MOST_SECONDS):
                    _try(tally, row, read, holds, text)
                tally.count(row)
        tally.save()


def _try(tally: Tally, row: str, read: Callable[[Any], Any], holds: Callable[[Tally, Any], None], text: Any) -> None:
    tally.begin(repr(text))
    try:
        value = read(text)
    except fi.FastIndexError:
        tally.count(row, 0, 1)
        value = None
    except Exception as error:
        tally.find(row, f"{type(error).__name__}: {error} for {text!r}")
        return
    if value is None:
        return
    try:
        holds(tally, value)
    except Exception as error:
        tally.find(row, f"{type(error).__name__}: {error} after reading {text!r} as {str(value)[:500]}")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _shape_holds(tally: Tally, shape: fi.Shape) -> None:
    text = str(shape)
    again = fi.Shape.parse(text)
    _expect(str(again) == text and again == shape, f"reads back as {again}")
    if tally.random.random() < 0.1:
        _expect(fi.Shape.from_proto(shape.to_proto()).equals(shape), "comes back from its proto as another")
        if not any(mark in text for mark in _OPEN) and not text.startswith("(") and "[" in text:
            _reference_agrees(shape, text)
    if tally.random.random() < 0.01:
        _answers_or_refuses(shape)


def _reference_agrees(shape: fi.Shape, text: str) -> None:
    expected = reference.parse(text)
    if expected.element_type not in reference.VALUE_BITS:
        return
    _expect(tuple(shape.dimensions) == expected.dimensions, f"dimensions {shape.dimensions}")
    if "PAD" not in text and "(u32)" not in text:
        try:
            sizes = shape.slot_count, shape.nbytes
        except fi.FastIndexError:
            return
        wanted = reference.slot_count(expected), reference.nbytes(expected)
        _expect(sizes == wanted, f"{sizes} slots and bytes, expected {wanted}")


def _answers_or_refuses(shape: fi.Shape) -> None:
    """Sentences, steps and one slot."""
    questions: tuple[Callable[[], Any], ...] = (
        lambda: fi.explain(shape),
        lambda: fi.layouts.steps(shape),
        lambda: fi.linear_index(shape, [0] * shape.rank),
        lambda: fi.layouts.suggest_tiles(shape),
        lambda: fi.strided_runs(shape) if shape.element_count < _MOST_ELEMENTS else None,
    )
    for question in questions:
        try:
            question()
        except fi.FastIndexError:
            continue


def _layout_holds(tally: Tally, layout: fi.Layout) -> None:
    text = str(layout)
    again = fi.Layout.parse(text)
    _expect(str(again) == text and again == layout, f"reads back as {again}")


def _sharding_holds(tally: Tally, sharding: fi.sharding.Sharding) -> None:
    text = str(sharding)
    if "last_tile_dims={unreduced}" in text:
        # As XLA prints it where a group of one device was beside it; that text may be of something shorter.
        sharding = fi.sharding.Sharding.parse(text)
        text = str(sharding)
    again = fi.sharding.Sharding.parse(text)
    _expect(str(again) == text and again == sharding, f"reads back as {again}")
    if tally.random.random() < 0.1:
        back = fi.sharding.Sharding.from_proto(sharding.to_proto())
        _expect(str(back) == text or back == sharding or "mesh" in text, f"comes back from its proto as {back}")
    if text.startswith("{devices=") and "SC" not in text:
        count = sharding.device_count
        if count is None or count > _MOST_DEVICES:
            return
        expected = shard_reference.parse(text, 0, count)
        found = sharding.devices
        _expect(found is not None and tuple(found.ravel().tolist()) == expected.devices, "other devices")


def _shape_texts(tally: Tally) -> list[str]:
    made: list[str] = list(REAL_TEXTS)
    for number in range(400):
        maker = TextMaker(tally.seed * 1000 + number)
        made.append((maker.valid, maker.odd)[number % 2]())
    made += [str(strategies.random_shape(tally.seed * 1000 + number, movable=False)) for number in range(200)]
    return made


def _layout_texts(tally: Tally) -> list[str]:
    texts = [text[text.index("{") :] for text in _shape_texts(tally) if "{" in text and not text.startswith("(")]
    return [text for text in texts if text.count("{") == 1]


def _sharding_texts(tally: Tally) -> list[str]:
    made = [sharding_texts.random_text(tally.random) for _ in range(500)]
    return [*made, *sharding_texts.REAL, *(text for text, _ in sharding_texts.BAD)]


def _protos(kind: Any, texts: tuple[str, ...] | list[str]) -> list[bytes]:
    return [kind.parse(text).to_proto() for text in texts]
