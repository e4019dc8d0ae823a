"""Every CPU threshold of the planner and the executor, with its reason and its measurements.

Figures are GB/s read and written on 2 processors of an AMD EPYC (48 KiB L1 and 1 MiB L2 each, 32 MiB L3, AVX-512) in a
virtual machine, 2026-11-22; a pair is for one thread and for two. Differences of up to a tenth are noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.lazy import lazy_property


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Thresholds, in bytes except for counts.

    Attributes
    ----------
    streamed_bytes
        Larger destinations are written with non-temporal stores: they are too large to be re-read from cache. f32 to
        T(8,128), with normal and with non-temporal stores: 73 and 41 at 4 MiB, 20 and 35 at 7 MiB; followed by a
        reader, 43 and 24, 24 and 25. Index conversion, from 1 to 8 MiB: alike, 26 to 30. Smaller destinations whose
        sources span as much are written like that too, see `moving.counts.for_scattered_lines`.
    shifted_bytes
        Minimum size for boxes of rows, and for non-temporal stores in transposes whose columns begin within cache
        lines, which are shifted first. f64[877,50,10] reversed out of T(8,128): 0.8 ms with normal stores, 0.95 with
        non-temporal ones.
    task_bytes
        Maximum that a task of a stream writes; longer runs are split so that threads share them. 32 KiB to 2 MiB
        measure alike.
    gathered_chunk_bytes, least_gathered_runs
        Size of a batch of runs that are adjacent in the destination and at most half as long, and the minimum number of
        runs. Outer dimensions swapped, without and with batches: 9/9 and 33/40 for runs of 44 bytes, 29/29 and 29/41
        for 300, 36/47 and 32/56 for 600. Runs of 44 bytes: 18/24 with 256 bytes, 25/42 with 1 KiB, 21/37 with 4 KiB.
        Runs of 400: 32/52 with 4, 25/45 with 16.
    by_source_bytes
        Longer pieces are written out of order as fast as in order, so the source is read in order instead. s8 from
        T(8,128)(4,1): 42/48 with 128, 23/26 with 1024. Other moves, 64 bytes to 4 KiB: no difference beyond noise.
    row_bytes, least_row_bytes
        Bytes of each row that a task of a transpose reads, and the minimum when more tasks are needed. bf16 8192 by
        8192: 20/27 with 1 KiB, 18/32 with 4 KiB, 22/41 with 16 KiB; f32: 30/44, 35/43 and 34/43.
    column_bytes, aligned_column_bytes
        Number of columns of such a task, times the element width. If the columns do not all begin at line boundaries,
        rows are read a second time for the next lines, and should still be in the cache: 27/36 with 2 KiB, 29/38 with
        8 KiB, 27/38 with 32 KiB.
    least_tasks
        Fewer tasks leave threads idle at the end. f32 1500 by 1500: 42/52 with 2, 40/62 with 16, 41/68 with 64.
    small_call_bytes
        Calls that write less stay on the caller's thread. f32 to T(8,128): 83/44 at 4 MiB, 36/43 at 8 MiB. If calls
        follow each other closely and a helper thread is awake, 1 MiB and more take 0.55 to 0.7 of the time; but if
        threads of other libraries occupy the processor meanwhile, f32 to T(8,128) drops from 54 to 25 at 2 MiB
        (2026-11-23).
    share_bytes
        Bytes of tasks that a thread takes at a time, up to four times as many while many are left. A copy of 48 MiB,
        two threads: 30 with 64 KiB, 46 with 256 KiB, 53 with 1 MiB and with 4 MiB (2026-11-23). Four times as many
        until the end: 0.85 of the speed if tasks are large.
    ahead_share_bytes
        The same for kernels that read a part of a task while they write the part before it: in each share, the read of
        the first part and the write of the last one overlap with nothing. Two threads, u8[131072,3,127] out of
        T(2,*,128) and f32[98,1000,100] to T(8,128), reversed: 35 and 41 with 256 KiB, 38 and 46 with 1 MiB, 40 and 47
        with 4 MiB, 41 and 48 with 16 MiB.
    line_offset
        Not a threshold: the offset of the destination within a cache line. Plans are made for 0, and again for a lane
        if a large destination begins anywhere else, as NumPy's own large arrays do, 16 bytes after a page boundary.
    least_conversion_share, most_conversion_share
        Minimum and maximum number of indices that a thread converts at a time; up to four times the minimum stay on the
        caller's thread. Two threads, 524288 indices: 2317 with 8192, 2352 with 32768, 2158 with 131072; 16.8 million:
        1557 with 65536, 2024 with 262144, 1735 with 1048576. One thread and two: 1421 and 1197 for 65536 indices, 1495
        and 1405 for 131072, 1636 and 1475 for 262144. The minimum is also the number of slots that are looked up at a
        time, so that their indices stay in L2: 4.7/7.9 with 4096, 4.7/8.1 with 32768, 4.6/3.5 with 262144.
    """

    streamed_bytes: int = 8 << 20
    shifted_bytes: int = 0
    task_bytes: int = 256 << 10
    gathered_chunk_bytes: int = 1024
    least_gathered_runs: int = 4
    by_source_bytes: int = 128
    row_bytes: int = 4096
    least_row_bytes: int = 512
    column_bytes: int = 8192
    aligned_column_bytes: int = 32768
    least_tasks: int = 16
    small_call_bytes: int = 4 << 20
    share_bytes: int = 256 << 10
    ahead_share_bytes: int = 4 << 20
    line_offset: int = 0
    least_conversion_share: int = 1 << 15
    most_conversion_share: int = 1 << 18

    def chunk_length(self, count: int, workers: int) -> int:
        """Return the number of elements that a thread converts at a time, in whole cache lines.

        Examples
        --------
        >>> TUNING.chunk_length(1 << 24, 2)
        262144
        """
        length = min(max(count // (4 * workers), self.least_conversion_share), self.most_conversion_share)
        return -(-length // 8) * 8

    @lazy_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    def __hash__(self) -> int:
        # Part of the key of cached plans: hashing 20 fields takes as long as a small copy.
        return self._hash


#: The default thresholds.
TUNING = Tuning()
