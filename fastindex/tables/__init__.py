"""The page on which plans and kernels agree: what number tables hold, and in which place. NumPy only, no layouts."""
