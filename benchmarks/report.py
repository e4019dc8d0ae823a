"""Results as text, as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

Row = dict[str, Any]

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
#: A row that is not slower than its best peer, and one that beats it as the project wants.
LEAST_RATIO, WANTED_RATIO = 1.0, 1.3


def one_line(row: Row) -> str:
    """A row as it is printed while the suite runs."""
    name = f"{row['case']}, {row['size'] if 'size' in row else row['function']}"
    return (
        f"{name:52} {row['gigabytes_per_second']['fastindex']:6.1f} GB/s  "
        f"{row['fraction_of_copy']:.2f} of copy  {row['ratio_to_best_peer']:5.2f}x {row['best_peer']}"
    )


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def markdown(results: Row) -> str:
    """The whole report, without a heading."""
    machine = results["machine"]
    libraries = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    parts = [
        f"{results['date']}, {machine['processor']}, {machine['processors']} processors, "
        f"{machine['system']}, Python {machine['python']}. {libraries}. "
        f"Medians of {results['options']['rounds']}, rivals in turn.",
    ]
    rows = results["rows"]
    for section, build in (
        ("relayout", relayout_table),
        ("sweep", sweep_table),
        ("index", index_table),
        ("drop_ins", drop_in_table),
    ):
        if rows.get(section):
            parts.append(build(rows[section]))
    return "\n\n".join(parts) + "\n"


def table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["--:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def peer_names(rows: list[Row]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row["gigabytes_per_second"]))
    return list(names)


def speeds(row: Row, names: list[str]) -> list[str]:
    found = row["gigabytes_per_second"]
    return [f"{found[name]:.1f}" if name in found else "" for name in names]


def relayout_table(rows: list[Row]) -> str:
    names = peer_names(rows)
    header = ["case, size, threads", *names, "copy", "of copy", "target", "x best peer", f"{WANTED_RATIO}x"]
    lines = [
        [
            f"{row['case']}, {row['size']}, {row['threads']}",
            *speeds(row, names),
            f"{row['copy_ceiling']:.1f}",
            f"{row['fraction_of_copy']:.2f}",
            f"{row['target']} {verdict(row['fraction_of_copy'] >= row['target'])}",
            f"{row['ratio_to_best_peer']:.2f}",
            verdict(row["ratio_to_best_peer"] >= WANTED_RATIO),
        ]
        for row in rows
    ]
    return "Relayout, GB/s of bytes read and written:\n\n" + table(header, lines)


def sweep_table(rows: list[Row]) -> str:
    names = peer_names(rows)
    header = ["case, source bytes, threads", *names, "x best peer", "not slower"]
    lines = [
        [
            f"{row['case']}, {row['size']}, {row['threads']}",
            *speeds(row, names),
            f"{row['ratio_to_best_peer']:.2f}",
            verdict(row["ratio_to_best_peer"] >= LEAST_RATIO),
        ]
        for row in rows
    ]
    return "The same at small sizes, GB/s:\n\n" + table(header, lines)


def index_table(rows: list[Row]) -> str:
    names = peer_names(rows)
    header = ["function, case, threads", *names, "copy", "of copy", "target", "x NumPy", "target"]
    lines = [
        [
            f"{row['function']}, {row['case']}, {row['threads']}",
            *speeds(row, names),
            f"{row['copy_ceiling']:.1f}",
            f"{row['fraction_of_copy']:.2f}",
            f"{row['target']} {verdict(row['fraction_of_copy'] >= row['target'])}",
            f"{row['ratio_to_numpy']:.1f}",
            f"{row['numpy_target']} {verdict(row['ratio_to_numpy'] >= row['numpy_target'])}"
            if row["numpy_target"]
            else "",
        ]
        for row in rows
    ]
    return "Index conversion, GB/s of indices read and written:\n\n" + table(header, lines)


def drop_in_table(rows: list[Row]) -> str:
    header = ["function under NumPy's signature, threads", "x NumPy", "target"]
    lines = [
        [
            f"{row['function']}, {row['threads']}",
            f"{row['ratio_to_numpy']:.1f}",
            f"{row['numpy_target']} {verdict(row['ratio_to_numpy'] >= row['numpy_target'])}"
            if row["numpy_target"]
            else "",
        ]
        for row in rows
    ]
    return "Drop-ins, output allocated by the call:\n\n" + table(header, lines)


def update(readme: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put a table between two marks of the README."""
    before, _, rest = readme.read_text().partition(begin)
    _, _, after = rest.partition(end)
    readme.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


# The plot

LEFT, WIDTH, SPACE, BAR, GAP, TOP = 270, 420, 150, 9, 10, 64
COLOURS = {"fastindex": "#1f6fb2", "best peer": "#b8b8b8"}


def plot(results: Row, title: str | None = None) -> str:
    """Fraction of copy speed for each case, fastindex above its best peer, as SVG."""
    rows = [row for row in results["rows"].get("relayout", []) if row["size"] != "prime"]
    threads = max((row["threads"] for row in rows), default=1)
    rows = [row for row in rows if row["threads"] == threads]
    title = title or f"Relayout as a fraction of copy speed, {threads} thread{'s' if threads > 1 else ''}"
    height = TOP + len(rows) * (2 * BAR + GAP) + 30
    where = f"{results['machine']['processor']}, {results['date']}"
    most = max([1.0, *(row["fraction_of_copy"] for row in rows)])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + SPACE}" height="{height}" '
        f'viewBox="0 0 {LEFT + WIDTH + SPACE} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="10" y="38" fill="#555555">{escape(where)}</text>',
    ]
    for k, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * k
        parts.append(f'<rect x="{x}" y="44" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="53">{name}</text>')
    for tick in range(0, 11, 2):
        x = LEFT + WIDTH * tick / 10 / most
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 26}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{tick / 10:.1f}</text>')
    for k, row in enumerate(rows):
        y = TOP + k * (2 * BAR + GAP) + GAP / 2
        ours = row["fraction_of_copy"]
        peer = ours / row["ratio_to_best_peer"]
        parts.append(f'<text x="{LEFT - 8}" y="{y + BAR + 4}" text-anchor="end">{escape(row["case"])}</text>')
        for step, (fraction, colour) in enumerate(zip((ours, peer), COLOURS.values(), strict=True)):
            length = WIDTH * fraction / most
            top = y + step * BAR
            parts.append(f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR - 1}" fill="{colour}"/>')
        label = f"{ours:.2f}  ({row['best_peer']} {peer:.2f})"
        x = LEFT + WIDTH * max(ours, peer) / most + 5
        place = f'x="{x:.1f}" y="{y + BAR + 4}" font-size="10"'
        parts.append(f"<text {place}>{escape(label)}</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"
