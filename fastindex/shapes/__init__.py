"""What a shape is: frozen values, their text, their protos. No arrays, no kernels."""
