"""What callers hand in, checked once. Nothing here runs a kernel."""
