"""Ways to move: in each folder the plan, the numbers that plan and kernel agree on, and the kernel.

A new way joins `KERNEL_MODULES`, and `CANDIDATES` in `moving.choice` if it is a candidate on its own.
"""

from __future__ import annotations

#: The modules of kernels in this folder, those that take longest to compile first: `fastindex warmup` goes by it.
KERNEL_MODULES = (
    "transposes.kernel",
    "streams.interleave_kernel",
    "streams.deinterleave_kernel",
    "digit_swaps.kernel",
    "block_permute.kernel",
    "column_gather.kernel",
    "casts.kernel",
    "streams.packed_runs_kernel",
    "boxes.kernel",
    "streams.kernel",
    "elements.kernel",
    "gathers.kernel",
    "nibble_pairs.kernel",
)
