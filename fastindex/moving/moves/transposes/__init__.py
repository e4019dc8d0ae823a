"""Transposes: neighbours in the source go to different lines of the destination."""
