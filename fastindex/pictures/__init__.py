"""Scenes and how they are drawn, from programs and advice made in the folders below."""
