"""The whole-array functions on files, Zarr stores and clusters, in bounded memory."""
