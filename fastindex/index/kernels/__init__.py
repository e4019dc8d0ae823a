"""Kernels of index programs and of windows."""
