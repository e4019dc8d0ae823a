"""Layout algebra on plain numbers: digits, loop nests, boxes and strided runs. No arrays and no kernels."""
