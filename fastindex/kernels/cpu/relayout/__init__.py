"""Kernels of relayouts; they see addresses and tables of passes."""
