"""Parse numbers in untrusted text."""

from __future__ import annotations

from fastindex.core.integers import INT64_MAX


def integer(text: str | bytes) -> int:
    """Return a non-negative integer; 0 if it exceeds int64 or is too long for Python to parse.

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
    """Return a decimal number of units, rounded to an integer; 0 if it exceeds int64.

    Examples
    --------
    >>> rounded("1.5", 1024), rounded("9" * 400, 1)
    (1536, 0)
    """
    value = float(text) * unit
    return round(value) if value <= INT64_MAX else 0
