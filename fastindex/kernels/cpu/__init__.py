"""Kernels for processors. They see addresses and tables; threads and plans are elsewhere."""
