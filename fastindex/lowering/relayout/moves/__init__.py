"""Ways to move: passes for a problem, each with its counts; no choice among ways."""
