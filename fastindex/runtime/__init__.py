"""The machine and what runs on it: caches and processors, threads, and how kernels are compiled and cached."""
