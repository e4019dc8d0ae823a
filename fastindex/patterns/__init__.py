"""Patterns and named formats: splits and merges of dimensions as text, tables and coordinates; no arrays."""
