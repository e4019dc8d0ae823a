"""Execution of passes: the table that all kernels share, one native call per thread, jobs for worker threads."""
