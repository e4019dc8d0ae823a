"""The cache line: what memory moves at a time, and what a kernel writes whole wherever it can."""

#: Bytes of a cache line, and of the widest vector that kernels use.
LINE_BYTES = 64
