"""The table of counts, with the lines of the page on reliability: several rows of the parts each."""

from __future__ import annotations

from typing import Any

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"

_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
#: Lines of the table, and the beginnings of the names of their rows; a process that dies counts under its part's name.
LINES: dict[str, tuple[str, ...]] = {
    "texts of shapes, layouts and shardings, damaged": ("texts",),
    "protos of shapes and shardings, damaged": ("protos of ",),
    "pieces of HLO, of other dumps and messages, damaged": ("pieces of ", "hlo_pieces"),
    "modules of HLO, damaged in their structure": ("modules of HLO",),
    "questions about divided arrays, subgroups of all kinds": ("divided arrays", "divisions"),
    "metadata of Zarr stores, damaged": ("metadata of Zarr stores",),
    "relayouts between guard pages, random layouts": ("relayouts between fenced pages", "layouts"),
    "indices, `pack`, `unpack` between guard pages": ("indices, pack and unpack between fenced pages",),
    "SIGKILL, SIGTERM, SIGINT during file jobs": (*(f"{name} during file jobs" for name in _SIGNALS), "signals"),
    "the same during jobs on Zarr stores": (*(f"{name} during jobs on Zarr stores" for name in _SIGNALS), "stores"),
    "SIGKILL at calls of jobs on checkpoints": ("SIGKILL at calls of checkpoint jobs", "checkpoints"),
    "headers and indices of checkpoints and GGUF files, damaged": (
        "headers of checkpoints",
        "indices of checkpoints",
        "headers of GGUF",
    ),
    "Dask workers killed in the middle of a job": ("Dask workers", "workers"),
    "full disks, limits, failing calls under file jobs": (
        "full disks",
        "limits of file sizes",
        "failing calls under",
        "disks",
    ),
    "every call of file jobs failing, interrupted or half done": ("failing calls one by one", "every_call"),
    "sources that change or shrink while file jobs read": ("sources",),
    "calls from eight threads at once": ("calls from eight threads", "threads"),
    "children forked and spawned under load": ("children ", "forks"),
    "calls after interrupted first ones": ("first calls after", "interrupts"),
    "long calls interrupted": ("long calls that",),
    "processes that end while daemon threads are in calls": ("processes that end", "exits"),
    "texts, HLO and layouts with `PYTHONMALLOC=debug`": ("PYTHONMALLOC=debug: ", "checked_memory"),
    "layouts through the kernels in Valgrind": ("Valgrind: ", "valgrind"),
}


def markdown(content: dict[str, Any]) -> str:
    """Return the totals as a sentence and a table; rows that no line has stand for themselves."""
    lines = {line: [0, 0, 0] for line in LINES}
    for name, row in sorted(content["rows"].items()):
        counts = lines.setdefault(line_of(name) or name, [0, 0, 0])
        for place, kind in enumerate(("runs", "refused", "findings")):
            counts[place] += row[kind]
    rows = [
        f"| {line} | {runs:,} | {refused:,} | {findings:,} |"
        for line, (runs, refused, findings) in lines.items()
        if runs or findings
    ]
    made = f"In {content['minutes']:.0f} minutes of one process, until {content['last']}, on {content['machine']}:"
    return "\n".join([made, "", "| tried | runs | rejected as expected | faults found |", "|---|--:|--:|--:|", *rows])


def line_of(name: str) -> str | None:
    """Return the line of the table to which a row belongs."""
    return next((line for line, beginnings in LINES.items() if name.startswith(beginnings)), None)


def with_table(page: str, content: dict[str, Any]) -> str:
    """Return a page with the table between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{markdown(content)}\n\n{END}{after}"
