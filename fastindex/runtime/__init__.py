"""What runs, on which machine: caches and processors, threads, kernels and how they are compiled and kept."""
