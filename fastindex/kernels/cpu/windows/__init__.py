"""Kernels of windows; what runs a program once is in `index/`."""
