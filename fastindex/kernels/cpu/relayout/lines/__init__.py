"""Cache lines, vectors and lanes that several moves are made of; no kernel of a pass."""
