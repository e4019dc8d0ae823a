"""Random legal rewritings of modules, and modules in every print option: the answers are those of jaxlib's own print.

Tests of: hlo.exact_text, hlo.inferred_shapes, hlo.modules, hlo.grammar, hlo.scanner.
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import fastindex as fi
from fastindex.hlo.inferred_shapes import INFERRED
from tests.cases import strategies
from tests.cases.hlo_structures import SMALL
from tests.oracles.hlo_rewritings import Rewriter
from tests.oracles.jaxlib_process import JaxlibProcess

pytest.importorskip("jaxlib")

DATA = Path(__file__).resolve().parents[1] / "data" / "hlo"
_LONGEST = 30_000
OPTIONS = (
    "canonicalize_computations", "canonicalize_instruction_names", "compact_operands", "include_layout_in_shapes",
    "is_in_nested_computation", "print_backend_config", "print_control_dependencies", "print_extra_attributes",
    "print_ids", "print_large_constants", "print_metadata", "print_operand_names", "print_operand_shape",
    "print_percent", "print_program_shape", "print_result_shape",
)  # fmt: skip


@pytest.fixture(scope="module")
def jaxlib() -> Iterator[JaxlibProcess]:
    with JaxlibProcess() as process:
        yield process


@cache
def modules() -> tuple[str, ...]:
    paths = [*DATA.glob("*.txt"), *DATA.glob("programs/*/*after_optimizations.txt"), *DATA.glob("forms/*.hlo")]
    texts = [path.read_text() for path in sorted(paths)]
    texts += [lzma.decompress(path.read_bytes()).decode() for path in sorted(DATA.glob("copies/*.xz"))]
    return tuple(text for text in (*texts, *SMALL) if len(text) < _LONGEST)


def answers(text: str) -> dict[str, Any]:
    report = fi.hlo.report(text)
    copies = fi.hlo.layout_copies(text).rows(all_moves=True)
    return {
        "problems": report.problems,
        "nbytes": (report.total_nbytes, report.total_logical_nbytes, report.buffer_count),
        "peaks": (
            report.peak_nbytes,
            [(space, peak.nbytes) for use in report.modules for space, peak in use.space_peaks],
        ),
        "copies": Counter((row.kind, row.nbytes_read, row.nbytes_written, row.trips) for row in copies),
    }


def words(text: str) -> Counter[object]:
    copies = fi.hlo.layout_copies(text).rows(all_moves=True)
    return Counter((row.kind, row.op_name, row.source_file, row.source_line, row.argument) for row in copies)


def check(jaxlib: JaxlibProcess, text: str) -> bool:
    """Compare a text with what jaxlib makes of it; return whether jaxlib accepts it."""
    printed = jaxlib.printed(text)
    if printed.text is None:
        return False
    assert answers(text) == answers(printed.text), text
    if "is_scheduled=true" in printed.text and "async-" not in text:
        # Otherwise it prints another order, or does not print what is within short forms.
        assert words(text) == words(printed.text), text
    return True


@pytest.mark.parametrize("seed", strategies.rotating_seeds(240))
def test_rewritings(jaxlib: JaxlibProcess, seed: int) -> None:
    source = Random(seed)
    accepted = 0
    while accepted < 5:
        text = jaxlib.printed(source.choice(modules())).text
        if text is not None:
            accepted += check(jaxlib, Rewriter(source).rewritten(text))


@pytest.mark.parametrize("seed", strategies.rotating_seeds(120))
def test_print_options(jaxlib: JaxlibProcess, seed: int) -> None:
    source = Random(seed)
    accepted = 0
    while accepted < 3:
        options = {name: source.random() < 0.5 for name in OPTIONS if source.random() < 0.15}
        text = jaxlib.printed(source.choice(modules()), **options).text
        accepted += text is not None and check(jaxlib, text)


PARTS = """add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }
ge { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = pred[] compare(x, y), direction=GE }
both { x = f32[] parameter(0) y = f32[] parameter(1) a = f32[] parameter(2) b = f32[] parameter(3)
  ROOT r = (f32[], f32[]) tuple(x, y) }
negated { x = f32[8,7,3]{0,2,1:T(8,128)} parameter(0) ROOT r = f32[8,7,3]{1,2,0} negate(x) }
scalar { x = f32[] parameter(0) ROOT r = f64[] convert(x) }
more { a = (f32[8,7,3]{0,2,1:T(8,128)}) parameter(0) ROOT r = pred[] constant(true) }
step { ROOT a = (f32[8,7,3]{0,2,1:T(8,128)}) parameter(0) }
ENTRY top {
  p = f32[8,7,3]{0,2,1:T(8,128)} parameter(0)
  q = f32[8,7,3]{2,0,1} parameter(1)
  s = s32[] parameter(2)
  i = s32[4]{0:T(128)} parameter(3)
  c = c64[8,7]{0,1:T(8,128)} parameter(4)
  m = f32[6,6]{0,1:T(8,128)} parameter(5)
  pr = pred[8,7,3]{0,1,2} parameter(6)
  sp = pred[] parameter(7)
  u = f32[4,7,3]{0,1,2:T(8,128)} parameter(8)
  v = f32[3]{0:T(128)} parameter(9)
  w = f32[2,3,5]{0,1,2} parameter(10)
  h = bf16[8,7,3]{1,0,2} parameter(11)
  d = f32[<=9,2]{0,1} parameter(12)
  z = f32[] constant(0)
  t = (f32[8,7,3]{0,2,1:T(8,128)}) tuple(p)
  k = token[] after-all()
"""
OMITTED = (
    "add(p, q)", "add(q, p)", "add(h, p)", "add(p, h)", "add(p, z)", "compare(q, p), direction=LT", "select(pr, p, q)",
    "select(sp, q, q)", "clamp(z, p, z)", "clamp(q, p, q)", "complex(q, p)", "real(c)", "imag(c)", "abs(c)", "abs(p)",
    "is-finite(p)", "exponential(p)", "copy(p)", "negate(d)", "not(pr)", "popcnt(i)", "shift-left(i, i)",
    "transpose(p), dimensions={2,0,1}", "reverse(p), dimensions={0}", "broadcast(z), dimensions={}",
    "broadcast(p), dimensions={2}", "concatenate(p, q), dimensions={1}", "concatenate(p, h), dimensions={0}",
    "pad(p, z), padding=0_1x1_0x2_2_1", "pad(i, s), padding=-1_3", "reduce(p, z), dimensions={1}, to_apply=add",
    "reduce(p, q, z, z), dimensions={0,1}, to_apply=both", "map(p), dimensions={0,1,2}, to_apply=scalar",
    "sort(p), dimensions={0}, to_apply=ge", "sort(p, q), dimensions={0}, to_apply=both", "tuple(p, q)", "tuple()",
    "call(p), to_apply=negated", "while(t), condition=more, body=step", "get-tuple-element(t), index=0",
    "conditional(sp, p, p), true_computation=negated, false_computation=negated",
    "conditional(s, p, p), branch_computations={negated, negated}",
    "dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    "cholesky(m), lower=true", "triangular-solve(m, m), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
    "fft(c), fft_type=FFT, fft_length={7}", "fft(m), fft_type=RFFT, fft_length={6}",
    "fft(c), fft_type=IRFFT, fft_length={12}",
    "gather(p, i), offset_dims={1,2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,7,3}",
    "scatter(p, i, u), update_window_dims={1,2}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=add",
    "reduce-window(p, z), window={size=2x1x2 stride=2x1x1 pad=0_1x0_0x1_1 rhs_dilate=1x1x2}, to_apply=add",
    "select-and-scatter(p, p, z), window={size=1x1x1}, select=ge, scatter=add",
    "convolution(p, w), window={size=2 pad=1_2 lhs_dilate=2 stride=3}, dim_labels=b0f_0io->b0f",
    "batch-norm-training(p, v, v), epsilon=0.1, feature_index=2",
    "batch-norm-inference(p, v, v, v, v), epsilon=0.1, feature_index=2",
    "batch-norm-grad(p, v, v, v, p), epsilon=0.1, feature_index=2", "topk(m), k=2",
    "get-dimension-size(p), dimensions={0}", "set-dimension-size(p, s), dimensions={0}", "partition-id()",
    "replica-id()", "after-all()", "after-all(k)", "add-dependency(p, k)",
    'domain(p), domain={kind="sharding", entry={replicated}, exit={replicated}}',
)  # fmt: skip


@pytest.mark.parametrize("right", OMITTED)
def test_omitted_shapes(jaxlib: JaxlibProcess, right: str) -> None:
    text = f"HloModule m, is_scheduled=true\n{PARTS}  ROOT b = {right}\n}}\n"
    printed = jaxlib.printed(text).text
    assert printed is not None, jaxlib.printed(text).error
    found, expected = [
        {str(use.shape): use.count for use in fi.hlo.report(each, instruction_results=True).uses}
        for each in (text, printed)
    ]
    assert found == expected


def test_what_may_be_omitted(jaxlib: JaxlibProcess) -> None:
    tried = {right.split("(")[0].encode() for right in OMITTED}
    assert {opcode for opcode in tried if opcode not in INFERRED} == set()


def test_a_shape_that_cannot_be_inferred_is_a_problem() -> None:
    for right in (
        "scan(p, p), dimensions={0}, num_carries=1, to_apply=add",
        "reduce(p, z), dimensions={1}, to_apply=none",
    ):
        (problem,) = fi.hlo.report(f"HloModule m, is_scheduled=true\n{PARTS}  ROOT b = {right}\n}}\n").problems
        assert "b" in problem.text
        assert "the shape is omitted" in problem.message
    (problem, *_) = fi.hlo.report(f"HloModule m, is_scheduled=true\n{PARTS}  ROOT b = slice(p)\n}}\n").problems
    assert problem.line == 27
