"""XLA's shape utilities. Nothing here touches data."""
