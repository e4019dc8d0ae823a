"""The sweep as a heat map, a table of its slowest cells, and a list of all that miss the least, with the reason."""

from __future__ import annotations

import itertools
import statistics
from xml.sax.saxutils import escape

from benchmarks.report import Row, table
from benchmarks.sweep_cells import CHAINS, DIRECTIONS, MINORS, TYPES, Cell, every_cell

BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"

#: What no cell, and what at most a tenth of them should be below; what half of them should reach.
LEAST, SELDOM_BELOW, MEDIAN = 0.3, 0.5, 0.85
_WORST = 20

# Fractions and their colours; between them, colours are mixed.
_SCALE = (
    (0.0, (165, 0, 38)),
    (0.3, (244, 109, 67)),
    (0.5, (254, 224, 139)),
    (0.85, (102, 189, 99)),
    (1.2, (0, 104, 55)),
)
_LEFT, _TOP, _CELL, _GAP = 190, 88, 14, 10
_HEAD = ["source", "destination", "GB/s", "copy", "of copy", "its lines", "times as long", "kernel"]


def markdown(results: Row, rows: dict[str, Row]) -> str:
    """Where and when, the figures that count, and the slowest cells."""
    fractions = sorted(row["fraction_of_copy"] for row in rows.values())
    plans = sorted(row["plan_microseconds"] for row in rows.values())
    machine, every = results["machine"], sum(1 for _ in every_cell())
    below = {limit: sum(fraction < limit for fraction in fractions) for limit in (LEAST, SELDOM_BELOW)}
    parts = [
        f"{results['date']}, {machine['processor']}, {machine['processors']} processors, {results['threads']} threads; "
        f"{len(rows)} of {every} cells.",
        f"Fraction of copy speed: median {statistics.median(fractions):.2f} (target {MEDIAN}), "
        f"a tenth below {fractions[len(fractions) // 10]:.2f} (target {SELDOM_BELOW}), least {fractions[0]:.2f} "
        f"(target {LEAST}); {below[LEAST]} cells below {LEAST}, {below[SELDOM_BELOW]} below {SELDOM_BELOW}.",
        beside_lines(list(rows.values())),
        table(["of copy", "cells", "median", "its lines", "below 0.3", "of these, its lines too"], by_class(rows)),
        f"A plan takes {statistics.median(plans):.0f} us, the longest {plans[-1]:.0f} us.",
        f"The slowest {min(_WORST, len(rows))}:",
        table(_HEAD, [line(key, rows[key]) for key in by_speed(rows)[:_WORST]]),
    ]
    return "\n\n".join(parts) + "\n"


def beside_lines(rows: list[Row]) -> str:
    """What the cache lines that a cell touches allow, and how much of that is reached."""
    limits = sorted(row["lines_of_copy"] for row in rows)
    reached = sorted(row["fraction_of_copy"] / row["lines_of_copy"] for row in rows)
    below = [row for row in rows if row["fraction_of_copy"] < LEAST]
    sparse = sum(reason(row) == "memory" for row in below)
    return (
        f"Reading the same lines and writing as many, and nothing else: median {statistics.median(limits):.2f} of "
        f"copy, {sum(limit < LEAST for limit in limits)} cells below {LEAST}. Relayouts reach "
        f"{statistics.median(reached):.2f} of that in the median, and all but a tenth "
        f"{reached[len(reached) // 10]:.2f}. Of the {len(below)} cells below {LEAST} of copy, {sparse} are so because "
        f"their lines alone are: [all by name](results/sweep_exceptions.md)."
    )


def by_class(rows: dict[str, Row]) -> list[list[str]]:
    """A line for packed elements, whole bytes and what has no tiles, to tiles and from them."""
    classes: dict[str, list[Row]] = {}
    for key, row in rows.items():
        cell = Cell.of(key)
        name = f"{'4 bits' if cell.width == '4 bits' else 'whole bytes'}, {cell.direction}"
        classes.setdefault("no tiles" if cell.chain == "none" else name, []).append(row)
    lines = []
    for name, members in sorted(classes.items()):
        below = [row for row in members if row["fraction_of_copy"] < LEAST]
        medians = (statistics.median(row[field] for row in members) for field in ("fraction_of_copy", "lines_of_copy"))
        counts = len(below), sum(reason(row) == "memory" for row in below)
        lines.append([name, str(len(members)), *(f"{one:.2f}" for one in medians), *map(str, counts)])
    return lines


def exceptions(results: Row, rows: dict[str, Row]) -> str:
    """Every cell below the least, with what moves it and the reason."""
    names = [key for key in by_speed(rows) if rows[key]["fraction_of_copy"] < LEAST]
    lines = [[*line(key, rows[key]), reason(rows[key])] for key in names]
    return (
        f"# Cells of the sweep below {LEAST} of copy\n\n{results['date']}, {results['machine']['processor']}, "
        f"{results['threads']} threads; {len(names)} of {len(rows)} cells. Written by `sweep.py --update-readme`.\n\n"
        f"Its lines: reading the same cache lines and writing as many, and nothing else, as a fraction of a copy. The "
        f"reason is memory where that is below {LEAST} too.\n\n" + table([*_HEAD, "reason"], lines) + "\n"
    )


def reason(row: Row) -> str:
    """Why a cell is below the least: its lines alone are, or else what the kernel does with them."""
    return "memory" if row["lines_of_copy"] < LEAST else "kernel"


def by_speed(rows: dict[str, Row]) -> list[str]:
    return sorted(rows, key=lambda key: rows[key]["fraction_of_copy"])


def line(key: str, row: Row) -> list[str]:
    return [
        *(f"`{shape}`" for shape in Cell.of(key).shapes),
        f"{row['gigabytes_per_second']:.1f}",
        f"{row['copy']:.1f}",
        f"{row['fraction_of_copy']:.2f}",
        f"{row['lines_of_copy']:.2f}",
        f"{row['lines_of_copy'] / row['fraction_of_copy']:.1f}",
        ", ".join(row["kernels"]),
    ]


def heat_map(rows: dict[str, Row]) -> str:
    """A line for each chain and direction, a column for each width and minor size: the slowest of what is measured."""
    places: dict[tuple[str, str, str, int], list[tuple[float, str]]] = {}
    for key, row in rows.items():
        cell = Cell.of(key)
        place = cell.chain, cell.direction, cell.width, cell.minor
        places.setdefault(place, []).append((row["fraction_of_copy"], key))
    block = len(MINORS) * _CELL + _GAP
    width, height = _LEFT + len(TYPES) * block + 20, _TOP + len(CHAINS) * (2 * _CELL + 4) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<text x="10" y="20" font-size="14">Relayout as a fraction of copy speed; '
        "the slowest of all second-minor sizes and orders</text>",
        *legend(),
    ]
    for x, (name, minor) in columns():
        parts.append(f'<text transform="translate({x + _CELL - 4} {_TOP - 4}) rotate(-60)">{minor}</text>')
        if minor == MINORS[0]:
            parts.append(f'<text x="{x}" y="{_TOP - 34}" font-size="12">{name}</text>')
    for line, chain in enumerate(CHAINS):
        for step, direction in enumerate(DIRECTIONS):
            y = _TOP + line * (2 * _CELL + 4) + step * _CELL
            parts.append(
                f'<text x="{_LEFT - 6}" y="{y + _CELL - 4}" text-anchor="end">{escape(chain)}, {direction}</text>'
            )
            for x, (name, minor) in columns():
                parts.append(square(x, y, sorted(places.get((chain, direction, name, minor), []))))
    return "\n".join([*parts, "</svg>"]) + "\n"


def columns() -> list[tuple[int, tuple[str, int]]]:
    block = len(MINORS) * _CELL + _GAP
    return [
        (_LEFT + b * block + k * _CELL, (name, minor)) for b, name in enumerate(TYPES) for k, minor in enumerate(MINORS)
    ]


def legend() -> list[str]:
    parts = []
    for k, (fraction, _) in enumerate(_SCALE):
        x = _LEFT + 70 * k
        parts.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{colour(fraction)}"/>')
        parts.append(f'<text x="{x + 14}" y="37">{fraction}</text>')
    return parts


def square(x: int, y: int, measured: list[tuple[float, str]]) -> str:
    place = f'x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}"'
    if not measured:
        return f'<rect {place} fill="#f4f4f4"/>'
    title = "; ".join(f"{fraction:.2f} {key}" for fraction, key in measured[:6])
    return f'<rect {place} fill="{colour(measured[0][0])}"><title>{escape(title)}</title></rect>'


def colour(fraction: float) -> str:
    fraction = min(max(fraction, _SCALE[0][0]), _SCALE[-1][0])
    for (low, first), (high, second) in itertools.pairwise(_SCALE):
        if fraction <= high:
            part = (fraction - low) / (high - low)
            mixed = (round(a + (b - a) * part) for a, b in zip(first, second, strict=True))
            return "#" + "".join(f"{value:02x}" for value in mixed)
    raise AssertionError(fraction)
