"""Pieces of the destination, gathered element by element."""
