"""The definition of a tiled layout over plain sizes, and proofs by digits. It knows no `Shape`."""
