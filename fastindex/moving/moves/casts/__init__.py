"""Casts: runs of elements are converted to another type, box by box."""
