"""Launches for GPUs: from loops to kernels, tiles and chunks, as numbers; no CUDA, and nothing for processors."""
