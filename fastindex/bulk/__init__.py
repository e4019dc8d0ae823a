"""The public functions that touch data. Each checks, plans and hands over; loops are elsewhere."""
