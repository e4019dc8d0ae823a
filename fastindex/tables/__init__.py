"""The page on which plans and kernels agree: names of the places in number tables. NumPy only."""
