"""Kernels of index programs, block by block; no relayouts."""
