"""The cache line, what memory moves at a time and a kernel writes whole wherever it can; how many of them L2 keeps."""

#: Bytes of a cache line, and of the widest vector that kernels use.
LINE_BYTES = 64

#: Bytes of a lane: what the vectors of every machine permute within.
LANE_BYTES = 16

#: Sets of an L2 cache, and the lines that each keeps: 1 MiB, the least of the processors that kernels are made for.
L2_SETS, L2_WAYS = 1024, 16

#: The same of an L1 cache: 48 KiB.
L1_SETS, L1_WAYS = 64, 12
