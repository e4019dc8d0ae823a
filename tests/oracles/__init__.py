"""Independent references: nothing here imports what it checks."""
