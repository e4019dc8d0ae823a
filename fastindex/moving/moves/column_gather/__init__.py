"""Column gathers: each block of the destination is a column of the same rows of the source."""
