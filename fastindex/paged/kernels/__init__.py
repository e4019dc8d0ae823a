"""Kernels of paged caches: slot mappings and runs of pages."""
