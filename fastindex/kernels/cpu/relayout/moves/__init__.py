"""A module for each kernel of a pass; what two of them share is in `lines/`."""
