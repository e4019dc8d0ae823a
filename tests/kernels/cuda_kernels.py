"""Every GPU kernel there is, by name, for the tests that compile them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastindex import ElementType, Shape
from fastindex.algebra.casts import cast_of
from fastindex.algebra.forms import IndexProgram, Quotient
from fastindex.cuda.index_programs import form_of
from fastindex.cuda.kernels import device, tiles
from fastindex.cuda.kernels.casts import cast_kernel, cast_rows_kernel, cast_transpose_kernel
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.granules import deinterleave_rows_kernel, interleave_rows_kernel, shift_kernel
from fastindex.cuda.kernels.index_kernel import COUNTED, InputForm, KernelForm, index_kernel
from fastindex.cuda.kernels.stages import staged_kernel
from fastindex.cuda.kernels.tiles import scalar_transpose_kernel, transpose_kernel, word_transpose_kernel
from fastindex.cuda.kernels.units import (
    copy_kernel,
    fill_kernel,
    interleave_kernel,
    look_up_kernel,
    pack_bits_kernel,
    packing_kernel,
    page_kernel,
)
from fastindex.cuda.launches.launches import ELEMENT_TILES, STAGE_BYTES, VECTOR_BYTES, VECTOR_TILES, WORD_BYTES
from fastindex.index.programs import conversion_program, linear_program, multi_program, tile_program

WIDTHS = (1, 2, 4, 8, 16)
VECTORS = ", 16 bytes at once"

CASTS = (("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("s8", "bf16"), ("u8", "f32"), ("f32", "f8e4m3fn"))

TILED = Shape.parse("bf16[4096,4096]{1,0:T(8,128)(2,1)}")
RAGGED = Shape.parse("f32[20,21,22,23,24]{4,3,2,1,0:T(*,*,2,*,3)}")
LARGE = Shape.parse("u8[100003,100019]{1,0:T(8,128)(4,1)}")
PLAIN = Shape.parse("f32[16,17,18,19,20,21]")


def bytes_of(name: str) -> int:
    return ElementType.of(name).nbytes


def code_of(source: str, target: str) -> int:
    """The number of a conversion."""
    return cast_of(ElementType.of(source), ElementType.of(target)).code


def every_kernel() -> dict[str, Kernel]:
    found = {
        "copy": copy_kernel(),
        "copy pages": page_kernel(),
        "fill": fill_kernel(),
        f"interleave{VECTORS}": interleave_kernel(),
        "compress": packing_kernel(expand=False),
        "expand": packing_kernel(expand=True),
        "pack bits": pack_bits_kernel(),
        "look up": look_up_kernel(),
        "shift": shift_kernel(),
        "interleave rows": interleave_rows_kernel(),
        "stage": staged_kernel(STAGE_BYTES),
    }
    for width in WIDTHS:
        found[f"transpose {width}{VECTORS}"] = transpose_kernel(width, tuple(sorted(VECTOR_TILES[width])))
        if width < WORD_BYTES:
            found[f"transpose words {width}"] = word_transpose_kernel(width, *ELEMENT_TILES[width][0])
        elif width in ELEMENT_TILES:
            found[f"transpose elements {width}"] = scalar_transpose_kernel(width, ELEMENT_TILES[width])
    # What takes the most registers.
    found[f"cast transpose f64 to s8{VECTORS}"] = cast_transpose_kernel(code_of("f64", "s8"), 16, 2)
    for source, target in CASTS:
        code = code_of(source, target)
        together = VECTOR_BYTES // max(bytes_of(source), bytes_of(target))
        name = f"{source} to {target}"
        side = "read" if bytes_of(source) > bytes_of(target) else "written"
        found[f"cast {name}, 16 bytes {side} at once"] = cast_kernel(code, together)
        found[f"cast transpose {name}{VECTORS}"] = cast_transpose_kernel(
            code, VECTOR_BYTES // bytes_of(target), VECTOR_BYTES // bytes_of(source)
        )
        found[f"cast transpose {name}"] = cast_transpose_kernel(code, 1, 1)
        for rows in (2, 4):
            columns = VECTOR_BYTES // max(bytes_of(source), rows * bytes_of(target))
            found[f"cast {rows} rows {name}"] = cast_rows_kernel(code, rows, columns, False)
            columns = VECTOR_BYTES // max(rows * bytes_of(source), bytes_of(target))
            found[f"cast {rows} parts {name}"] = cast_rows_kernel(code, rows, columns, True)
    for rows in (1, 2, 4):
        found[f"deinterleave rows {rows}"] = deinterleave_rows_kernel(rows)
    programs = {
        "linear": linear_program(TILED),
        "linear, rank 6": linear_program(PLAIN),
        "multi": multi_program(TILED),
        "multi, rank 6": multi_program(PLAIN),
        "multi, joined": multi_program(RAGGED),
        "multi, large": multi_program(LARGE),
        "tile": tile_program(TILED, 1),
    }
    for name, program in programs.items():
        found[name] = kernel_for(program)
        found[f"{name}, strided"] = kernel_for(program, strided=True)
    found["linear, wrapped"] = kernel_for(programs["linear"], InputForm(32, True, "wrap"))
    found["linear, wrapped unsigned"] = kernel_for(programs["linear"], InputForm(64, False, "wrap"))
    found["linear, clipped"] = kernel_for(programs["linear"], InputForm(8, False, "clip"))
    found["linear, counted"] = kernel_for(programs["linear"], InputForm(COUNTED), strided=True)
    found["linear, window"] = kernel_for(programs["linear"], InputForm(COUNTED, True, "clip"), strided=True)
    for quotients in (2, 8):
        program = IndexProgram((99,), tuple(Quotient(((0, 1),), 2 + i, 98) for i in range(quotients)), (((0, 1),),))
        found[f"gather, {quotients} quotients"] = kernel_for(program, gathered=True)
    found["gather, large"] = kernel_for(conversion_program(LARGE, Shape("u8", LARGE.dimensions)), gathered=True)
    return found


def common_paths() -> dict[str, Kernel]:
    """The transposes again, written for full tiles in two loops alone: what most blocks run, without a branch."""
    found: dict[str, Kernel] = {}
    for width in WIDTHS:
        for room in VECTOR_TILES[width]:
            with full_tiles(room):
                found[f"transpose {width} {room}{VECTORS}"] = transpose_kernel.__wrapped__(width, (room,))
        if width >= WORD_BYTES and width in ELEMENT_TILES:
            sizes = ELEMENT_TILES[width][:1]
            with full_tiles(sizes[0]):
                found[f"transpose elements {width}"] = scalar_transpose_kernel.__wrapped__(width, sizes)
    return found


@contextmanager
def full_tiles(room: tuple[int, int]) -> Iterator[None]:
    """Let kernels that are made in a ``with`` block know that each tile is full, and that there are two loops."""
    rows, columns = room
    module: Any = tiles
    tile = module.tile

    @device.device_function
    def full(number: Any, table: Any, loops: Any) -> Any:
        _, _, source, destination = tile(number, table, 2)
        return rows, columns, source, destination

    module.tile = full
    try:
        yield
    finally:
        module.tile = tile


def kernel_for(program: IndexProgram, given: InputForm | None = None, **options: object) -> Kernel:
    inputs = (given or InputForm(64),) * len(program.input_bounds)
    return index_kernel(KernelForm(inputs, form_of(program), **options))  # type: ignore[arg-type]


@contextmanager
def absent_device(capability: tuple[int, int]) -> Iterator[None]:
    """Allow kernels to be compiled for a GPU that is not present."""
    if device.OF_MLIR:
        from numba_cuda_mlir import tools  # type: ignore[import-not-found, import-untyped, unused-ignore]

        known, tools._cached_cc = tools._cached_cc, capability
        try:
            yield
        finally:
            tools._cached_cc = known
        return
    # Numba asks the driver for the device when a kernel calls a function, and uses nothing but its capability.
    from numba.cuda import dispatcher

    class Absent:
        compute_capability = capability

    before = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: Absent
    try:
        yield
    finally:
        dispatcher.get_current_device = before
