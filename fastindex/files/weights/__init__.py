"""Checkpoints of weights, laid out for a device: their files, rules, packing and restoring. No command line."""
