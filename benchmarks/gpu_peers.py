"""The same relayouts and index conversions by torch, CuPy and JAX, where they are installed and see a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import fastindex as fi
from benchmarks.problems import Problem

Run = Callable[[], object]
LIBRARIES = ("torch", "cupy", "jax")


def installed() -> dict[str, Any]:
    """The libraries that can use a GPU here."""
    found = {}
    for name in LIBRARIES:
        try:
            module = import_module(name)
            if sees_gpu(name, module):
                found[name] = module
        except Exception as error:
            print(f"without {name}: {error}")
    return found


def sees_gpu(name: str, module: Any) -> bool:
    if name == "torch":
        return bool(module.cuda.is_available())
    if name == "cupy":
        return bool(module.cuda.runtime.getDeviceCount() > 0)
    return bool(module.default_backend() == "gpu")


def relayout_rivals(problem: Problem, buffer: Any, libraries: dict[str, Any], compiles: bool) -> dict[str, Run]:
    """Calls that move the loops of a problem: a copy between strided views, or a compiled transpose.

    `buffer` is of bytes, on the GPU; torch and CuPy read it where it is.

    Where a layout pads or packs below a byte there are no common loops, and no rivals.
    """
    if problem.pads or problem.crops or problem.packed_source:
        return {}
    rivals: dict[str, Run] = {}
    digits = problem.major_first
    sizes = [digit.size for digit in digits]
    if "torch" in libraries:
        torch = libraries["torch"]
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[problem.itemsize]
        given = torch.as_tensor(buffer, device="cuda").view(kind)
        out = torch.empty(problem.destination.slot_count, dtype=kind, device="cuda")
        source = torch.as_strided(given, sizes, [digit.source_stride for digit in digits])
        target = torch.as_strided(out, sizes, [digit.destination_stride for digit in digits])
        rivals["torch"] = lambda: target.copy_(source)
        if compiles:
            rivals |= compiled_torch(torch, problem, given)
    if "cupy" in libraries:
        cupy = libraries["cupy"]
        held = cupy.asarray(buffer).view(problem.dtype)
        result = cupy.empty(problem.destination.slot_count, problem.dtype)
        views = problem_views(cupy, problem, held, result)
        rivals["cupy"] = lambda: cupy.copyto(views[1], views[0])
    if "jax" in libraries:
        rivals["jax"] = jax_relayout(libraries["jax"], problem, buffer)
    return rivals


def problem_views(cupy: Any, problem: Problem, source: Any, target: Any) -> tuple[Any, Any]:
    strided = cupy.lib.stride_tricks.as_strided
    digits = problem.major_first
    sizes = [digit.size for digit in digits]
    return (
        strided(source, sizes, [digit.source_stride * problem.itemsize for digit in digits]),
        strided(target, sizes, [digit.destination_stride * problem.itemsize for digit in digits]),
    )


def jax_relayout(jax: Any, problem: Problem, buffer: Any) -> Run:
    by_source = sorted(problem.digits, key=lambda digit: -digit.source_stride)
    order = [by_source.index(digit) for digit in problem.major_first]
    # JAX has no 16-byte integers and by default no 8-byte ones: pairs and fours of 32 bits move alike.
    words = max(problem.itemsize // 4, 1)
    dtype = {1: np.int8, 2: np.int16}.get(problem.itemsize, np.int32)
    shape = [digit.size for digit in by_source] + ([words] if words > 1 else [])
    axes = order + ([len(order)] if words > 1 else [])
    given = jax.device_put(buffer.copy_to_host().view(dtype).reshape(shape))
    compiled = jax.jit(lambda x: jax.numpy.transpose(x, axes))
    return lambda: compiled(given)


def compiled_torch(torch: Any, problem: Problem, given: Any) -> dict[str, Run]:
    """The permutation of the loops by ``torch.compile``, which writes a kernel for the sizes it sees."""
    by_source = sorted(problem.digits, key=lambda digit: -digit.source_stride)
    order = [by_source.index(digit) for digit in problem.major_first]
    shaped = given.reshape([digit.size for digit in by_source])
    call = torch.compile(lambda x: x.permute(order).contiguous(), dynamic=False)
    try:
        call(shaped)
    except Exception as error:
        print(f"  without torch.compile: {str(error).splitlines()[0]}")
        return {}
    return {"torch.compile": lambda: call(shaped)}


def cast_rivals(source: fi.Shape, target: fi.Shape, buffer: Any, libraries: dict[str, Any]) -> dict[str, Run]:
    """A copy of torch into another element type, of strided views; only layouts without tiles have it."""
    if "torch" not in libraries or source.layout.tiles or target.layout.tiles:
        return {}
    torch = libraries["torch"]
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "s8": torch.int8, "f8e4m3fn": torch.float8_e4m3fn}
    names = [kinds[str(shape.element_type)] for shape in (source, target)]
    given = torch.as_tensor(buffer, device="cuda").view(names[0])
    out = torch.empty(target.slot_count, dtype=names[1], device="cuda")
    views = [
        torch.as_strided(
            flat, shape.dimensions, [step // shape.element_type.nbytes for step in shape.byte_strides or ()]
        )
        for flat, shape in ((given, source), (out, target))
    ]
    return {"torch": lambda: views[1].copy_(views[0])}


def index_rivals(
    shape: fi.Shape, indices: list[Any], slots: Any, libraries: dict[str, Any]
) -> dict[str, dict[str, Run]]:
    """Calls for both directions, of arrays on the GPU; only layouts without tiles have them."""
    if shape.layout.tiles:
        return {"linear_index": {}, "multi_index": {}}
    linear: dict[str, Run] = {}
    multi: dict[str, Run] = {}
    if "torch" in libraries:
        torch = libraries["torch"]
        columns = [torch.as_tensor(index, device="cuda") for index in indices]
        flat = torch.as_tensor(slots, device="cuda")
        strides = [math.prod(shape.dimensions[d + 1 :]) for d in range(shape.rank)]
        linear["torch"] = lambda: sum(column * stride for column, stride in zip(columns, strides, strict=True))
        multi["torch"] = lambda: torch.unravel_index(flat, shape.dimensions)
    if "cupy" in libraries:
        cupy = libraries["cupy"]
        held, numbers = tuple(map(cupy.asarray, indices)), cupy.asarray(slots)
        linear["cupy"] = lambda: cupy.ravel_multi_index(held, shape.dimensions, mode="wrap")
        multi["cupy"] = lambda: cupy.unravel_index(numbers, shape.dimensions)
    return {"linear_index": linear, "multi_index": multi}
