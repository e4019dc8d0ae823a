"""Named formats and patterns beside their vendors' code, and beside a copy, in one run.

    python -m benchmarks.formats [--threads N] [--rounds N]

Vendors' functions are taken from where their packages are installed (vllm, torchao, einops); what is missing is left
out. A fraction of copy is the time of a copy that reads and writes as many bytes, divided by the time. The fastest
round of each counts: these calls take milliseconds, and whatever else runs only adds to them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import fastindex as fi
from benchmarks.measure import machine, random_bytes, repeats_for, sample, touched_bytes, use_processors


class Job(NamedTuple):
    """What is measured: ours, the vendor's if installed, the bytes read and written, a relayout of equal loops."""

    name: str
    ours: Callable[[], object]
    vendor: Callable[[], object] | None
    moved_bytes: int
    relayout: Callable[[], object] | None = None


def awq_to_marlin(threads: int, shape: tuple[int, int] = (4096, 11008)) -> Job:
    buffer = random_bytes(shape[0] * shape[1] // 2)
    out = touched_bytes(buffer.nbytes)

    def ours() -> object:
        return fi.weights.repack(buffer, "awq", "marlin", shape=shape, out=out, threads=threads)

    return Job("awq to marlin, 4 bits, 4096 by 11008", ours, _vllm_awq_to_marlin(buffer, shape, out), 2 * buffer.nbytes)


def _vllm_awq_to_marlin(buffer: Any, shape: tuple[int, int], out: Any) -> Callable[[], object] | None:
    """Return what vLLM's own functions do on a processor: unpack, undo the order, permute, pack."""
    try:
        import torch

        from tests.weights.test_vendor_formats import of_vllm

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

    fi.weights.repack(buffer, "awq", "marlin", shape=shape, out=out)
    if vendor().numpy().tobytes() != out.tobytes():  # type: ignore[attr-defined]
        raise AssertionError("vLLM packs other bytes")
    return vendor


def blocked_scales(threads: int, shape: tuple[int, int] = (16384, 4096)) -> Job:
    scales = random_bytes(shape[0] * shape[1]).reshape(shape)
    out = touched_bytes(scales.nbytes)

    def ours() -> object:
        return fi.weights.repack(scales, "plain", "blocked_scales", shape=shape, out=out, threads=threads)

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
        ("b s (h d) -> b h s d", (4, 2048, 2048), {"h": 16}, "4,2048,16,128", "3,1,2,0"),
        (
            "b (c h1 w1) h w -> b c (h h1) (w w1)",
            (8, 128, 128, 128),
            {"h1": 2, "w1": 2},
            "8,32,2,2,128,128",
            "3,5,2,4,1,0",
        ),
        ("(m a) (n b) -> m n a b", (4096, 4096), {"a": 8, "b": 128}, "4096,4096", "1,0:T(8,128)"),
        ("n c h w -> n h w c", (16, 64, 128, 128), {}, "16,64,128,128", "1,3,2,0"),
    ]
    for pattern, shape, sizes, dimensions, layout in cases:
        array = random_bytes(4 * int(np.prod(shape))).view(np.float32).reshape(shape)
        plan = fi.plan_relayout(f"f32[{dimensions}]", f"f32[{dimensions}]{{{layout}}}")
        ours, vendor = _pattern(pattern, array, sizes, threads)
        same = _relayout(plan, array, fi.rearrange(array, pattern, **sizes), threads)
        yield Job(f"{pattern}, f32", ours, vendor, 2 * array.nbytes, same)


def _relayout(plan: fi.RelayoutPlan, array: Any, expected: Any, threads: int) -> Callable[[], object]:
    """Return the relayout that has the loops of a pattern."""
    flat, out = array.reshape(-1), touched_bytes(array.nbytes).view(array.dtype)
    if plan(flat, out).tobytes() != expected.tobytes():
        raise AssertionError(f"{plan} is no move like that of the pattern")
    return lambda: plan(flat, out, threads)


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


def measured(job: Job, rounds: int) -> dict[str, float]:
    """Return the seconds of ours, of a copy of as many bytes, of the vendor's code and of a relayout."""
    source, target = random_bytes(job.moved_bytes // 2), touched_bytes(job.moved_bytes // 2)
    rivals: dict[str, Callable[[], object]] = {"ours": job.ours, "copy": lambda: fi.numpy.copyto(target, source)}
    if job.relayout is not None:
        rivals["relayout"] = job.relayout
    found = fastest(rivals, rounds)
    if job.vendor is not None:
        # It takes much longer, and what it leaves in the cache is not ours.
        found |= fastest({"vendor": job.vendor}, max(rounds // 12, 2))
    return found


def fastest(rivals: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the seconds of the fastest round of each; they take turns."""
    repeats = {name: repeats_for(run) for name, run in rivals.items()}
    found = dict.fromkeys(rivals, float("inf"))
    for _ in range(rounds):
        for name, run in rivals.items():
            found[name] = min(found[name], sample(run, repeats[name]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    use_processors(arguments.threads)
    print(machine())
    print("| | ms | of copy | beside relayout | vendor, ms | times |\n| --- | --: | --: | --: | --: | --: |")
    for job in (awq_to_marlin(arguments.threads), blocked_scales(arguments.threads), *patterns(arguments.threads)):
        found = measured(job, arguments.rounds)
        ours, vendor = found["ours"], found.get("vendor")
        relayout = f"{found['relayout'] / ours:.2f}" if "relayout" in found else ""
        beside = " | " if vendor is None else f"{vendor * 1e3:.1f} | {vendor / ours:.1f}"
        print(f"| {job.name} | {ours * 1e3:.2f} | {found['copy'] / ours:.2f} | {relayout} | {beside} |", flush=True)


if __name__ == "__main__":
    main()
