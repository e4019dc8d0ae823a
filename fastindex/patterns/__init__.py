"""Patterns and named formats: what splits and merges dimensions, as text, tables and coordinates; no arrays."""
