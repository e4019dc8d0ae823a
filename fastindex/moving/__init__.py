"""Relayouts: what has to move, the passes that move it, the choice among them, and how they run."""
