"""From a nest of loops to passes: the choice of kernel, order and blocks."""
