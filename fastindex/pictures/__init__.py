"""Scenes and how they are drawn. What a slot is comes from elsewhere."""
