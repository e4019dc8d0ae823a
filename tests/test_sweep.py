"""The sweep over all layouts and the images, at toy size: every cell can be named, measured, checked and drawn."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from benchmarks import (
    copy_ceiling,
    images,
    line_reads,
    line_writes,
    measure,
    own_lines,
    peers,
    sweep,
    sweep_cells,
    sweep_report,
)
from benchmarks.sweep_cells import Cell

MACHINE = {"processor": "a <b>", "processors": 2, "system": "Linux", "python": "3"}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_cells, "CELL_BYTES", 1 << 18)
    monkeypatch.setattr(sweep, "ROUNDS", 1)


def test_cells_are_named_by_their_keys() -> None:
    cells = list(sweep_cells.every_cell())
    assert len({cell.key for cell in cells}) == len(cells)
    assert all(Cell.of(cell.key) == cell for cell in cells[::97])
    assert sweep_cells.sampled(cells, 5, 3) == sweep_cells.sampled(cells, 50, 3)[:5]


def test_the_larger_side_has_about_the_size_asked_for() -> None:
    for cell in sweep_cells.sampled(list(sweep_cells.every_cell()), 300, 0):
        largest = max(shape.nbytes for shape in cell.shapes)
        assert 0.6 < largest / sweep_cells.CELL_BYTES < 1.2, cell


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u8[3,1,5]{2,1,0:T(8,128)}", 3),
        ("f32[3,2,20]{2,1,0:T(8,128)}", 12),
        ("bf16[4,8,128]", 128),
        ("s4[5,1,100]{2,1,0:T(8,128)E(4)}", 5),
    ],
)
def test_lines_with_elements(text: str, expected: int) -> None:
    assert sweep_cells.lines_with_elements(fi.Shape.parse(text)) == expected


@pytest.mark.in_turn(seconds=1.3)
@pytest.mark.usefixtures("toy")
def test_cells_are_measured_and_reported() -> None:
    bench = sweep.Bench(1)
    small = [cell for cell in sweep_cells.every_cell() if cell.minor * cell.second < 100]
    cells = sweep_cells.sampled(small, 8, 5)
    rows = {cell.key: bench.row(cell) for cell in cells}
    assert all(row["fraction_of_copy"] > 0 and row["copy"] > 0 for row in rows.values())
    assert all(row["lines_of_copy"] > 0 and row["kernels"] for row in rows.values())
    results = {"date": "2000-01-01", "machine": MACHINE, "threads": 1, "cells": rows}
    classes = sweep_report.by_class(rows)
    assert sum(int(line[1]) for line in classes) == len(rows)
    assert sweep_report.markdown(results, rows).count("\n| ") == 8 + 2 + len(classes) + 2
    missed = [row for row in rows.values() if row["fraction_of_copy"] < sweep_report.LEAST]
    assert sweep_report.exceptions(results, rows).count("\n| ") == len(missed) + 2
    picture = xml.etree.ElementTree.fromstring(sweep_report.heat_map(rows))
    drawn = [one for one in picture.iter() if one.tag.endswith("title")]
    assert len(drawn) == len({(c.chain, c.direction, c.width, c.minor) for c in cells})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[3,2,5]{2,1,0:T(8,128)}", [64 * major + 8 * second for major in range(3) for second in range(2)]),
        ("f32[2,1,20]{2,1,0:T(8,128)}", [0, 1, 64, 65]),
        ("u8[2,3,50]", [0, 1, 2, 3, 4]),
        ("s4[2,1,129]{2,1,0:T(1,128)E(4)}", [0, 1, 2, 3]),
        ("c128[2,1,5]{2,1,0:T(1024)}", [0, 1, 256, 257]),
    ],
)
def test_numbers_of_lines(text: str, expected: list[int]) -> None:
    assert sweep_cells.numbers_of_lines(fi.Shape.parse(text)).tolist() == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_the_touches_read_the_lines_and_write_the_output(threads: int) -> None:
    memory, lines = measure.random_bytes(1 << 16), np.array([0, 3, 4, 17, 1000], np.int32)
    for run in own_lines.touches(memory, lines, output := measure.aligned_bytes(100 * 64 + 30), threads):
        output[:] = 1
        run()
        assert not output[: 100 * 64].any()
        assert (output[100 * 64 :] == 1).all()
    total = own_lines.kernel()(memory, lines, output, 0, len(lines), 2)
    assert total == memory[lines * 64].sum(dtype=np.uint64)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("width", list(sweep_cells.TYPES))
def test_a_wrong_element_is_noticed(width: str) -> None:
    """Planted: every byte of the destination is another one."""
    cell = Cell("T(8,128)", width, 5, 3, "reversed", "to tiles")
    source, destination = cell.shapes
    given = np.random.default_rng(0).integers(0, 256, source.nbytes, np.uint8)
    output = fi.relayout(sweep.as_buffer(given, source), source, destination)
    sweep.check(cell, sweep.as_buffer(given, source), output)
    output.view(np.uint8)[...] ^= 0x55
    with pytest.raises(AssertionError, match="wrong result"):
        sweep.check(cell, sweep.as_buffer(given, source), output)


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results" / "sweep.json"
    row = {"gigabytes_per_second": 1.0, "copy": 2.0, "fraction_of_copy": 0.5, "plan_microseconds": 1.0}
    results: dict[str, Any] = {"threads": 2, "cells": {"b": row, "a": row}}
    sweep.save(path, results)
    read = json.loads(path.read_text())
    assert read["cells"] == results["cells"]
    assert read["threads"] == 2


def test_images_at_toy_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "IMAGE_BYTES", 1 << 16)
    monkeypatch.setattr(peers, "torch_rival", lambda problem: None)
    copies = copy_ceiling.copies(images.IMAGE_BYTES, 1)
    rows = [images.row(element, 3, direction, 1, copies) for element in images.TYPES for direction in images.LAYOUTS]
    table = images.markdown({"date": "2000-01-01", "machine": MACHINE, "threads": 1, "rows": rows})
    assert table.count("\n| ") == len(images.LAYOUTS) * len(["header", "rule", "3 channels"])
    assert all(f"{one['gigabytes_per_second']['fastindex']:.1f}, " in table for one in rows)


@pytest.mark.in_turn(seconds=2)
def test_reads_of_lines_at_toy_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {
        "STRIDES": (64, 512),
        "ROUNDS": 1,
        "SPAN_BYTES": 1 << 16,
        "ROOM_BYTES": 1 << 17,
        "COPY_BYTES": 1 << 16,
    }.items():
        monkeypatch.setattr(line_reads, name, size)
    memory = measure.random_bytes((1 << 20) + line_reads.FURTHEST_BYTES)
    line_reads.check(memory)
    header, _, *rows = line_reads.markdown(memory, [1]).splitlines()
    assert header == "| one line of every | 64 B | 512 B |"
    assert [row.count("|") for row in rows] == [4, 4]


def test_writes_of_lines_at_toy_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"BLOCKS": (1 << 10, 2 << 10), "STEPS": (1, 2), "ROUNDS": 1, "ROOM_BYTES": 1 << 16}.items():
        monkeypatch.setattr(line_writes, name, size)
    memory = measure.touched_bytes(1 << 16)
    line_writes.check(memory)
    header, _, *rows = line_writes.markdown(memory, [1]).splitlines()
    assert header == "| one line of every, threads | blocks of 1 KiB | blocks of 2 KiB |"
    assert [row.count("|") for row in rows] == [4, 4]
