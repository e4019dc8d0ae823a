"""Values of a program, the buffers that they share, and the memory in use over time."""
