"""What runs passes: the table all share, one call per thread, jobs for helpers; no moves of elements."""
