"""The instructions of HLO modules that move data because of layouts: where, why, how much. Text is read, never compiled."""
