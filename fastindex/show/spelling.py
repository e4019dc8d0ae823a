"""Formatting of numbers and tiles in sentences, reports and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastindex.core.tiles import tile_text


def bytes_text(nbytes: int) -> str:
    """Format a number of bytes with a suitable unit.

    Examples
    --------
    >>> bytes_text(96), bytes_text(1536), bytes_text(3 << 30)
    ('96 B', '1.5 KiB', '3.0 GiB')
    """
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size) < 1024 or unit == "PiB":
            break
        size /= 1024
    return f"{nbytes} B" if unit == "B" else f"{size:,.1f} {unit}"


def duration_text(nanoseconds: int) -> str:
    """Format a duration with a unit and three significant digits.

    Examples
    --------
    >>> duration_text(812), duration_text(1_234_567), duration_text(59_999_999_999)
    ('812 ns', '1.23 ms', '60.0 s')
    """
    number, unit = float(nanoseconds), "ns"
    for unit in ("ns", "us", "ms", "s"):
        if number < 999.5 or unit == "s":
            break
        number /= 1000
    digits = 0 if unit == "ns" or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:,.{digits}f} {unit}"


def times_text(ratio: float) -> str:
    """Format a ratio as "... times".

    Examples
    --------
    >>> times_text(42.67), times_text(1.024), times_text(8)
    ('42.7 times', '1.024 times', '8 times')
    """
    if ratio == round(ratio):
        return f"{ratio:.0f} times"
    return f"{ratio:.1f} times" if ratio >= 2 else f"{ratio:.4g} times"


def tiles_text(tiles: Iterable[Sequence[int]]) -> str:
    """Return tiles as XLA writes them.

    Examples
    --------
    >>> tiles_text(((8, 128), (2, 1)))
    'T(8,128)(2,1)'
    """
    return "T" + "".join(map(tile_text, tiles))


def listed(parts: Iterable[str]) -> str:
    """Join parts with commas and "and".

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    *first, last = list(parts) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def aligned(rows: Sequence[Sequence[object]], alignments: str) -> list[str]:
    """Return rows as lines with columns as wide as their longest entry, each aligned by "<" or ">".

    Examples
    --------
    >>> aligned([("a", 1), ("bcd", 100)], "<>")
    ['a      1', 'bcd  100']
    """
    widths = [max(len(str(entry)) for entry in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{entry!s:{side}{width}}" for entry, side, width in zip(row, alignments, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


# Control characters except newline and tab.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    r"""Return untrusted text with control characters escaped, because a terminal would interpret them.

    Examples
    --------
    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return text.translate(_CONTROLS)
