"""Ways to move data, a folder each: its planner, its kernel, or both."""
