"""Kernels of paged caches: slot mappings, runs of a transfer, and passes over pages."""
