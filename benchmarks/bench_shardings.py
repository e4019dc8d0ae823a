"""asv: divided arrays: device and slot in bulk beside NumPy expressions and a copy; planning a reshard."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fastindex as fi

SHAPE = "bf16[8192,8192]{1,0:T(8,128)(2,1)}"
COUNT = 1 << 24
SHARDINGS = {
    "even": "{devices=[4,4]<=[16]}",
    "transposed": "{devices=[4,4]<=[4,4]T(1,0)}",
    "list": "{devices=[4,4]3,11,4,9,0,14,7,2,13,5,10,1,8,15,6,12}",
    "uneven": "{devices=[3,5]<=[15]}",
}
PLANS = {
    "256 devices": (SHAPE, "{devices=[16,16]<=[256]}", "{devices=[8,32]<=[256]}"),
    "256 devices, all to all": (SHAPE, "{devices=[256,1]<=[256]}", "{devices=[1,256]<=[256]}"),
    "256 devices, uneven": ("f32[10007,9001]{1,0:T(8,128)}", "{devices=[16,16]<=[256]}", "{devices=[8,32]<=[256]}"),
    "4096 devices": (SHAPE, "{devices=[64,64]<=[4096]}", "{devices=[32,128]<=[4096]}"),
}

#: Two coordinates in, device and slot out, 8 bytes each.
TOUCHED_NBYTES = 32 * COUNT


def indices() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return random coordinates."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 8192, COUNT), generator.integers(0, 8192, COUNT)


def numpy_shard_index(sharding: fi.sharding.Sharding, i: Any, j: Any) -> tuple[Any, Any]:
    """Return device and slot by NumPy expressions, as one writes them by hand for this layout."""
    part = sharding.shard_shape(SHAPE)
    rows, columns = part.dimensions
    across = -(-columns // 128)
    tile_i, tile_j = i // rows, j // columns
    within_i, within_j = i - tile_i * rows, j - tile_j * columns
    slot = (
        (within_i // 8 * across + within_j // 128) * 1024 + within_i % 8 // 2 * 256 + within_j % 128 * 2 + within_i % 2
    )
    assert sharding.devices is not None
    return sharding.devices[tile_i, tile_j], slot


class ShardIndex:
    """Time of one call on random indices, output given."""

    params = (list(SHARDINGS), ("shard_index", "unshard_index"))
    param_names = ("sharding", "function")
    timeout = 300
    number = 1
    repeat = 7

    def setup(self, name: str, function: str) -> None:
        sharding = fi.sharding.Sharding.parse(SHARDINGS[name])
        coordinates = indices()
        out = np.empty(COUNT, np.int64), np.empty(COUNT, np.int64)
        device, slot = fi.sharding.shard_index(SHAPE, sharding, coordinates)
        self.numpy: Callable[[], object] = lambda: numpy_shard_index(sharding, *coordinates)
        if function == "shard_index":
            self.run: Callable[[], object] = lambda: fi.sharding.shard_index(SHAPE, sharding, coordinates, out=out)
        else:
            self.run = lambda: fi.sharding.unshard_index(SHAPE, sharding, device, slot, out=out)
        self.run()

    def time_index(self, name: str, function: str) -> None:
        self.run()


class ShardIndexRatios(ShardIndex):
    """The same as ratios, to NumPy's copy of as many bytes and to NumPy expressions."""

    unit = "ratio"
    rounds = 5

    def track_fraction_of_copy(self, name: str, function: str) -> float:
        source, target = np.ones(TOUCHED_NBYTES // 16, np.int64), np.ones(TOUCHED_NBYTES // 16, np.int64)
        return least(lambda: np.copyto(target, source), self.rounds) / least(self.run, self.rounds)

    def track_ratio_to_numpy(self, name: str, function: str) -> float:
        return least(self.numpy, 2) / least(self.run, self.rounds)


class PlanReshard:
    """Time to plan, all transfers included."""

    params = (list(PLANS),)
    param_names = ("case",)
    timeout = 300

    def time_plan(self, name: str) -> None:
        plan = fi.sharding.plan_reshard(*PLANS[name])
        assert plan.moved_nbytes == plan.least_nbytes
        assert len(plan.transfers)


def time_parsing_a_million_devices() -> None:
    """Parse a counter of 2**20 devices."""
    fi.sharding.Sharding.parse("{devices=[1024,1024]<=[1048576]}")


def least(run: Callable[[], object], rounds: int) -> float:
    """Return the least seconds that `run` takes."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def main() -> None:
    """Print the figures of the README."""
    for name in SHARDINGS:
        for function in ("shard_index", "unshard_index"):
            case = ShardIndexRatios()
            case.setup(name, function)
            copy, numpy = case.track_fraction_of_copy(name, function), case.track_ratio_to_numpy(name, function)
            print(f"{name:>11} {function:>14} {copy:6.2f} of copy {numpy:6.1f} times NumPy")
    for name in PLANS:
        print(f"{name:>26} {least(lambda name=name: PlanReshard().time_plan(name), 3) * 1e3:8.1f} ms")  # type: ignore[misc]
    print(f"a million devices {least(time_parsing_a_million_devices, 5) * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
