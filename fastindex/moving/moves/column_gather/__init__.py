"""Column gathers: blocks take a column each of the same rows of the source."""
