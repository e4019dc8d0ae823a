"""HLO modules to reports: which buffers there are, when they live, what padding costs. Text is read, never compiled."""
