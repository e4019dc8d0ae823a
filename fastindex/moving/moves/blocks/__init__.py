"""Blocks of the destination, written by permutes or by column gathers, whichever costs less."""
