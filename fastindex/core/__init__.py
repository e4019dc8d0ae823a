"""Shapes and layouts as immutable values: element types, tiles, text, protos, other libraries' layouts."""
