"""What a pass is, what it counts and what that costs; no pass of a particular kind."""
