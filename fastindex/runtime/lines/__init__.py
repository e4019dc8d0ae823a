"""Subroutines of kernels: memory by address, vectors and cache lines in registers."""
