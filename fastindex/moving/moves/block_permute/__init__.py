"""Block permutes: each vector of the destination is a byte permutation of vectors of the source."""
