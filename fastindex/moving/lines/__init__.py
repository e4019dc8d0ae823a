"""Subroutines that kernels of moves share: lanes, permutations, staged bands, pending lines."""
