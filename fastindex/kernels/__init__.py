"""Loops that see numbers, for CPUs and GPUs. No shapes, no layouts, no checks of arguments."""
