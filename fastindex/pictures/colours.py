"""The colours of pictures and pages, for light and dark backgrounds."""

from __future__ import annotations

#: Neighbouring tiles get different ones.
LIGHT_TILES = ("#a6cee3", "#fdcb8f", "#b8df9b", "#f4b3ae", "#cdb9e4", "#fbe88a", "#93d8cd", "#dcc0a4")
DARK_TILES = ("#2f6283", "#8a5c1f", "#41702c", "#8b4249", "#5f4a88", "#766a1c", "#1f6f66", "#6d523a")
LIGHT = {"paper": "#ffffff", "ink": "#1f2328", "faint": "#59636e", "padding": "#d4d7db", "edge": "#1f2328"}
DARK = {"paper": "#0d1117", "ink": "#f0f6fc", "faint": "#9198a1", "padding": "#3d444d", "edge": "#f0f6fc"}
#: The edges of tiles within tiles.
LIGHT_LEVELS = ("#d1242f", "#0550ae")
DARK_LEVELS = ("#ff7b72", "#79c0ff")
#: Causes of padding: Okabe and Ito's colours, which colour-blind readers can tell apart. Each also has a pattern.
PADDING_CAUSES = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00")
