"""A nest of loops as passes: which kernel, in which order, in which blocks."""
