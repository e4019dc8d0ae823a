"""Find the instructions of HLO modules that move data because of layouts: which, why, how many bytes."""
