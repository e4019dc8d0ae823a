"""From loops to launches: kernels, tiles and chunks for GPUs, as numbers."""
