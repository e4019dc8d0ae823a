"""The list of candidates and the choice among them; no geometry of passes."""
