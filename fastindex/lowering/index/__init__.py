"""Index programs: coordinates to slots and back, as sums of floor divisions; no loops over memory, no plans."""
