"""What runs passes: the table that all share, one call per thread, jobs for helping threads."""
