"""Texts of shardings: random, real and bad ones, with the column of the fault; and shapes that they divide."""

from __future__ import annotations

import dataclasses
import math
from random import Random

from tests.cases import strategies
from tests.oracles.reference import ReferenceShape

TYPES = ("manual", "replicated", "unreduced")

#: From dumps of real programs: JAX and PyTorch/XLA on 4 to 512 chips, partitioned and not.
REAL = (
    "{replicated}",
    "{maximal device=0}",
    "{manual}",
    "{devices=[1,1,1,1]<=[1]}",
    "{devices=[8,1]<=[8]}",
    "{devices=[1,8]0,1,2,3,4,5,6,7}",
    "{devices=[4,1,2]<=[8] last_tile_dim_replicate}",
    "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}",
    "{devices=[1,16,16]<=[16,16]T(1,0) last_tile_dim_replicate}",
    "{devices=[16,1,1,16]<=[256] last_tile_dim_replicate}",
    "{devices=[1,1,4,64]<=[64,4]T(1,0) last_tile_dim_replicate}",
    "{devices=[2,2,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}",
    "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dims={manual}}",
    "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}",
    "{devices=[4,2]<=[2,2,2]T(0,2,1)}",
    "{devices=[32,16]<=[16,32]T(1,0)}",
    "{{replicated}, {devices=[8,1]<=[8]}, {maximal device=0}}",
    "{mesh['data'=4,'model'=2], [{'data'}, {'model'}]}",
    "{mesh['data'=4,'model'=2], [{'data', 'model'}, {}, {?}]}",
    "{mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)), [{'y'}, {'x'}]}",
)

#: What jaxlib reads from 0.12 on: how unreduced parts are put together; several spellings of some.
REDUCTIONS = (
    "{mesh['a'=2,'b'=4], [{'a'}], unreduced=max{'b'}}",
    "{mesh['a'=2,'b'=4], [{'a'}], unreduced=min{'b'}}",
    "{mesh['a'=2,'b'=4], [{'a'}], unreduced=sum{'b'}}",
    "{mesh['a'=2,'b'=4], [{'a'}], unreduced= max {'b'}}",
    "{mesh['a'=2,'b'=4], [{'a'}], unreduced=max{}}",
    "{mesh['a'=2,'b'=4], [], unreduced=max{'b'}, manual={'a'}}",
    "{mesh['a'=2,'b'=4], [], unreduced=max{}, manual={'a', 'b'}}",
    "{mesh['a'=2,'b'=4], [], replicated={'b'}, unreduced=min{'a'}}",
    "{mesh['a'=2,'b'=4], [{?}], unreduced=max{'a', 'b'}}",
    "{mesh['a'=2,'b'=4], [], unreduced=max{'a', 'b'}}",
    "{mesh['a'=2,'b'=4], unreduced=max{'a', 'b'}}",
    "{mesh['a'=2,'b'=4], unreduced=max{'b'}}",
    "{mesh['a'=2,'b'=4], unreduced=min}",
    "{mesh['a'=2,'b'=4], unreduced=sum}",
    "{mesh['a'=2,'b'=4], unreduced{'b'}}",
    "{mesh['a'=2,'b'=4], unreduced{}}",
    "{mesh['a'=2,'b'=1], unreduced{'a'}}",
    "{mesh['a'=2,'b'=1], [], replicated={'b'}, unreduced={'a'}}",
    "{mesh['a'=2,'b'=1], [], unreduced=max{'a'}}",
    "{mesh['a'=4], [], unreduced=min{'a':(1)2}}",
)

#: What XLA's text cannot be, or cannot mean, and the 0-based offset of the fault.
BAD = (
    ("sharding={replicated}", 0),
    ('#sdy.sharding<@mesh, [{"x"}]>', 0),
    ("", 0),
    ("replicated", 0),
    ("{replicated", 11),
    ("{replicated}x", 12),
    ("{Replicated}", 1),
    ("{devices}", 1),
    ("{devices = [2]<=[2]}", 1),
    ("{devices=[]<=[1]}", 10),
    ("{devices=[2,]<=[2]}", 12),
    ("{devices=[2 2]<=[4]}", 12),
    ("{devices=[2,2]}", 14),
    ("{devices=[2,2]<=[5]}", 17),
    ("{devices=[2,2]<=[2,2]}", 21),
    ("{devices=[4]<=[4]T(0)}", 17),
    ("{devices=[6,2]<=[3,4]T(0,0)}", 23),
    ("{devices=[6,2]<=[3,4]T(0,2)}", 23),
    ("{devices=[6,2]<=[3,4]T(0)}", 23),
    ("{devices=[2,2]<=[0,4]T(1,0)}", 17),
    ("{devices=[2,0]<=[1]}", 12),
    ("{devices=[2,-2]<=[4]}", 12),
    ("{devices=[2,2]0,1,2}", 14),
    ("{devices=[2,2]0,1,2,3,4}", 14),
    ("{devices=[2,2]0,1,2,2}", 20),
    ("{devices=[2,2]0,1,-2,3}", 18),
    ("{devices=[2]0,9}", 14),
    ("{devices=[1,1]0}", 14),
    ("{devices=[99999999999999999999]<=[1]}", 10),
    ("{devices=[4294967296,4294967296]<=[4294967296,4294967296]T(1,0)}", 35),
    ("{devices=[2,2]<=[4],shard_as 3}", 19),
    ("{devices=[2,2]<=[4] shard_as}", 28),
    ("{devices=[2,2]<=[4] devices=[4]<=[4]}", 20),
    ("{devices=[2,2]<=[4] last_tile_dims={auto}}", 36),
    ("{devices=[2,2]<=[4] last_tile_dims={manual,manual,manual}}", 20),
    ("{devices=[2,2]<=[4] last_tile_dims={manual} last_tile_dim_replicate}", 44),
    ("{maximal}", 0),
    ("{maximal device=-1}", 16),
    ("{maximal devices=[2]3,4}", 20),
    ("{replicated device=3}", 19),
    ("{device=3}", 9),
    ("{shard_as 3}", 11),
    ("{{{replicated}}}", 2),
    ("{{replicated},}", 14),
    ("{{}}", 2),
    ("{replicated,replicated}", 11),
    ("{replicated metadata={foo=1}}", 22),
    ("{replicated metadata={op_name=a}}", 30),
    ("{replicated metadata={{op_name='a'} {op_name='b'}}}", 36),
    ("{replicated /* open", 12),
    ("{mesh['a'=2]}", 12),
    ("{mesh[a=2], [{a}]}", 6),
    ("{mesh['a'=2,'a'=4], [{'a'}]}", 12),
    ("{mesh['a'=0], [{'a'}]}", 10),
    ("{mesh['a'=2], [{'c'}]}", 16),
    ("{mesh['a'=2], [{'a'},{'a'}]}", 21),
    ("{mesh['a'=2], [{'a',}]}", 20),
    ("{mesh['a'=2,'b'=2], [{?, 'b'}]}", 23),
    ("{mesh['a'=2], replicated, [{'a'}]}", 26),
    ("{mesh['a'=2], [{'a'}], foo={'a'}}", 23),
    ("{mesh['a'=2], [{'a'}], shard_as 1}", 23),
    ("{mesh['a'=2,'b'=2], [{'a'}], unreduced=MAX{'b'}}", 39),
    ("{mesh['a'=2,'b'=2], [{'a'}], unreduced=max}", 42),
    ("{mesh['a'=2,'b'=2], [{'a'}], manual=max{'b'}}", 36),
    ("{mesh['a'=2,'b'=2], unreduced={'b'}}", 30),
    ("{mesh['a'=2,'b'=2], manual{'b'}}", 26),
    ("{mesh['a'=2,'b'=2], unreduced{'b','a'}}", 29),
    ("{mesh['a'=2,'b'=2], unreduced=max{'a'}, manual={'b'}}", 40),
    ("{devices=[" + "2," * 20000 + "2]<=[2]}", 10),
    ("{mesh['a'=4294967296,'b'=4294967296], [{'a'}]}", 0),
    ("{mesh['a'=4], [{'a':(1)3}]}", 15),
    ("{mesh['a'=4], [{'a':(1)4}]}", 15),
    ("{mesh['a'=4], [{'a':(1)1}]}", 15),
    ("{mesh['a'=4], [{'a':(0)2}]}", 15),
    ("{mesh['a'=4], [{'a':(1)2, 'a':(2)2}]}", 15),
    ("{mesh['a'=12], [{'a':(1)2},{'a':(3)2}]}", 27),
    ("{mesh['a'=2,'b'=2], [{}], manual={'b','a'}}", 33),
    ("{mesh['a'=2,'b'=2], [{'a'}], manual={'b'}, manual={'b'}}", 43),
    ("{mesh['a'=2,'b'=2], device_ids=(3,2,1), [{'a'}]}", 32),
    ("{mesh['a'=2,'b'=2], device_ids=(3,2,1,1), [{'a'}]}", 38),
    ("{mesh['a'=2,'b'=2], device_ids=(0,1,2,3), [{'a'}]}", 32),
    ("{mesh['a'=2,'b'=2], device_ids=([2,2]), [{'a'}]}", 37),
    ("{maximal_mesh[device_id=-3]}", 24),
    ("{single_device[device_id=-3]}", 25),
    ("{single_device[1]}", 15),
)


def factors(random: Random, count: int, most: int) -> list[int]:
    """Return up to `most` sizes whose product is `count`, ones among them."""
    sizes = [1] * random.randint(1, most)
    left = count
    while left > 1:
        prime = next(p for p in range(2, left + 1) if left % p == 0)
        sizes[random.randrange(len(sizes))] *= prime
        left //= prime
    return sizes


def assignment(random: Random, count: int) -> str:
    """Return what follows ``devices=[..]``: a list or a transposed counter of `count` devices."""
    if count > 1 and random.random() < 0.3:
        ids = list(range(count))
        random.shuffle(ids)
        return ",".join(map(str, ids))
    sizes = factors(random, count, 4)
    if len(sizes) == 1:
        return f"<=[{count}]"
    order = list(range(len(sizes)))
    random.shuffle(order)
    return f"<=[{','.join(map(str, sizes))}]T({','.join(map(str, order))})"


def tiled_text(random: Random, count: int, rank: int | None = None) -> str:
    """Return a list or counter form over `count` devices, of `rank` dimensions before the subgroups."""
    sizes = factors(random, count, 5)
    if rank is not None:
        sizes = (sizes + [1] * rank)[: max(rank, len(sizes))]
    groups = random.randint(0, min(3, len(sizes) - 1)) if rank is None else len(sizes) - rank
    text = f"{{devices=[{','.join(map(str, sizes))}]{assignment(random, count)}"
    if groups == 1 and random.random() < 0.5:
        text += " last_tile_dim_replicate"
    elif groups:
        text += " last_tile_dims={" + ",".join(random.choice(TYPES) for _ in range(groups)) + "}"
    if random.random() < 0.1:
        text += f" {random.choice(('shard_as', 'shard_like'))} {random.randint(0, 200)}"
    if random.random() < 0.1:
        text += ' metadata={op_name="a/b" source_file="f.py" source_line=7}'
    return text + "}"


def mesh_text(random: Random, count: int, rank: int | None = None) -> str:
    """Return a mesh form over `count` devices, with parts of axes, open dimensions and axes that divide nothing."""
    sizes = factors(random, count, 3)
    names = "abc"[: len(sizes)]
    refs: list[tuple[int, str]] = []
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        nibbles = [d for d in range(2, size) if size % d == 0 and size // d > 1]
        if nibbles and random.random() < 0.4:
            low = random.choice(nibbles)
            refs += [(2 * number, f"'{name}':(1){low}"), (2 * number + 1, f"'{name}':({low}){size // low}")]
        else:
            refs.append((2 * number, f"'{name}'"))
    random.shuffle(refs)
    rank = random.randint(0, 3) if rank is None else rank
    dimensions: list[list[str]] = [[] for _ in range(rank)]
    kept: dict[str, list[tuple[int, str]]] = {"replicated": [], "unreduced": [], "manual": []}
    last: dict[str, tuple[int, int]] = {}
    for number, ref in refs:
        where = random.choice([*[f"d{i}" for i in range(rank)] * 2, "none", *kept])
        if where == "none":
            continue
        if where[0] == "d" and where[1:].isdigit():
            if last.get(where, (-9, 0))[0] == number - 1 and number % 2:
                continue
            dimensions[int(where[1:])].append(ref)
            last[where] = (number, 0)
        elif not any(abs(number - other) == 1 and number // 2 == other // 2 for other, _ in kept[where]):
            kept[where].append((number, ref))
    opened = [", ".join([*axes, *["?"] * (random.random() < 0.15)]) for axes in dimensions]
    order = ""
    if random.random() < 0.4:
        ids = assignment(random, math.prod(sizes)).removeprefix("<=")
        if ids != ",".join(map(str, range(count))):
            order = f", device_ids=({ids})"
    text = "{mesh[" + ",".join(f"'{n}'={s}" for n, s in zip(names, sizes, strict=True)) + "]" + order
    text += ", [" + ", ".join(f"{{{axes}}}" for axes in opened) + "]"
    for name, chosen in kept.items():
        if chosen:
            text += f", {name}={{{', '.join(ref for _, ref in sorted(chosen))}}}"
    return text + "}"


def random_text(random: Random) -> str:
    """Return a text of any form that XLA accepts and that makes sense."""
    count = random.choice((2, 4, 6, 8, 12, 16, 24))
    form = random.random()
    if form < 0.5:
        return tiled_text(random, count)
    if form < 0.8:
        return mesh_text(random, count)
    if form < 0.9:
        group = random.choice(("", "", " shard_as 5", " shard_like 2"))
        return "{" + random.choice(("replicated", "manual", "unknown", "unreduced", "maximal device=3")) + group + "}"
    members = [random.choice((tiled_text, mesh_text))(random, count) for _ in range(random.randint(1, 7))]
    return "{" + ", ".join(members) + "}"


def random_sharding(random: Random, rank: int, count: int) -> str:
    """Return the text of a sharding for arrays of `rank` dimensions over `count` devices."""
    if random.random() < 0.15 or rank == 0:
        return random.choice(("{replicated}", "{manual}", "{unknown}"))
    return tiled_text(random, count, rank)


def divisible(shape: ReferenceShape) -> ReferenceShape:
    """Return the shape without what is of the whole array only."""
    return dataclasses.replace(shape, padded_dimensions=None, splits=())


def random_case(seed: int, movable: bool = True) -> tuple[ReferenceShape, str, int]:
    """Return a shape, the text of a sharding, and the number of devices."""
    random = Random(seed)
    shape = divisible(strategies.random_shape(seed, movable))
    count = random.choice((1, 2, 3, 4, 6, 8, 12, 16, 30))
    return shape, random_sharding(random, len(shape.dimensions), count), count
