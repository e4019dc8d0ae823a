"""Relayouts: what has to move, and the passes that processors move it by; numbers only."""
