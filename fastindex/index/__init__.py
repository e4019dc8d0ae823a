"""Index programs: coordinates to slots, tiles and back, by NumPy or by kernels, and over windows."""
