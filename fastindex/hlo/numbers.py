"""Numbers in text that cannot be trusted."""

from __future__ import annotations

from fastindex.core.integers import INT64_MAX


def integer(text: str | bytes) -> int:
    """Return a number of at least 0, or 0 if no program has it: beyond int64, or too long for Python to read.

    Examples
    --------
    >>> integer("17"), integer(b"3"), integer("9" * 5000)
    (17, 3, 0)
    """
    try:
        value = int(text)
    except ValueError:
        return 0
    return value if value <= INT64_MAX else 0


def rounded(text: str, unit: int) -> int:
    """Return a decimal number of units as an integer, or 0 for one beyond int64.

    Examples
    --------
    >>> rounded("1.5", 1024), rounded("9" * 400, 1)
    (1536, 0)
    """
    value = float(text) * unit
    return round(value) if value <= INT64_MAX else 0
