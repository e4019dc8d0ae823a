"""Runs of elements converted to another type, box by box."""
