"""Texts, protos, equality, tile assignments and shapes of shards, against jaxlib in a child process.

Tests of: sharding.proto, sharding.text.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest

from fastindex import Shape
from fastindex.sharding import Sharding
from tests.cases.sharding_texts import REAL, REDUCTIONS, random_text, tiled_text
from tests.oracles.hlo_shardings import ask


@cache
def knows_reductions() -> bool:
    """Whether this jaxlib says how unreduced parts are put together, as it does from 0.12 on."""
    (answer,) = ask([{"text": REDUCTIONS[0]}])
    return answer is not None and "error" not in answer


def is_comparable(sharding: Sharding) -> bool:
    """Whether the proto of a sharding, which follows 0.12, is the same for this jaxlib."""
    if knows_reductions() or sharding.mesh is not None:
        return True
    return all("unreduced" not in (s.kind, *s.subgroup_types) for s in (sharding, *sharding.elements) if not s.mesh)


def printed(sharding: Sharding) -> str:
    """Return the text of a sharding as this jaxlib prints it, which says less, and otherwise, before 0.12."""
    if knows_reductions():
        return str(sharding)
    return re.sub(r"unreduced\{[^}]*\}", "unreduced", str(sharding)).replace("single_device[", "maximal_mesh[")


def check_texts(texts: list[str]) -> None:
    answers = ask([{"text": text} for text in texts])
    assert None not in answers
    # What XLA writes it may read as something shorter; so is it here.
    again = ask([{"text": answer["text"]} for answer in answers])
    for text, answer, read in zip(texts, answers, again, strict=True):
        sharding = Sharding.parse(text)
        assert printed(sharding) == answer["text"], text
        if is_comparable(sharding):
            assert sharding.to_proto().hex() == answer["proto"], text
        assert printed(Sharding.parse(str(sharding))) == read["text"], text
        if "last_tile_dims={unreduced}" not in str(sharding):
            assert Sharding.from_proto(bytes.fromhex(answer["proto"])) == sharding
        assert pickle.loads(pickle.dumps(sharding)) == sharding, text
        tiled = sharding.kind == "tiled"
        # Where axes of size 1 stand for separate groups, XLA leaves groups as tiles that are the whole sharding.
        if sharding.kind != "tuple" and ("=1" not in text or "mesh" not in text):
            assert tiled == ("devices" in answer), text
        if "devices" in answer and tiled:
            assert sharding.devices.tolist() == answer["devices"], text


@pytest.mark.in_turn(seconds=1.1)
def test_texts_protos_and_devices() -> None:
    random = Random(1)
    check_texts([*REAL, *(random_text(random) for _ in range(500))])


@pytest.mark.in_turn(seconds=0.9)
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
        assert answer["text"] == printed(sharding)
        assert answer["proto"] == sharding.to_proto().hex()


def message(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2, len(content))) + content


def item(operation: str, kind: str = "sdy::reduction_op", rest: bytes = b"") -> bytes:
    """Metadata that names a reduction."""
    return message(7, message(1, kind.encode()) + (message(2, operation.encode()) if operation else b"") + rest)


MESH = bytes.fromhex("120e0a050a016110020a050a016210021a040a0010012a020801")
UNREDUCED, TILED = b"\x08\x06", bytes.fromhex("08031a020202")
WRITTEN = {
    "each of the three": [UNREDUCED + item(name) for name in ("SUM", "MAX", "MIN")],
    "others are sums": [UNREDUCED + item(name) for name in ("PRODUCT", "max", "NONE", "")],
    "several": [UNREDUCED + item(a) + item(b) for a, b in (("MAX", "MIN"), ("MAX", "SUM"), ("a", "MIN"), ("MIN", "a"))],
    "among others": [UNREDUCED + item("MAX") + item("a", "b"), UNREDUCED + item("MAX", rest=message(3, b"f"))],
    "of tiles": [TILED + item("MAX") + bytes.fromhex(f"42010{kind}4a0104520100") for kind in (4, 6)],
    "of other kinds": [item("MAX"), b"\x08\x04" + item("a"), b"\x08\x01\x22\x01\x03" + item("MIN")],
    "of elements": [b"\x08\x02" + message(5, UNREDUCED + item("MAX")) + message(5, UNREDUCED)],
    "of a mesh": [message(14, MESH + bytes((64, number))) for number in (0, 1, 2, 3, 127)],
    "of a mesh without such axes": [message(14, MESH[:-4] + b"\x40\x01")],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_reductions_in_protos(name: str) -> None:
    if not knows_reductions():
        pytest.skip("this jaxlib does not know reductions")
    for written, answer in zip(WRITTEN[name], ask([{"proto": one.hex()} for one in WRITTEN[name]]), strict=True):
        sharding = Sharding.from_proto(written)
        assert answer is not None
        assert (str(sharding), sharding.to_proto().hex()) == (answer["text"], answer["proto"])


def test_reductions_in_texts() -> None:
    if not knows_reductions():
        pytest.skip("this jaxlib does not know reductions")
    check_texts(list(REDUCTIONS))
    found = Counter(Sharding.parse(text).reduction for text in REDUCTIONS)
    assert found == Counter("max" if "max" in text else "min" if "min" in text else "sum" for text in REDUCTIONS)


def test_reductions_are_compared() -> None:
    texts = [*REDUCTIONS, *(text.replace("max", "").replace("min", "") for text in REDUCTIONS if "[{'a'}]" in text)]
    texts += ["{devices=[2,4]<=[8] last_tile_dims={unreduced}}", "{unreduced}", "{replicated}"]
    if not knows_reductions():
        pytest.skip("this jaxlib does not know reductions")
    pairs = [(a, b) for a in texts for b in texts]
    for (a, b), answer in zip(pairs, ask([{"equal": [a, b]} for a, b in pairs]), strict=True):
        assert answer is not None
        assert (Sharding.parse(a) == Sharding.parse(b)) == answer["equal"], (a, b)


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
