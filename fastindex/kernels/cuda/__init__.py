"""Kernels for GPUs. `device` alone imports `numba.cuda`; queues and arrays are elsewhere."""
