"""The live page: a small server for this machine only."""
