"""Relayouts: the problem, the candidate passes, the choice among them, and their execution."""
