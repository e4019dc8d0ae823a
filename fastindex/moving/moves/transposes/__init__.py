"""Transposes: neighbours in the source go to different rows of the destination."""
