"""Relayouts box by box: read into scratch memory that the cache holds, and written from there."""
