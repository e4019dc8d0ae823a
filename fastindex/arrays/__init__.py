"""What callers hand in, checked once and described as plain data."""
