"""What a shape is: immutable values, their text and their protos; no array data and no kernels."""
