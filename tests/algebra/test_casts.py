"""Every conversion against the definitions of the formats, ``astype`` and XLA: every pattern of up to 16 bits.

Tests of: algebra.cast_numbers, runtime.lines.conversions, moving.moves.casts.kernel, moving.moves.casts.plan,
moving.movements, cuda.launches.casts.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.algebra.casts import cast_by_numpy, cast_of, is_safe, is_same_kind, with_payloads
from fastindex.algebra.loops import relayout_loops
from fastindex.arrays.arrays import address_of
from fastindex.arrays.buffers import aligned_bytes
from fastindex.moving.movements import movement_between
from fastindex.moving.moves.casts.plan import cast_passes
from fastindex.runtime.first_answer import load_kernels
from fastindex.runtime.machine import EPYC_1M
from tests.cases import strategies
from tests.cases.cast_patterns import PAIRS, TODAY, TYPES, elements
from tests.oracles import casts

Bytes = NDArray[np.uint8]

WIDE = ("s32", "u32", "s64", "u64", "f32", "f64")


def by_kernels(data: Bytes, source: str, target: str) -> Bytes:
    """Convert by kernels, over a whole number of vectors and an element more."""
    count = data.nbytes // TYPES[source].nbytes
    moved = movement_between(*(fi.Shape(name, (count,)) for name in (source, target)))
    assert moved.cast is not None
    load_kernels()
    given, made = aligned_bytes(data.nbytes), aligned_bytes(count * TYPES[target].nbytes)
    given[:] = data
    moved.run(address_of(given), address_of(made), bytes(8), None)
    return made


def unsigned(data: Bytes, name: str) -> NDArray[Any]:
    return data.view(f"u{TYPES[name].nbytes}")


def is_subnormal(data: Bytes, name: str) -> NDArray[np.bool_]:
    """Which elements XLA takes for zeros on processors, or makes zeros: it flushes subnormals of f32 and f64."""
    if name not in ("f32", "f64"):
        return np.zeros(len(unsigned(data, name)), bool)
    values = np.abs(data.view(TYPES[name].numpy_dtype))
    return np.asarray((values < np.finfo(values.dtype).tiny) & (values > 0))


def values_of(data: Bytes, name: str) -> NDArray[np.float64]:
    """Elements of up to 32 bits as numbers, exact."""
    kind = TYPES[name]
    bits = unsigned(data, name).astype(np.int64) & (1 << kind.bits) - 1
    if name == "pred":
        return (unsigned(data, name) != 0).astype(np.float64)
    if kind.is_integral:
        return (bits - ((bits >> kind.bits - 1 & 1) << kind.bits) * (kind.kind == "signed")).astype(np.float64)
    return data.view(np.float32).astype(np.float64) if name == "f32" else casts.decoded(name, bits)


# Those of the group in one process, where the kernel of a pair is compiled once.
@pytest.mark.xdist_group("casts")
@pytest.mark.parametrize(("source", "target"), TODAY)
def test_kernels_and_numpy_agree(source: str, target: str) -> None:
    data = elements(source)
    found = by_kernels(data, source, target)
    assert np.array_equal(found, cast_by_numpy(data, TYPES[source], TYPES[target]))


@pytest.mark.xdist_group("casts")
@pytest.mark.parametrize(("source", "target"), TODAY)
def test_numbers_are_those_of_the_definition(source: str, target: str) -> None:
    """Rounded once, to nearest and to even; integers towards zero and saturated, or by their low bits."""
    if TYPES[source].bits > 32:
        return
    with np.errstate(all="ignore"):
        data = elements(source, 2000)
        values = values_of(data, source)
        found = unsigned(by_kernels(data, source, target), target)
    kind = TYPES[target]
    if target == "pred":
        assert np.array_equal(found, values != 0)
    elif kind.is_integral and TYPES[source].is_floating:
        low, high = (
            (-(1 << kind.bits - 1), (1 << kind.bits - 1) - 1) if kind.kind == "signed" else (0, (1 << kind.bits) - 1)
        )
        assert found.tolist() == [v % (1 << kind.bits) for v in casts.truncated(values, low, high)]
    elif kind.is_integral:
        assert found.tolist() == [int(v) % (1 << kind.bits) for v in values.tolist()]
    elif target in ("f32", "f64"):
        with np.errstate(all="ignore"):
            assert np.array_equal(found.view(kind.numpy_dtype), values.astype(kind.numpy_dtype), equal_nan=True)
    else:
        if TYPES[source].is_integral:
            # As ml_dtypes and NumPy do it: first to f32.
            values = values.astype(np.float32).astype(np.float64)
        expected = casts.encoded(target, values)
        numbers = expected >= 0
        assert np.array_equal(found[numbers], expected[numbers])
        if target == casts.POWER or casts.FORMATS[target].special != "finite":
            assert casts.is_nan(target, found[~numbers]).all()


#: Types that XLA does not convert on processors.
UNKNOWN_TO_XLA = ("s1", "u1", "f6e3m2fn", "f6e2m3fn")


def for_xla(name: str) -> Bytes:
    kind = TYPES[name]
    if kind.is_sub_byte or name == "pred":
        return np.arange(1 << kind.bits, dtype=np.uint8)
    return elements(name, 3000)


def open_to_xla(source: str, target: str, data: Bytes, made: Bytes) -> NDArray[np.bool_]:
    """Which results may be others: NaN's sign and payload, what XLA flushes, and f64 that it rounds to f16 twice."""
    with np.errstate(all="ignore"):
        wide = cast_by_numpy(data, TYPES[source], TYPES["f64"]).view(np.float64)
    found = is_subnormal(data, source) | is_subnormal(made, target) | ((np.abs(wide) < 2.0**-126) & (wide != 0))
    if not TYPES[target].is_floating:
        return found
    found |= np.isnan(wide)
    if target == "f8e8m0fnu" or source == "f64":
        found |= np.abs(wide) < 2.0**-126
    return np.asarray(found)


def is_known_to_xla(source: str, target: str) -> bool:
    """Whether XLA converts it, on processors, as the others do."""
    if source in UNKNOWN_TO_XLA or target in UNKNOWN_TO_XLA:
        return False
    # It takes 6, the largest number of f4e2m1fn, for one that no integer type holds, and rounds f64 by way of f16.
    if source == "f4e2m1fn":
        return not TYPES[target].is_integral
    return source != "f64" or not TYPES[target].is_floating or target in ("f32", "bf16")


@pytest.mark.xdist_group("casts")
def test_xla_agrees() -> None:
    known = [pair for pair in TODAY if is_known_to_xla(*pair)]
    names = {name: one.numpy_dtype.name for name, one in TYPES.items()}
    questions = [(names[source], names[target], unsigned(for_xla(source), source)) for source, target in known]
    for (source, target), answer in zip(known, casts.by_xla(questions), strict=True):
        data = for_xla(source)
        made = by_kernels(data, source, target)
        compared = ~open_to_xla(source, target, data, made)
        assert np.array_equal(unsigned(made, target)[compared], answer[compared]), (source, target)


@pytest.mark.parametrize("pair", [*itertools.permutations(("f16", "f32", "f64"), 2)], ids=" to ".join)
def test_payloads_of_nan_are_kept_where_processors_set_a_bit(pair: tuple[str, str]) -> None:
    """As NumPy computes them by integers on x86-64: the upper bits, and 1 where these are 0."""
    source, target = (np.finfo(TYPES[name].numpy_dtype) for name in pair)
    payloads = {1, 2, 1 << source.nmant - 1, (1 << source.nmant) - 1, 1 << max(source.nmant - target.nmant, 0)}
    for payload, sign in itertools.product(payloads, (0, 1)):
        bits = sign << source.bits - 1 | ((1 << source.nexp) - 1) << source.nmant | payload
        kept = payload << target.nmant >> source.nmant or 1
        expected = sign << target.bits - 1 | ((1 << target.nexp) - 1) << target.nmant | kept
        quiet = np.array([expected | 1 << target.nmant - 1], f"u{target.bits // 8}").view(target.dtype)
        values = np.array([bits], f"u{source.bits // 8}").view(source.dtype)
        assert int(with_payloads(values, quiet).view(f"u{target.bits // 8}")[0]) == expected
        if "f16" in pair:
            made = cast_by_numpy(values.view(np.uint8), TYPES[pair[0]], TYPES[pair[1]])
            assert int.from_bytes(made.tobytes(), "little") == expected


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", ["bf16", "f16", "f8e4m3fn", "f8e5m2", "s8", "f32"])
def test_many_random_floats(source: str, target: str) -> None:
    if source == target:
        return
    rng = np.random.default_rng(strategies.FIRST_SEED + 1)
    for _ in range(4):
        data = rng.integers(0, 1 << 64, (1 << 18) + 3, np.uint64).view(np.uint8)
        found = by_kernels(data, source, target)
        assert np.array_equal(found, cast_by_numpy(data, TYPES[source], TYPES[target]))


def test_rules_are_those_of_numpy_for_its_own_types() -> None:
    own = [one for one in TYPES.values() if one.numpy_dtype.isbuiltin == 1]
    for source, target in itertools.product(own, own):
        pair = source.numpy_dtype, target.numpy_dtype
        assert is_same_kind(source, target) == np.can_cast(*pair, "same_kind")
        assert is_safe(source, target) == np.can_cast(*pair, "safe")


def test_safe_casts_keep_values() -> None:
    for source, target in PAIRS:
        if is_safe(TYPES[source], TYPES[target]) and TYPES[source].bits <= 16 and target != "f8e8m0fnu":
            data = elements(source)
            there = cast_by_numpy(data, TYPES[source], TYPES[target])
            wide = [
                cast_by_numpy(d, TYPES[n], TYPES["f64"]).view(np.float64) for d, n in ((data, source), (there, target))
            ]
            assert np.array_equal(*wide, equal_nan=True), (source, target)
            assert is_same_kind(TYPES[source], TYPES[target])


@pytest.mark.parametrize(
    ("source", "destination", "place"),
    [
        ("f32", "bf16", -1),
        ("f64", "f32", -1),
        ("bf16", "f32", -1),
        ("s32", "f32", -1),
        ("f32", "s8", 0),
        ("f64", "f16", 0),
    ],
)
def test_what_gets_much_shorter_is_converted_as_it_is_read(source: str, destination: str, place: int) -> None:
    sides = fi.Shape.parse(f"{source}[512,512]"), fi.Shape.parse(f"{destination}[512,512]{{0,1}}")
    loops = relayout_loops(*sides)
    assert loops is not None
    for one in cast_passes(loops, cast_of(sides[0].element_type, sides[1].element_type), EPYC_1M):
        kernels = [step.kernel for step, _, _ in one.inner]
        assert len(kernels) > 1
        assert [k for k, name in enumerate(kernels) if name == "cast"] == [range(len(kernels))[place]]
