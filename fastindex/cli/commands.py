"""All commands: each of these modules adds its own to the command line."""

from fastindex.cli import indexing, machine, moving, showing
from fastindex.cli.group import main

__all__ = ["indexing", "machine", "main", "moving", "showing"]
