"""Apply the passes of one page to many pages, on worker threads or, while no kernel is loaded, with NumPy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Cast, cast_by_numpy
from fastindex.algebra.loops import Nest, RelayoutLoops, grouped
from fastindex.arrays.arrays import address_of
from fastindex.index.box_nests import nest_offsets
from fastindex.moving.moves.casts.plan import cast_passes
from fastindex.moving.moves.nests.plan import passes
from fastindex.moving.numpy_moves import loops_by_numpy, view_of
from fastindex.paged.numbers import PageJob
from fastindex.runtime.first_answer import kernel_function, load_kernels
from fastindex.runtime.machine import this_machine
from fastindex.runtime.threads import run_chunks
from fastindex.runtime.tuning import TUNING, Tuning

Numbers = NDArray[np.int64]

#: Bytes per kernel call of a thread: a call from Python costs a few microseconds.
_SHARE_BYTES = 1 << 21
#: Shortest run that is copied in pieces, largest piece, and most pieces of a page.
#: Milliseconds for 64 MiB in pages of 64 KiB in arbitrary order, NHD to HND, and 128 to 16 tokens: pieces of 512 bytes
#: prefetched to L1 4.7 and 7.0, to L2 4.3 and 5.2; of 2048 bytes to L2 4.0 and 5.0; a sequential copy 3.1 (processor
#: time of one thread of an AMD EPYC, 2026-11-28). In target order pieces take 1.7 times as long.
_LEAST_RUN_BYTES, _PIECE_BYTES, _MOST_PIECES = 128, 2048, 1 << 16
#: Prefetch distance of pieces.
_AHEAD_BYTES = 8192
# Pages are small, so the size of all pages together decides on non-temporal stores.
_STREAMED, _KEPT = (Tuning(streamed_bytes=least) for least in (0, 1 << 62))


def move_pages(
    loops: RelayoutLoops,
    cast: Cast | None,
    places: tuple[Numbers, Numbers, Numbers],
    addresses: tuple[int, int],
    workers: int,
    by_numpy: bool,
) -> None:
    """Copy pages of one kind from one address to another, or fill them with zeros.

    Parameters
    ----------
    loops : RelayoutLoops
        The loops over a page: in bytes, or in elements if there is a cast.
    cast : Cast, optional
    places : (int64 array, int64 array, int64 array)
        (source, target) offset pairs of layers, source offsets of pages, and target offsets of pages.
    addresses : (int, int)
        Source and target.
    workers : int
        Maximum number of threads.
    by_numpy : bool
        Whether to move with NumPy.
    """
    loops, width = (loops, 1) if cast is not None or loops.fills else in_units(loops.copies)
    elements = sum(nest.element_count for nest in (*loops.copies, *loops.fills))
    page_bytes = elements * (width if cast is None else cast.target.nbytes)
    if not page_bytes:
        return
    if by_numpy:
        for around in places[0].tolist():
            for here, there in zip(places[1].tolist(), places[2].tolist(), strict=True):
                ends = addresses[0] + around[0] + here, addresses[1] + around[1] + there
                if cast is None:
                    loops_by_numpy(loops, width, *ends, b"\0")
                else:
                    _cast_by_numpy(loops.copies, cast, *ends)
        return
    load_kernels()
    from fastindex.moving.compiled_passes import repeated_padding, thread_scratch

    outer, sources, targets = (np.ascontiguousarray(table) for table in places)
    tables = address_of(outer), address_of(sources), address_of(targets), len(targets)
    source, target = addresses
    is_streamed = page_bytes * len(outer) * len(targets) >= TUNING.streamed_bytes
    pieces = None if cast is not None or loops.fills else pieces_of(loops, width)
    if pieces is not None:
        ahead = max(_AHEAD_BYTES // int(pieces[:, 2].max()), 1)
        job = np.array(PageJob(address_of(pieces), len(pieces), *tables, ahead, int(is_streamed)), np.int64)
    else:
        compiled = _compiled(loops, width, cast, is_streamed)
        job = np.array(PageJob(compiled.address, compiled.count, *tables), np.int64)
    padding = repeated_padding(b"\0")
    kernel = kernel_function("run_page_passes" if pieces is None else "copy_page_pieces")

    def chunk(begin: int, end: int) -> None:
        if pieces is not None:
            kernel(address_of(job), target, source, begin, end)
        else:
            kernel(address_of(job), target, source, padding[1], thread_scratch.address, begin, end)

    run_chunks(chunk, len(outer) * len(targets), workers, max(_SHARE_BYTES // page_bytes, 1))


@lru_cache(maxsize=256)
def in_units(nests: tuple[Nest, ...]) -> tuple[RelayoutLoops, int]:
    """Return loops over the largest unit, up to 16 bytes, contiguous on both sides, and the size of the unit.

    Examples
    --------
    >>> from fastindex.algebra.loops import Loop
    >>> in_units((Nest((Loop(12, 1, 1), Loop(4, 12, 36))),))[1]
    4
    """
    loops = RelayoutLoops(nests, ())
    for width in (16, 8, 4, 2):
        found = grouped(loops, width)
        if found is not None:
            return found, width
    return loops, 1


@lru_cache(maxsize=256)
def pieces_of(loops: RelayoutLoops, width: int) -> Numbers | None:
    """Return the pieces of a page in source order: source offset, target offset, bytes; None if a run is short.

    Examples
    --------
    >>> from fastindex.algebra.loops import Loop
    >>> pieces_of(RelayoutLoops((Nest((Loop(16, 1, 1), Loop(2, 64, 32))),), ()), 16).tolist()
    [[0, 0, 256], [1024, 512, 256]]
    """
    rows = []
    for nest in loops.copies:
        run = nest.loop_of(1, 1)
        if run is None or run.size * width < _LEAST_RUN_BYTES:
            return None
        starts = nest_offsets(nest._replace(loops=tuple(loop for loop in nest.loops if loop is not run))) * width
        at = np.arange(0, run.size * width, _PIECE_BYTES)
        found = np.empty((len(starts), len(at), 3), np.int64)
        found[:, :, :2] = starts[:, None] + at[:, None]
        found[:, :, 2] = np.minimum(run.size * width - at, _PIECE_BYTES)
        rows.append(found.reshape(-1, 3))
    table = np.concatenate(rows)
    return None if len(table) > _MOST_PIECES else np.ascontiguousarray(table[np.argsort(table[:, 0], kind="stable")])


@lru_cache(maxsize=256)
def _compiled(loops: RelayoutLoops, width: int, cast: Cast | None, is_streamed: bool):  # type: ignore[no-untyped-def]
    from fastindex.moving.compiled_passes import CompiledPasses

    tuning = _STREAMED if is_streamed else _KEPT
    if cast is not None:
        return CompiledPasses(cast_passes(loops, cast, this_machine(), tuning))
    return CompiledPasses(passes(loops, width, this_machine(), tuning))


def _cast_by_numpy(nests: tuple[Nest, ...], cast: Cast, source: int, target: int) -> None:
    for nest in nests:
        here, there = view_of(source, nest, cast.source.nbytes, 0), view_of(target, nest, cast.target.nbytes, 1)
        values = cast_by_numpy(np.ascontiguousarray(here).reshape(-1).view(np.uint8), cast.source, cast.target)
        there[...] = values.view(there.dtype).reshape(there.shape)
