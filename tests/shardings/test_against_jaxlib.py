"""Texts, protos, equality, tile assignments and shapes of shards, against jaxlib in a child process.

Tests of: shardings.jax_objects, shardings.proto, shardings.reading, shardings.writing.
"""

from __future__ import annotations

import pickle
from random import Random

import numpy as np
import pytest

from fastindex import Shape, Sharding
from tests.cases.sharding_texts import REAL, random_text, tiled_text
from tests.oracles.hlo_shardings import ask


def check_texts(texts: list[str]) -> None:
    answers = ask([{"text": text} for text in texts])
    assert None not in answers
    # What XLA writes it may read as something shorter; so is it here.
    again = ask([{"text": answer["text"]} for answer in answers])
    for text, answer, read in zip(texts, answers, again, strict=True):
        sharding = Sharding.parse(text)
        assert str(sharding) == answer["text"], text
        assert sharding.to_proto().hex() == answer["proto"], text
        assert str(Sharding.parse(str(sharding))) == read["text"], text
        if "last_tile_dims={unreduced}" not in str(sharding):
            assert Sharding.from_proto(bytes.fromhex(answer["proto"])) == sharding
        assert pickle.loads(pickle.dumps(sharding)) == sharding, text
        tiled = sharding.kind == "tiled"
        # Where axes of size 1 stand for groups of their own, XLA leaves groups as tiles that are the whole sharding.
        if sharding.kind != "tuple" and ("=1" not in text or "mesh" not in text):
            assert tiled == ("devices" in answer), text
        if "devices" in answer and tiled:
            assert sharding.devices.tolist() == answer["devices"], text


def test_texts_protos_and_devices() -> None:
    random = Random(1)
    check_texts([*REAL, *(random_text(random) for _ in range(500))])


@pytest.mark.parametrize(
    ("text", "printed", "device_count"),
    [
        ("[1,1,3]<=[3] last_tile_dims={replicated,unreduced}", "{devices=[1,3]<=[3] last_tile_dims={unreduced}}", 3),
        ("[1,3]<=[3] last_tile_dims={replicated,unreduced}", "{devices=[3]<=[3] last_tile_dims={unreduced}}", 3),
        ("[1,1,2,1]1,0 last_tile_dims={manual,unreduced,manual}", "{devices=[1,2]1,0 last_tile_dims={unreduced}}", 2),
        ("[1,3]<=[3] last_tile_dims={unreduced}", "{unreduced}", None),
        ("[1,3,1]<=[3] last_tile_dims={unreduced,unreduced}", "{unreduced}", None),
        ("[1,1,3]<=[3] last_tile_dims={manual,replicated}", "{replicated}", None),
        ("[1,3,1]<=[3] last_tile_dims={manual,replicated}", "{manual}", None),
    ],
)  # fmt: skip
def test_subgroups_of_one_device(text: str, printed: str, device_count: int | None) -> None:
    text = f"{{devices={text}}}"
    sharding = Sharding.parse(text)
    assert (str(sharding), sharding.device_count) == (printed, device_count)
    group = Sharding("tuple", elements=[sharding, Sharding("replicated")])
    for copied in (sharding, group):
        assert pickle.loads(pickle.dumps(copied)) == copied
    check_texts([text])


@pytest.mark.sweep
def test_many_texts() -> None:
    random = Random(2)
    check_texts([random_text(random) for _ in range(20_000)])


def test_jaxlib_reads_what_is_written() -> None:
    random = Random(3)
    # Not those that even XLA writes so that it reads something shorter.
    shardings = [Sharding.parse(str(Sharding.parse(random_text(random)))) for _ in range(150)]
    answers = ask([{"proto": s.to_proto().hex()} for s in shardings])
    for sharding, answer in zip(shardings, answers, strict=True):
        assert answer is not None
        assert answer["text"] == str(sharding)
        assert answer["proto"] == sharding.to_proto().hex()


def test_equality() -> None:
    random = Random(4)
    texts = list(REAL) + [random_text(random) for _ in range(60)]
    texts += [text.replace("'a'", "'q'").replace("?", "") for text in texts if "mesh" in text]
    shardings = [Sharding.parse(text) for text in texts]
    pairs = [(i, j) for i in range(len(texts)) for j in range(i) if random.random() < 0.2]
    alike = [(i, j) for i in range(len(texts)) for j in range(i) if hash(shardings[i]) == hash(shardings[j])]
    chosen = sorted({*pairs, *alike})
    answers = ask([{"equal": [texts[i], texts[j]]} for i, j in chosen])
    for (i, j), answer in zip(chosen, answers, strict=True):
        assert answer is not None
        assert (shardings[i] == shardings[j]) == answer["equal"], (texts[i], texts[j])
        if answer["equal"]:
            assert hash(shardings[i]) == hash(shardings[j])


def test_shapes_of_shards() -> None:
    random = Random(5)
    layouts = ("{1,0}", "{0,1}", "{1,0:T(8,128)(2,1)}", "{0,1:T(4)}")
    questions = []
    for _ in range(60):
        text = tiled_text(random, random.choice((2, 4, 6, 8)), rank=2)
        if Sharding.parse(text).rank in (2, None):
            sizes = f"{random.randint(0, 40)},{random.randint(1, 40)}"
            dynamic = random.choice(("", "<="))
            questions.append((text, f"bf16[{dynamic}{sizes}]{random.choice(layouts)}"))
    for (text, shape), answer in zip(questions, ask([{"tile": list(q)} for q in questions]), strict=True):
        assert answer is not None
        assert str(Sharding.parse(text).shard_shape(shape)) == answer["shape"], (text, shape)
        assert Sharding.parse(text).shard_shape(Shape.parse(shape)).rank == 2


def test_a_sharding_is_its_devices() -> None:
    devices = Sharding.parse("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}").devices
    assert np.array_equal(devices, np.arange(8).reshape(4, 2).T.reshape(2, 1, 4))
    assert not devices.flags.writeable
