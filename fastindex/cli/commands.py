"""All commands: each of these modules adds its own to the command line."""

from fastindex.cli import checkpoints, indexing, machine, moving, paging, reporting, showing
from fastindex.cli.group import main

__all__ = ["checkpoints", "indexing", "machine", "main", "moving", "paging", "reporting", "showing"]
