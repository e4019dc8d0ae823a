"""Choice of GPU kernels and tiles for loop nests, as plain numbers."""
