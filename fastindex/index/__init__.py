"""Index functions and their programs: coordinates to slots, tiles and back, by NumPy or kernels, and over windows."""
