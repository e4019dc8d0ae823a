"""Relayouts box by box: cache blocking with a packing buffer, read to scratch memory and written from there."""
