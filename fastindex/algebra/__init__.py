"""What layouts do to indices, as numbers: digits, loop nests, boxes and strided runs. No arrays and no kernels."""
