"""A divided array in words: what each device holds, what that costs, and the cheapest way to less padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from fastindex.advice.spelling import bytes_text, listed
from fastindex.core.shape import Shape
from fastindex.sharding.sharding import Sharding

_WHOLE = {
    "replicated": "every device holds the whole array",
    "manual": "the program itself divides the array; XLA sees the whole of what each device has",
    "unknown": "XLA has not decided yet; until then, every device holds the whole array",
    "unreduced": "every device holds a part of a {reduction}, of the whole shape",
}
_SUBGROUPS = {
    "replicated": "hold the same part",
    "manual": "are left to the program",
    "unreduced": "hold parts of a {reduction}",
}
_REDUCTIONS = {"sum": "sum", "max": "maximum", "min": "minimum"}

#: For more parts than that, numbers that divide a dimension evenly are not looked for one by one.
_MOST_TRIED = 1 << 16


def sharding_sentences(shape: Shape, sharding: Sharding) -> list[str]:
    """Return what a sharding does to an array: the parts, the bytes of a device, the padding, and what avoids it.

    Raises
    ------
    LayoutError, UnsupportedError
        As `Sharding.shard_shape`.

    Examples
    --------
    >>> for line in sharding_sentences(Shape.parse("f32[17,4]"), Sharding.parse("{devices=[8,1]<=[8]}")):
    ...     print(line)
    {devices=[8,1]<=[8]} over 8 devices: dimension 0 is divided by 8.
    Each device holds f32[3,4]{1,0}, 48 B; a device with the whole array would hold 272 B.
    Dimension 0: 17 over 8 devices pads to 24: 29% of the buffers. Over 17 or 1 nothing.
    Devices 6 and 7 hold padding alone.
    Divided as {devices=[2,4]<=[8]}, each device holds 36 B, 25% less.
    """
    part = sharding.shard_shape(shape)
    count = sharding.device_count
    over = "" if count is None else f" over {count:,} device{'s' * (count != 1)}"
    sentences = [f"{sharding}{over}: {_division(sharding)}."]
    whole = f"; a device with the whole array would hold {bytes_text(shape.nbytes)}" if part != shape else ""
    sentences.append(f"Each device holds {part}, {bytes_text(part.nbytes)}{whole}.")
    for d, (size, parts) in enumerate(zip(shape.dimensions, sharding.parts, strict=False)):
        sentences += _padding_of(d, size, parts)
    sentences += _idle_devices(shape, sharding)
    logical = -(-part.element_count * part.element_bits // 8)
    if part.nbytes > logical:
        share = 100 * (part.nbytes - logical) / part.nbytes
        more = bytes_text(part.nbytes - logical)
        sentences.append(f"Tile padding comes on top: {more} ({share:.0f}%) of each buffer.")
    better = cheapest_division(shape, sharding)
    if better is not None:
        nbytes = better.shard_shape(shape).nbytes
        less = 100 * (part.nbytes - nbytes) / part.nbytes
        sentences.append(f"Divided as {better}, each device holds {bytes_text(nbytes)}, {less:.0f}% less.")
    return sentences


def _division(sharding: Sharding) -> str:
    if sharding.kind == "maximal":
        return f"only device {sharding.device} has the array; the buffers of others mean nothing"
    if sharding.kind in _WHOLE:
        return _WHOLE[sharding.kind].format(reduction=_REDUCTIONS[sharding.reduction])
    divided = [f"dimension {d} is divided by {n:,}" for d, n in enumerate(sharding.parts) if n > 1]
    text = listed(divided) if divided else "no dimension is divided"
    sizes = sharding.dimensions[len(sharding.parts) :]
    for kind, size in zip(sharding.subgroup_types, sizes, strict=True):
        text += f", {size:,} devices each " + _SUBGROUPS[kind].format(reduction=_REDUCTIONS[sharding.reduction])
    return text


def _padding_of(dimension: int, size: int, parts: int) -> list[str]:
    if parts == 1 or size % parts == 0:
        return []
    padded = -(-size // parts) * parts
    share = 100 * (padded - size) / padded
    sentence = (
        f"Dimension {dimension}: {size:,} over {parts:,} devices pads to {padded:,}: {share:.0f}% of the buffers."
    )
    if parts > _MOST_TRIED:
        return [sentence]
    below = next(n for n in range(parts, 0, -1) if size % n == 0)
    above = next((n for n in range(parts, min(size, 8 * parts) + 1) if size % n == 0), size)
    even = f"{above:,} or {below:,}" if above != below else f"{below:,}"
    return [f"{sentence} Over {even} nothing."]


def _idle_devices(shape: Shape, sharding: Sharding) -> list[str]:
    """Say which devices hold padding alone; of very many, how many."""
    if sharding.kind != "tiled" or 0 in shape.dimensions or sharding.order is None:
        return []
    tile = sharding.shard_dimensions(shape)
    used = [-(-size // part) for size, part in zip(shape.dimensions, tile, strict=True)]
    replicas = sharding.order.count // math.prod(sharding.parts)
    idle = sharding.order.count - math.prod(used) * replicas
    if not idle:
        return []
    if idle > 4 or sharding.order.count > 4096:
        return [f"{idle:,} of the {sharding.order.count:,} devices hold padding alone."]
    devices = sharding.devices
    assert devices is not None
    busy = set(devices[tuple(slice(n) for n in used)].reshape(-1).tolist())
    names = [str(device) for device in range(sharding.order.count) if device not in busy]
    return [f"Device{'s' * (idle > 1)} {listed(names)} hold{'s' * (idle == 1)} padding alone."]


def cheapest_division(shape: Shape, sharding: Sharding) -> Sharding | None:
    """Return the division over as many devices whose buffers are smallest, or None where none is smaller.

    Parts may change dimensions; the devices, subgroups and layout stay.

    Examples
    --------
    >>> str(cheapest_division(Shape.parse("f32[17,8]"), Sharding.parse("{devices=[8,1]<=[8]}")))
    '{devices=[1,8]<=[8]}'
    """
    if not sharding.parts or 0 in shape.dimensions:
        return None
    total, rank = math.prod(sharding.parts), len(sharding.parts)
    if total > _MOST_TRIED:
        return None
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    best, least = None, sharding.shard_shape(shape).nbytes
    for parts in itertools.islice(_divisions(total, rank, divisors), 5000):
        sizes = [-(-size // n) for size, n in zip(shape.dimensions, parts, strict=True)]
        if parts == sharding.parts or any(n > size for n, size in zip(parts, shape.dimensions, strict=True)):
            continue
        nbytes = Shape(shape.element_type, sizes, shape.layout).nbytes
        if nbytes < least:
            best, least = parts, nbytes
    if best is None:
        return None
    subgroups = sharding.dimensions[rank:]
    return Sharding("tiled", (*best, *subgroups), sharding.order, sharding.subgroup_types)


def _divisions(total: int, rank: int, divisors: list[int]) -> Iterator[tuple[int, ...]]:
    if rank == 1:
        yield (total,)
        return
    for first in divisors:
        if total % first == 0:
            for rest in _divisions(total // first, rank - 1, divisors):
                yield (first, *rest)
