"""Ways to move, a folder each; their kernels: names, modules, and the widths and variants they are compiled for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from fastindex.algebra.cast_numbers import conversion_code
from fastindex.moving.moves.digit_swaps import MOST_ROW_DIGITS, PIECES
from fastindex.moving.moves.streams import STREAM, VECTOR_WAYS, are_vectors
from fastindex.moving.moves.transposes import TRANSPOSE_WIDTHS
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES, Kernel

if TYPE_CHECKING:
    from fastindex.moving.passes import Draft, Pass


def once(one: Pass | Draft) -> tuple[int, int]:
    """Return one key for all passes: the kernel takes any width."""
    return 1, 0


def by_width(one: Pass | Draft) -> tuple[int, int]:
    """Return the width of a pass."""
    return one.width, 0


def by_width_and_ways(one: Pass | Draft) -> tuple[int, int]:
    """Return the width and the ways of a pass."""
    return one.width, one.ways


def by_ways(one: Pass | Draft) -> tuple[int, int]:
    """Return the ways of a pass: the kernel takes any width."""
    return 1, one.ways


def by_vectors(one: Pass | Draft) -> tuple[int, int]:
    """Return the width and the ways of a pass done by whole vectors; lanes take any width and ways."""
    run = int(one.geometry[STREAM.run])
    return (one.width, one.ways) if are_vectors(one.kernel, one.width, one.ways, run) else (1, 0)


class PassKernel(NamedTuple):
    """A kernel that passes run.

    Attributes
    ----------
    name : str
        `Pass.kernel` of the passes that it runs.
    module : str
        Its module, relative to `fastindex.moving.moves`.
    functions : tuple of str
        Function names by variant; the last one also serves all higher variants.
    key : callable
        Takes a pass; returns the width and the variant that its machine code is compiled for.
    compiled_at_first : callable
        Takes the bytes of a vector; returns the widths and variants that `fastindex warmup` compiles.
    reads_ahead : bool
        Whether it reads one part of a task while it writes the previous part, across tasks too.
    """

    name: str
    module: str
    functions: tuple[str, ...]
    key: Callable[[Pass | Draft], tuple[int, int]] = once
    compiled_at_first: Callable[[int], Iterable[tuple[int, int]]] = lambda _: ((1, 0),)
    reads_ahead: bool = False

    def of(self, width: int, variant: int) -> Kernel:
        """Return the kernel for a width and a variant."""
        function = self.functions[min(variant, len(self.functions) - 1)]
        return Kernel(f"fastindex.moving.moves.{self.module}", function, (width, variant))


#: The casts of weights and images; other casts are compiled on first use.
CASTS = (
    *(("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "f32"), ("f16", "bf16"), ("bf16", "f16")),
    *(("u8", "f32"), ("s8", "f32"), ("u8", "bf16"), ("s8", "bf16"), ("f32", "code"), ("f32", "narrow")),
    *(("byte", "two bytes"), ("byte", "four bytes")),
)


def _vectors(name: str) -> tuple[tuple[int, int], ...]:
    return (*((width, ways) for width, found in VECTOR_WAYS[name].items() for ways in found), (1, 0))


def _digits(vector_bytes: int) -> list[tuple[int, int]]:
    pieces = PIECES if vector_bytes == LINE_BYTES else (LANE_BYTES,)
    return [(piece, digits) for piece in pieces for digits in range(MOST_ROW_DIGITS, 0, -1)]


def by_name(kernels: Iterable[PassKernel]) -> dict[str, PassKernel]:
    """Return kernels by name.

    Raises
    ------
    ValueError
        Two kernels have the same name.
    """
    found: dict[str, PassKernel] = {}
    for one in kernels:
        if one.name in found:
            raise ValueError(f"two kernels are called {one.name!r}")
        found[one.name] = one
    return found


_ALL = (
    PassKernel(
        "transpose",
        "transposes.kernel",
        ("transpose_panels",),
        by_width,
        lambda _: [(width, 0) for width in TRANSPOSE_WIDTHS],
    ),
    PassKernel(
        "interleave",
        "streams.interleave_kernel",
        ("interleave_lane_chunks", "interleave_vectors"),
        by_vectors,
        lambda _: _vectors("interleave"),
    ),
    PassKernel(
        "deinterleave",
        "streams.interleave_kernel",
        ("deinterleave_lane_chunks", "deinterleave_vectors"),
        by_vectors,
        lambda _: _vectors("deinterleave"),
    ),
    PassKernel("swap digits", "digit_swaps.kernel", ("swap_digit_chunks",), by_width_and_ways, _digits),
    PassKernel(
        "block permute",
        "block_permute.kernel",
        ("assemble_chunks",),
        by_width_and_ways,
        lambda vector_bytes: [(vector_bytes, 1), (vector_bytes, 2)],
    ),
    PassKernel(
        "column gather",
        "column_gather.kernel",
        ("assemble_columns",),
        by_ways,
        lambda _: [(1, 1), (1, 2)],
        reads_ahead=True,
    ),
    PassKernel(
        "cast", "casts.kernel", ("cast_runs",), by_width, lambda _: [(conversion_code(*pair), 0) for pair in CASTS]
    ),
    PassKernel("expand", "streams.kernel", ("expand_chunks",)),
    PassKernel("compress", "streams.kernel", ("compress_chunks",)),
    PassKernel("boxes", "boxes.kernel", ("run_boxes",)),
    PassKernel("copy", "streams.kernel", ("copy_chunks",)),
    PassKernel("strided", "nests.kernel", ("copy_elements",)),
    PassKernel("fill", "nests.kernel", ("fill_runs",)),
    PassKernel("pair nibbles", "nibble_pairs.kernel", ("pair_chunks",)),
)

#: Every kernel that passes run, by `Pass.kernel`. `fastindex warmup` compiles in this order: the slowest first.
PASS_KERNELS = by_name(_ALL)
