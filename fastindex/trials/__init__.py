"""Programs compiled in several variants of their layouts, and compared. What a compiled text says is read by `hlo`."""
