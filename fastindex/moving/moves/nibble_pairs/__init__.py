"""Transposes of packed elements of four bits: nibbles of pairs of rows are transposed first, then bytes."""
