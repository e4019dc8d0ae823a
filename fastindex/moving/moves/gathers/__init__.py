"""Gathers: contiguous pieces of the destination, written element by element."""
