"""When a test stops to wait for what may hang."""

from __future__ import annotations

#: What a plain run starts takes two minutes at most on a quiet machine, and more than ten on one that does much else.
HANG_SECONDS = 3600
