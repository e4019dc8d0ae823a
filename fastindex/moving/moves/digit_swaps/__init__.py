"""Packed elements of four bits whose binary index digits are permuted: a butterfly network."""
