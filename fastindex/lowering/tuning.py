"""Every threshold of the planner and the executor for processors, with its reason and what was measured.

Measured on an Intel Xeon (2 cores, 48 KiB L1, 2 MiB L2, AVX-512), GB/s read and written, unless a line says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.tables.transposes import MOST_NARROW_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Thresholds in bytes, but for numbers of things.

    Attributes
    ----------
    streamed_bytes
        Larger destinations are written past the cache: nobody finds them there again.
    piece_bytes
        Longer runs are cut, so that threads share them and a task ends soon.
    stream_piece_bytes
        The same where a piece has two ends in every row, which cost partial lines.
    task_chunks, task_bytes
        A task of a stream takes up to so many chunks, of so many bytes: its table of offsets stays in L1.
    gathered_run_bytes
        Shorter runs that are adjacent in the destination are batched before writing. 511-byte runs gained: f32
        [1741,1753,11] with its outer dimensions swapped went from 16 to 36.
    gathered_chunk_bytes, least_gathered_runs
        How much is batched: 1 KiB, and at least 4 runs. 2 KiB was slower, since more rows are read at once.
    by_source_bytes
        Longer pieces are written anywhere as fast as in order, so the source is read in order instead.
    by_source_line_bytes
        The same where pieces are whole lines: s8 from T(8,128)(4,1) went from 22 to 40 with 128 instead of 256.
    row_bytes, least_row_bytes
        How far along its rows a task of a transpose reads, and the least where more tasks are needed.
    column_bytes, aligned_column_bytes
        How many columns it has. Where their lines do not begin together, rows are read a second time for the next
        lines, and had better still be in the cache.
    least_tasks
        Fewer tasks than this leave threads idle at the end.
    narrow_columns, narrow_row_bytes
        A transpose of so few columns, of rows so long, reads one stream: f32 NHWC to NCHW went from 19 to 37.
    small_call_bytes
        Smaller calls stay on the caller's thread: two threads were slower than one at a few MiB.
    share_bytes
        A thread takes tasks of so many bytes at a time. 1 MiB left threads idle at the end of calls of some MiB.
    looked_up_slots
        Slots that are looked up at a time: their indices stay in L2. Not measured.
    """

    streamed_bytes: int = 8 << 20
    piece_bytes: int = 64 << 10
    stream_piece_bytes: int = 1 << 20
    task_chunks: int = 1024
    task_bytes: int = 256 << 10
    gathered_run_bytes: int = 512
    gathered_chunk_bytes: int = 1024
    least_gathered_runs: int = 4
    by_source_bytes: int = 256
    by_source_line_bytes: int = 128
    row_bytes: int = 4096
    least_row_bytes: int = 512
    column_bytes: int = 8192
    aligned_column_bytes: int = 32768
    least_tasks: int = 16
    narrow_columns: int = MOST_NARROW_COLUMNS
    narrow_row_bytes: int = 512
    small_call_bytes: int = 4 << 20
    share_bytes: int = 256 << 10
    looked_up_slots: int = 1 << 15


#: What is used unless a caller says otherwise.
TUNING = Tuning()
