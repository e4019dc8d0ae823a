"""Blocks of the destination, written by block permutes or by column gathers, whichever costs less."""
