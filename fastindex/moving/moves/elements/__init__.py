"""Strided elements one by one, gathers of slots, and runs of padding."""
