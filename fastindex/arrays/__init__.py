"""Checked arguments as plain data: arrays, buffers, casts, windows and the arguments of index functions."""
