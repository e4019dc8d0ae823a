"""Questions about arrays of any rank, divided by shardings of every form, with subgroups: words, tables and pictures.

Whatever the sharding: an answer that agrees with the reference's, or a FastIndexError, soon.
"""

from __future__ import annotations

from random import Random

import numpy as np

import fastindex as fi
from fastindex.show.shard_picture import ShardPicture
from tests.cases.damage import damaged
from tests.cases.sharding_texts import mesh_text, random_text, tiled_text
from tests.faults.tally import Tally
from tests.oracles import reference, shard_reference

_MOST_SECONDS = 5.0
_ROW = "divided arrays"
#: Where the other side gives one answer for each element, in loops.
_MOST_ELEMENTS, _MOST_DEVICES = 300, 1 << 12
_LAYOUTS = ("", "", ":T(8,128)", ":T(2)", ":T(4,8)(2,1)", ":S(1)")


def run(tally: Tally) -> None:
    """Ask until the time is over."""
    while tally.going():
        for _ in range(20):
            shape, sharding = random_question(tally.random)
            case = repr((shape, sharding))
            with tally.in_time(_ROW, case, _MOST_SECONDS):
                _try(tally, shape, sharding, case)
        tally.save()


def random_question(source: Random) -> tuple[str, str]:
    """Return the texts of a shape and of a sharding, mostly one for its rank."""
    rank = source.choice((0, 0, 1, 1, 2, 2, 3, 4))
    count = source.choice((1, 2, 3, 4, 6, 8, 12, 16, 24))
    form = source.random()
    if form < 0.5:
        sharding = _with_subgroups(source, rank, count)
    elif form < 0.8:
        sharding = mesh_text(source, count, rank)
    else:
        sharding = source.choice((random_text(source), tiled_text(source, count)))
    if source.random() < 0.1:
        sharding = damaged(source, sharding)
    sizes = [source.choice((0, 1, 2, 3, 5, 7, 8, 16, 33)) for _ in range(rank)]
    order = source.sample(range(rank), rank)
    layout = f"{{{','.join(map(str, order))}{source.choice(_LAYOUTS)}}}" if rank else ""
    return f"{source.choice(('f32', 'bf16', 's4', 'pred', 'c128'))}[{','.join(map(str, sizes))}]{layout}", sharding


def _with_subgroups(source: Random, rank: int, count: int) -> str:
    """Return a counter form of a rank, with up to four subgroups of any kinds and sizes, ones among them."""
    groups = source.randint(0 if rank else 1, 4)
    sizes = [1] * (rank + groups)
    left = count
    while left > 1:
        prime = next(p for p in range(2, left + 1) if left % p == 0)
        sizes[source.randrange(len(sizes))] *= prime
        left //= prime
    kinds = ", ".join(source.choice(("manual", "replicated", "unreduced")) for _ in range(groups))
    listed = ",".join(map(str, source.sample(range(count), count)))
    devices = listed if count > 1 and source.random() < 0.5 else f"<=[{count}]"
    last = f" last_tile_dims={{{kinds}}}" if groups else ""
    return f"{{devices=[{','.join(map(str, sizes))}]{devices}{last}}}"


def _try(tally: Tally, shape: str, sharding: str, case: str) -> None:
    tally.begin(case)
    tally.count(_ROW)
    try:
        check(tally.random, shape, sharding)
    except fi.FastIndexError:
        tally.count(_ROW, 0, 1)
    except Exception as error:
        tally.find(_ROW, f"{type(error).__name__}: {error} for {case}")


def check(source: Random, shape: str, sharding: str) -> None:
    """Ask everything, and compare what the reference knows.

    Raises
    ------
    FastIndexError
        It is refused.
    AssertionError
        An answer is wrong.
    """
    divided = fi.sharding.Sharding.parse(sharding)
    count = divided.device_count or source.choice((1, 2, 8))
    if count > _MOST_DEVICES:
        return
    parts = fi.sharding.shards(shape, divided, count)
    words = fi.explain(shape, divided)
    assert str(divided) in words
    picture = ShardPicture(shape, divided, count)
    # A device that is drawn is a device that there is.
    for _, grid in picture.panels():
        assert all(0 <= device < count for line in grid for part in line for device in part.devices)
    assert picture.text(colour=bool(source.randrange(2)), width=source.choice((1, 20, 80)))
    assert picture.svg().endswith("</svg>\n")
    assert divided._repr_html_()
    parsed = fi.Shape.parse(shape)
    if divided.kind == "tiled" and str(divided).startswith("{devices") and parsed.element_count <= _MOST_ELEMENTS:
        _reference_agrees(parsed, divided, parts)


def _reference_agrees(shape: fi.Shape, sharding: fi.sharding.Sharding, parts: list[fi.sharding.Shard]) -> None:
    """Compare where each element is, on which devices."""
    if 0 in sharding.dimensions or not sharding.dimensions:
        return
    expected = shard_reference.places(
        reference.parse(str(shape)), shard_reference.parse(str(sharding), shape.rank, len(parts))
    )
    held: dict[tuple[int, ...], list[int]] = {element: [] for element in expected}
    for part in parts:
        for element in np.ndindex(*(stop - start for start, stop in zip(part.start, part.stop, strict=True))):
            held[tuple(x + start for x, start in zip(element, part.start, strict=True))].append(part.device)
    for element, (devices, _) in expected.items():
        assert sorted(devices) == held[element], f"{element} is on {held[element]}, not on {devices}"
