"""A stand-in for CUDA's driver: what the host does for a GPU, tested without one."""
