"""Packed elements of four bits, transposed by pairs of rows."""
