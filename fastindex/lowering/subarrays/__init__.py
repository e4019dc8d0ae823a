"""Subarrays of files and stores: which segments hold one, how to copy one, how large to take it; no passes."""
