"""Named formats and patterns beside their vendors' code, and beside a copy, in one run.

    python -m benchmarks.formats [--threads N] [--rounds N]

Vendors' functions are taken from where their packages are installed (vllm, torchao, einops); what is missing is left
out. A fraction of copy is the time of a copy that reads and writes as many bytes, divided by the time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import fastindex as fi
from benchmarks.measure import machine, medians, random_bytes, touched_bytes, use_processors


class Job(NamedTuple):
    """What is measured: ours, the vendor's if it is installed, and the bytes that are read and written."""

    name: str
    ours: Callable[[], object]
    vendor: Callable[[], object] | None
    moved_bytes: int


def awq_to_marlin(threads: int, shape: tuple[int, int] = (4096, 11008)) -> Job:
    buffer = random_bytes(shape[0] * shape[1] // 2)
    out = touched_bytes(buffer.nbytes)

    def ours() -> object:
        return fi.repack(buffer, "awq", "marlin", shape=shape, out=out, threads=threads)

    return Job("awq to marlin, 4 bits, 4096 by 11008", ours, _vllm_awq_to_marlin(buffer, shape, out), 2 * buffer.nbytes)


def _vllm_awq_to_marlin(buffer: Any, shape: tuple[int, int], out: Any) -> Callable[[], object] | None:
    """Return what vLLM's own functions do on a processor: unpack, undo the order, permute, pack."""
    try:
        import torch

        from tests.bulk.test_vendor_formats import of_vllm

        found = of_vllm("unpack_cols")
    except BaseException:
        # Not installed: pytest's skip is no Exception.
        return None
    permutation = found["get_weight_perm"](4, False)
    words = torch.from_numpy(buffer.view(np.int32).reshape(shape[0], shape[1] // 8))
    undo = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])

    def vendor() -> object:
        codes = found["unpack_cols"](words, 4, *shape).reshape(-1, 8)[:, undo].reshape(shape)
        return found["marlin_weights"](codes, *shape, 4, permutation)

    fi.repack(buffer, "awq", "marlin", shape=shape, out=out)
    if vendor().numpy().tobytes() != out.tobytes():  # type: ignore[attr-defined]
        raise AssertionError("vLLM packs other bytes")
    return vendor


def blocked_scales(threads: int, shape: tuple[int, int] = (16384, 4096)) -> Job:
    scales = random_bytes(shape[0] * shape[1]).reshape(shape)
    out = touched_bytes(scales.nbytes)

    def ours() -> object:
        return fi.repack(scales, "plain", "blocked_scales", shape=shape, out=out, threads=threads)

    vendor: Callable[[], object] | None = None
    try:
        import torch
        from torchao.prototype.mx_formats.utils import to_blocked
    except ImportError:
        pass
    else:
        tensor = torch.from_numpy(scales)

        def vendor() -> object:
            return to_blocked(tensor, False)

    return Job("128x4 scales, 64 MiB", ours, vendor, 2 * scales.nbytes)


def patterns(threads: int) -> Iterator[Job]:
    cases = [
        ("b s (h d) -> b h s d", (4, 2048, 2048), {"h": 16}),
        ("b (c h1 w1) h w -> b c (h h1) (w w1)", (8, 128, 128, 128), {"h1": 2, "w1": 2}),
        ("(m a) (n b) -> m n a b", (4096, 4096), {"a": 8, "b": 128}),
        ("n c h w -> n h w c", (16, 64, 128, 128), {}),
    ]
    for pattern, shape, sizes in cases:
        array = random_bytes(4 * int(np.prod(shape))).view(np.float32).reshape(shape)
        yield Job(f"{pattern}, f32", *_pattern(pattern, array, sizes, threads), 2 * array.nbytes)


def _pattern(
    pattern: str, array: Any, sizes: dict[str, int], threads: int
) -> tuple[Callable[[], object], Callable[[], object] | None]:
    out = touched_bytes(array.nbytes).view(array.dtype).reshape(fi.rearrange(array, pattern, **sizes).shape)

    def ours() -> object:
        return fi.rearrange(array, pattern, out=out, threads=threads, **sizes)

    try:
        import einops
    except ImportError:
        return ours, None

    def vendor() -> object:
        np.copyto(out, einops.rearrange(array, pattern, **sizes))
        return out

    return ours, vendor


def measured(job: Job, rounds: int) -> tuple[float, float, float | None]:
    """Return the seconds of ours, of a copy of as many bytes, and of the vendor's code."""
    source, target = random_bytes(job.moved_bytes // 2), touched_bytes(job.moved_bytes // 2)
    rivals: dict[str, Callable[[], object]] = {"ours": job.ours, "copy": lambda: fi.copyto(target, source)}
    if job.vendor is not None:
        rivals["vendor"] = job.vendor
    found = medians(rivals, rounds)
    return found["ours"], found["copy"], found.get("vendor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    use_processors(arguments.threads)
    print(machine())
    print(f"{'':58} {'ms':>8} {'of copy':>8} {'vendor ms':>10} {'times':>6}")
    for job in (awq_to_marlin(arguments.threads), blocked_scales(arguments.threads), *patterns(arguments.threads)):
        ours, copy, vendor = measured(job, arguments.rounds)
        beside = "" if vendor is None else f"{vendor * 1e3:10.1f} {vendor / ours:6.1f}"
        print(f"{job.name:58} {ours * 1e3:8.1f} {copy / ours:8.2f} {beside}")


if __name__ == "__main__":
    main()
