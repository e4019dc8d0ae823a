"""Choice of GPU kernels, tiles and chunks for loop nests, as plain numbers."""
