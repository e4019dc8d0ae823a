"""Kernels for GPUs. `device` alone imports `numba.cuda`."""
