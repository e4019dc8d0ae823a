"""The benchmarks' cases against the slow reference, and every benchmark once at toy size."""

from __future__ import annotations

import importlib
import json
import math
import random
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from benchmarks import (
    bench_first_call,
    bench_history,
    bench_import,
    bench_index,
    bench_paged,
    bench_plan,
    bench_relayout,
    bench_windows,
    cases,
    copy_ceiling,
    fit_costs,
    index_rows,
    peers,
    regret,
    regret_cells,
    relayout_rows,
    report,
)
from tests.cases.hangs import HANG_SECONDS
from tests.oracles import reference
from tests.oracles.comparison import clear_unused_bits, differences_in_packing, differences_in_relayout

MODULES = (
    bench_relayout,
    bench_index,
    bench_plan,
    bench_import,
    bench_first_call,
    bench_history,
    bench_paged,
    bench_windows,
)
RELAYOUTS = pytest.mark.parametrize("case", cases.RELAYOUT_CASES, ids=lambda case: case.name)
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _without_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX starts threads that other tests must not fork with; it has a separate process below."""
    monkeypatch.setattr(peers, "xla_rivals", lambda problem: {})


@pytest.mark.in_turn(seconds=3)
def test_xla_agrees_at_toy_size() -> None:
    program = """
from benchmarks import cases, relayout_rows
for case in cases.RELAYOUT_CASES:
    found = relayout_rows.prepared(case.source("toy"), case.destination("toy"), 1)
    assert "XLA jit" in found or case.element_type == "s4", case.name
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=HANG_SECONDS)


@RELAYOUTS
def test_a_case_at_toy_size(case: cases.RelayoutCase) -> None:
    source, destination = reference.parse(case.source("toy")), reference.parse(case.destination("toy"))
    assert differences_in_packing(source, 1) == []
    assert differences_in_relayout(source, destination, 2) == []


@RELAYOUTS
def test_a_case_is_large_and_its_prime_twin_about_as_large(case: cases.RelayoutCase) -> None:
    sizes = [fi.Shape.parse(case.source(size)).logical_nbytes for size in ("round", "prime")]
    assert min(sizes) >= 56 << 20
    assert 0.9 < sizes[0] / sizes[1] < 1.1
    assert case.target in cases.TARGETS.values()


def test_names_are_unique() -> None:
    for listed in (cases.RELAYOUT_CASES, cases.INDEX_CASES):
        assert len({case.name for case in listed}) == len(listed)


@RELAYOUTS
def test_rivals_agree_at_toy_size(case: cases.RelayoutCase) -> None:
    """Every installed rival gives what fastindex and the slow reference give."""
    source, destination = case.source("toy"), case.destination("toy")
    found = relayout_rows.prepared(source, destination, 1)
    assert {"fastindex", "NumPy"} <= set(found)
    buffer = relayout_rows.source_buffer(source)
    clean = clear_unused_bits(reference.parse(source), bytes(buffer))
    expected = reference.relayout(clean, reference.parse(source), reference.parse(destination))
    for name, rival in found.items():
        rival.run()
        assert relayout_rows.as_bytes(rival.result()).tobytes() == expected, name


@pytest.mark.parametrize("nbytes", relayout_rows.SWEEP_BYTES)
@RELAYOUTS
def test_scaled_cases_have_the_size_asked_for(case: cases.RelayoutCase, nbytes: int) -> None:
    source, destination = (fi.Shape.parse(text) for text in case.scaled(nbytes // 4))
    assert source.dimensions == destination.dimensions
    assert 0.3 < 4 * source.element_count / nbytes < 3


@pytest.mark.parametrize("case", cases.INDEX_CASES, ids=lambda case: case.name)
def test_numpy_expressions_of_the_index_cases(case: cases.IndexCase) -> None:
    """The rival of the index benchmarks is right itself."""
    shape, expected = fi.Shape.parse(case.shape), reference.parse(case.shape)
    indices = index_rows.random_indices(shape, 100)
    slots = index_rows.numpy_linear_index(shape, indices)
    columns = zip(*(column.tolist() for column in indices), strict=True)
    assert slots.tolist() == [reference.linear_index(expected, index) for index in columns]
    assert all(map(np.array_equal, index_rows.numpy_multi_index(shape, slots), indices))
    assert set(index_rows.prepared(case, 100, 1)) == {"linear_index", "multi_index"}


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("name", bench_windows.CASES)
def test_the_rivals_of_the_windows_agree(name: str) -> None:
    running = small(bench_windows.Windows())
    running.setup(name, 1)
    found = running.out.copy()
    expected = index_rows.numpy_linear_index(running.shape, np.ix_(*running.axes))
    np.testing.assert_array_equal(found, expected)
    running.out[...] = 0
    running.general()
    np.testing.assert_array_equal(running.out, expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_ceiling_of_the_windows_writes_every_byte(threads: int) -> None:
    memory = bench_windows.touched_bytes(1 << 16)
    for name, write in bench_windows.writes(memory, threads).items():
        memory[:] = 0
        write()
        assert memory.all(), name


@pytest.mark.parametrize("threads", [1, 2])
def test_the_copies_of_the_ceiling_copy(threads: int) -> None:
    runs = copy_ceiling.copies((1 << 16) + 64, threads)
    assert set(runs) == {"memmove", "non-temporal copy"}
    for run in runs.values():
        run()


def benchmarks_of(module: Any) -> list[Any]:
    """(class, method, one combination of parameters) for all of asv's benchmarks in a module."""
    found = []
    for value in vars(module).values():
        if not isinstance(value, type) or value.__module__ != module.__name__ or value.__name__.startswith("_"):
            continue
        parameters = tuple(options[0] for options in getattr(value, "params", ()))
        names = [name for name in dir(value) if re.match(r"(time|track|peakmem)_", name)]
        for name in names:
            # From an empty cache: it compiles, which takes many seconds.
            marks = [pytest.mark.sweep] if name == "track_cold" else []
            found.append(pytest.param(value, name, parameters, id=f"{value.__name__}.{name}", marks=marks))
    return found


def small(benchmark: Any) -> Any:
    """The benchmark with everything that makes it long cut down."""
    values = {"rounds": 1, "count": 1000, "longest": 150, "seconds": 0, "ceiling_nbytes": 1 << 16}
    for name, value in (values | {"slot_count": 1 << 12, "run_count": 1 << 14, "moved_nbytes": 1 << 21}).items():
        if hasattr(benchmark, name):
            setattr(benchmark, name, value)
    return benchmark


@pytest.mark.in_turn(seconds=0.06)
@pytest.mark.parametrize(
    ("benchmark", "method", "parameters"),
    [parameters for module in MODULES for parameters in benchmarks_of(module)],
)
def test_every_benchmark_runs(benchmark: Any, method: str, parameters: tuple[Any, ...]) -> None:
    if "size" in getattr(benchmark, "param_names", ()):
        at = benchmark.param_names.index("size")
        parameters = (*parameters[:at], "toy", *parameters[at + 1 :])
    running = small(benchmark())
    if hasattr(running, "setup"):
        running.setup(*parameters)
    result = getattr(running, method)(*parameters)
    assert result is None or math.isfinite(result)


def test_every_module_of_the_suite_imports() -> None:
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        importlib.import_module(f"benchmarks.{path.stem}")
    assert json.loads((ROOT / "asv.conf.json").read_text())["benchmark_dir"] == "benchmarks"


def rows_at_toy_size() -> dict[str, Any]:
    ceiling = copy_ceiling.copies(1 << 16, 1)
    common = {"threads": 1, "rounds": 1, "ceiling": ceiling, "ceiling_nbytes": 1 << 16}
    return {
        "date": "2000-01-01",
        "machine": {"processor": "a <b>", "processors": 2, "system": "Linux", "python": "3"},
        "versions": {"numpy": "2"},
        "options": {"rounds": 1},
        "rows": {
            "relayout": list(relayout_rows.case_rows(relayout_rows.named("u8"), ("toy",), **common)),
            "sweep": list(relayout_rows.sweep_rows(relayout_rows.named("u8"), **common))[:1],
            "index": list(index_rows.index_rows(1000, **common))[:2],
            "drop_ins": list(index_rows.drop_in_rows(1000, 1, 1)),
        },
    }


@pytest.mark.in_turn(seconds=1.1)
def test_the_report_says_it_all(tmp_path: Path) -> None:
    results = rows_at_toy_size()
    json.dumps(results)
    table = report.markdown(results)
    assert table.count("\n| ") == 1 + 1 + 1 + 1 + 1 + 2 + 1 + 3 + 4
    assert "met" in table or "missed" in table
    picture = xml.etree.ElementTree.fromstring(report.plot(results))
    assert picture.tag.endswith("svg")
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "benchmarks" / "README.md").read_text())
    report.update(readme, table)
    report.update(readme, table)
    assert readme.read_text().count(table) == 1
    assert readme.read_text().startswith("# Benchmarks")


def regret_at_toy_size() -> dict[str, Any]:
    cells = regret_cells.drawn(16, 3, 1 << 16)
    assert {cell.kind for cell in cells} == set(regret_cells.CLASSES)
    assert cells == regret_cells.drawn(24, 3, 1 << 16)[:16]
    bench = regret.Bench(1 << 18)
    machine = {"processor": "one", "processors": 1}
    rows = {str(k): bench.row(cell, rounds=1, threads=(1,)) for k, cell in enumerate(cells)}
    return {"seed": 3, "date": "2000-01-01", "machine": machine, "rows": rows}


@pytest.mark.in_turn(seconds=0.9)
def test_the_regret_is_measured_fitted_and_reported(tmp_path: Path) -> None:
    results = json.loads(json.dumps(regret_at_toy_size()))
    rows = results["rows"].values()
    for row in rows:
        for key, times in row["microseconds"].items():
            assert times[row["chosen"][key.split(", ")[1]]] >= min(times.values()) > 0
    text = regret.markdown(results)
    assert "| dumps |" in text
    assert "| loops |" in text
    for name in {name for row in rows for name in row["microseconds"]["1, 0"]}:
        assert all(ratio > 1 for ratio in regret.removal(rows, [name])["all"])
    cases, keys = fit_costs.cases_of([results])
    assert len(keys) == len(cases.times) > 0
    first = np.ones(cases.counts.shape[2])
    assert cases.loss(fit_costs.fitted(cases, first), first) <= cases.loss(first, first)


def test_a_regret_is_that_of_the_choice() -> None:
    found = [("dumps", "slow", {"slow": 3.0, "fast": 1.5}), ("tiles", "fast", {"fast": 1.0, "slow": 9.0})]
    assert regret.regrets(found) == {"all": [2.0, 1.0], "dumps": [2.0], "tiles": [1.0]}
    rows = [
        {"cell": [kind, "", ""], "chosen": {"0": chosen}, "microseconds": {"1, 0": times}}
        for kind, chosen, times in found
    ]
    assert regret.removal(rows, ["fast"]) == {"all": [2.0, 9.0], "dumps": [2.0], "tiles": [9.0]}
    assert regret.removal(rows, ["fast", "slow"]) == {"all": []}


def test_a_wrong_rival_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: one rival's output has one wrong byte."""

    def wrong(problem: Any) -> Any:
        rival = right(problem)

        def result() -> Any:
            spoiled = rival.result().copy()
            spoiled.view(np.uint8)[random.Random(0).randrange(spoiled.nbytes)] ^= 1
            return spoiled

        return type(rival)(rival.run, result)

    right = peers.numpy_rival
    monkeypatch.setattr(peers, "numpy_rival", wrong)
    with pytest.raises(AssertionError, match="wrong result"):
        relayout_rows.prepared("f32[5,7]", "f32[5,7]{0,1}", 1)
