"""The definition of a tiled layout over plain sizes, and proofs by digits; no `Shape` may appear here."""
