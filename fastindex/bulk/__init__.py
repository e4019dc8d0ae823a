"""The public functions that move data. Each checks, plans and hands over; loops are elsewhere."""
