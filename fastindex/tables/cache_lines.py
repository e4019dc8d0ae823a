"""The cache line: what memory moves at a time, and a kernel writes whole wherever it can."""

from __future__ import annotations

#: Bytes of a cache line, and of the widest vector that kernels use.
LINE_BYTES = 64

#: Bytes of a lane: what the vectors of every machine permute within.
LANE_BYTES = 16
