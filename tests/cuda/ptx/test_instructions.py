"""Each instruction against what PTX's manual says of it, in Python's integers, at every width and at the edges."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cuda.ptx.emulator import EmulatedError, Program, arrays
from tests.cuda.ptx.handwritten import kernel, line_of
from tests.cuda.ptx.reading import PtxError
from tests.cuda.stand_in import driver

pytestmark = pytest.mark.skipif(
    driver.missing() is not None and "ptx" not in os.environ.get("FASTINDEX_REQUIRE", ""), reason=driver.missing() or ""
)

LETTER = {16: "rs", 32: "r", 64: "rd"}


def edges(bits: int) -> list[int]:
    top = 1 << (bits - 1)
    some = np.random.default_rng(bits).integers(0, 1 << 63, size=4, dtype=np.uint64)
    return [
        0,
        1,
        2,
        3,
        5,
        bits - 1,
        top - 1,
        top,
        top + 1,
        2 * top - 1,
        2 * top - 2,
        *(int(n) % (2 * top) for n in some),
    ]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def answers(opcode: str, widths: tuple[int, ...], result: int, columns: list[list[int]]) -> list[int]:
    """Run ``opcode d, a, b, ...;`` for each row of `columns`, each operand of a width of its own."""
    names = [f"%rd{i + 14}" if width == 64 else f"%{LETTER[width]}{i + 2}" for i, width in enumerate(widths)]
    body = ["mul.lo.s64 %rd11, %rd10, 8;", "add.s64 %rd12, %rd1, %rd11;"]
    for i, (name, width) in enumerate(zip(names, widths, strict=True)):
        body += [f"add.s64 %rd13, %rd{2 + i}, %rd11;", f"ld.global.u{width} {name}, [%rd13];"]
    to = f"%{LETTER[result]}7" if result < 64 else "%rd20"
    body += [f"{opcode} {to}, {', '.join(names)};", f"st.global.u{result} [%rd12], {to};"]
    given = [np.array(column, np.uint64) for column in columns]
    with arrays(np.zeros(len(given[0]), np.uint64), *given) as made:
        Program(kernel("\n".join(body), 1 + len(given))).launch(1, len(given[0]), *made)
        return [int(n) for n in made[0].bytes.view(np.uint64)]


Rule = Callable[..., int]


def shifted_right(a: int, by: int, bits: int) -> int:
    return signed(a, bits) >> min(by, bits - 1)


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: dict[str, Rule] = {
    "add.u": lambda a, b, n: a + b,
    "add.s": lambda a, b, n: a + b,
    "sub.s": lambda a, b, n: a - b,
    "mul.lo.s": lambda a, b, n: a * b,
    "mul.lo.u": lambda a, b, n: a * b,
    "mul.hi.u": lambda a, b, n: a * b >> n,
    "mul.hi.s": lambda a, b, n: signed(a, n) * signed(b, n) >> n,
    "min.u": lambda a, b, n: min(a, b),
    "min.s": lambda a, b, n: min(signed(a, n), signed(b, n)),
    "max.u": lambda a, b, n: max(a, b),
    "max.s": lambda a, b, n: max(signed(a, n), signed(b, n)),
    "and.b": lambda a, b, n: a & b,
    "or.b": lambda a, b, n: a | b,
    "xor.b": lambda a, b, n: a ^ b,
}


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name: str, bits: int) -> None:
    pairs = list(itertools.product(edges(bits), repeat=2))
    found = answers(f"{name}{bits}", (bits, bits), bits, [list(column) for column in zip(*pairs, strict=True)])
    assert found == [BINARY[name](a, b, bits) % (1 << bits) for a, b in pairs]


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("name", ["div.u", "div.s", "rem.u", "rem.s"])
def test_divisions_round_to_zero(name: str, bits: int) -> None:
    pairs = [(a, b) for a, b in itertools.product(edges(bits), repeat=2) if b]
    found = answers(f"{name}{bits}", (bits, bits), bits, [list(column) for column in zip(*pairs, strict=True)])
    for (a, b), answer in zip(pairs, found, strict=True):
        x, y = (signed(a, bits), signed(b, bits)) if name.endswith("s") else (a, b)
        assert answer == (quotient(x, y) if name[0] == "d" else x - quotient(x, y) * y) % (1 << bits), (a, b)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("kind", ["u", "s"])
def test_wide_products(kind: str, bits: int) -> None:
    pairs = list(itertools.product(edges(bits), repeat=2))
    columns = [list(column) for column in zip(*pairs, strict=True)]
    found = answers(f"mul.wide.{kind}{bits}", (bits, bits), 2 * bits, columns)
    expected = [(signed(a, bits) * signed(b, bits) if kind == "s" else a * b) % (1 << 2 * bits) for a, b in pairs]
    assert found == expected
    more = [(a * 7 + 3) % (1 << 2 * bits) for a in range(len(pairs))]
    found = answers(f"mad.wide.{kind}{bits}", (bits, bits, 2 * bits), 2 * bits, [*columns, more])
    assert found == [(product + third) % (1 << 2 * bits) for product, third in zip(expected, more, strict=True)]


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("name", ["shl.b", "shr.u", "shr.s"])
def test_shifts_stop_at_the_width(name: str, bits: int) -> None:
    amounts = [0, 1, 7, bits - 1, bits, bits + 1, 64, 255, 1 << 31]
    pairs = list(itertools.product(edges(bits), amounts))
    found = answers(f"{name}{bits}", (bits, 32), bits, [list(column) for column in zip(*pairs, strict=True)])
    for (a, by), answer in zip(pairs, found, strict=True):
        expected = {"shl.b": a << min(by, 64), "shr.u": a >> by, "shr.s": shifted_right(a, by, bits)}[name]
        assert answer == expected % (1 << bits), (a, by)


@pytest.mark.parametrize("to", [f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64)])
@pytest.mark.parametrize("of", [f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64)])
def test_conversions(to: str, of: str) -> None:
    """What is narrower is cut off; a register that is wider is filled by the sign of the type converted to."""
    of_bits, to_bits = int(of[1:]), int(to[1:])
    held, wide = max(of_bits, 16), 64
    values = edges(held)
    found = answers(f"cvt.{to}.{of}", (held,), wide, [values])
    for value, answer in zip(values, found, strict=True):
        cut = value % (1 << of_bits)
        cut = signed(cut, of_bits) if of[0] == "s" else cut
        cut %= 1 << to_bits
        assert answer == (signed(cut, to_bits) if to[0] == "s" else cut) % (1 << 64)


@pytest.mark.parametrize("bits", [32, 64])
def test_bits_are_counted_and_moved(bits: int) -> None:
    values = edges(bits)
    assert answers(f"popc.b{bits}", (bits,), 32, [values]) == [value.bit_count() for value in values]
    assert answers(f"clz.b{bits}", (bits,), 32, [values]) == [bits - value.bit_length() for value in values]
    turned = [int(f"{value:0{bits}b}"[::-1], 2) for value in values]
    assert answers(f"brev.b{bits}", (bits,), bits, [values]) == turned
    places = list(itertools.product(values, (0, 3, bits - 1, bits, 200), (0, 1, 9, bits, 255)))
    columns = [list(column) for column in zip(*places, strict=True)]
    for kind in "us":
        found = answers(f"bfe.{kind}{bits}", (bits, 32, 32), bits, columns)
        for (value, begin, length), answer in zip(places, found, strict=True):
            sign = value >> min(begin + length - 1, bits - 1) & 1 if kind == "s" and length else 0
            digits = [value >> begin + i & 1 if i < length and begin + i < bits else sign for i in range(bits)]
            assert answer == sum(digit << i for i, digit in enumerate(digits)), (value, begin, length)
    pairs = [(value, ~value % (1 << bits), begin, length) for value, begin, length in places]
    found = answers(f"bfi.b{bits}", (bits, bits, 32, 32), bits, [list(column) for column in zip(*pairs, strict=True)])
    for (part, whole, begin, length), answer in zip(pairs, found, strict=True):
        window = ((1 << length) - 1 << begin) % (1 << bits)
        assert answer == whole & ~window | part << begin & window


def test_bytes_are_permuted() -> None:
    values = [(0x80112233, 0x447F66F7, selector) for selector in (0x7654, 0x3210, 0x5410, 0x0123, 0xFEDC, 0x8888)]
    found = answers("prmt.b32", (32, 32, 32), 32, [list(column) for column in zip(*values, strict=True)])
    for (a, b, selector), answer in zip(values, found, strict=True):
        eight = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
        picks = [selector >> 4 * i & 15 for i in range(4)]
        chosen = [(255 if eight[pick & 7] > 127 else 0) if pick > 7 else eight[pick] for pick in picks]
        assert answer == int.from_bytes(chosen, "little")


def test_three_operands() -> None:
    values = edges(32)
    triples = [(a, b, c) for a in values[::2] for b in values[1::2] for c in values[::3]]
    columns = [list(column) for column in zip(*triples, strict=True)]
    found = answers("mad.lo.s32", (32, 32, 32), 32, columns)
    assert found == [(a * b + c) % (1 << 32) for a, b, c in triples]
    amounts = [list(column) for column in zip(*[(a, b, c % 70) for a, b, c in triples], strict=True)]
    for direction, kind in itertools.product("lr", ("wrap", "clamp")):
        found = answers(f"shf.{direction}.{kind}.b32", (32, 32, 32), 32, amounts)
        for low, high, by, answer in zip(*amounts, found, strict=True):
            n = by & 31 if kind == "wrap" else min(by, 32)
            both = high << 32 | low
            assert answer == (both << n >> 32 if direction == "l" else both >> n) % (1 << 32)


def compared(opcode: str, bits: int, columns: list[list[int]], more: str = "") -> list[int]:
    """Run ``opcode %p1, a, b;``, with `more` behind it, for each row of two columns."""
    a, b = ("%rd12", "%rd13") if bits == 64 else (f"%{LETTER[bits]}2", f"%{LETTER[bits]}3")
    body = f"""
        mul.lo.s64 %rd11, %rd10, 8;
        add.s64 %rd14, %rd2, %rd11;
        add.s64 %rd15, %rd3, %rd11;
        add.s64 %rd16, %rd1, %rd11;
        ld.global.u{bits} {a}, [%rd14];
        ld.global.u{bits} {b}, [%rd15];
        setp.eq.u64 %p2, %rd11, 0;
        {opcode} %p1, {a}, {b}{more};
        selp.b64 %rd17, 1, 0, %p1;
        st.global.u64 [%rd16], %rd17;"""
    given = [np.array(column, np.uint64) for column in columns]
    with arrays(np.zeros(len(given[0]), np.uint64), *given) as made:
        Program(kernel(body, 3)).launch(1, len(given[0]), *made)
        return [int(one) for one in made[0].bytes.view(np.uint64)]


@pytest.mark.parametrize("kind", ["u", "s", "b"])
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_comparisons(kind: str, bits: int) -> None:
    pairs = list(itertools.product(edges(bits), repeat=2))
    columns = [list(column) for column in zip(*pairs, strict=True)]
    rules: dict[str, Callable[[int, int], bool]] = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }
    for name in ("eq", "ne") if kind == "b" else rules:
        found = compared(f"setp.{name}.{kind}{bits}", bits, columns)
        sides = [(signed(x, bits), signed(y, bits)) if kind == "s" else (x, y) for x, y in pairs]
        assert found == [int(rules[name](x, y)) for x, y in sides]


# Floats: NumPy's, with NaN as the emulator makes it


def floats(bits: int) -> list[int]:
    dtype, kind = (np.float32, np.uint32) if bits == 32 else (np.float64, np.uint64)
    info = np.finfo(dtype)
    values = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.5,
        3e9,
        2.0**24 + 2,
        2.0**31,
        2.0**32,
        2.0**63,
        2.0**64,
        info.max,
        info.tiny,
        np.inf,
    ]
    both = np.array([sign * value for value in values for sign in (1, -1)], dtype)
    return [*both.view(kind).tolist(), 1, 3, int(np.array(np.nan, dtype).view(kind)) + 5]


def as_floats(patterns: list[int], bits: int) -> NDArray[Any]:
    return np.array(patterns, f"u{bits // 8}").view(f"f{bits // 8}")


def bits_of(values: NDArray[Any]) -> list[int]:
    bits = 8 * values.itemsize
    found = values.view(f"u{values.itemsize}").copy()
    found[np.isnan(values)] = (1 << bits - 1) - 1
    return [int(one) for one in found]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", ["add", "sub", "add.rn"])
def test_sums_of_floats(name: str, bits: int) -> None:
    pairs = list(itertools.product(floats(bits), repeat=2))
    columns = [list(column) for column in zip(*pairs, strict=True)]
    a, b = (as_floats(column, bits) for column in columns)
    with np.errstate(all="ignore"):
        expected = a - b if name == "sub" else a + b
    assert answers(f"{name}.f{bits}", (bits, bits), bits, columns) == bits_of(expected)


@pytest.mark.parametrize("to", ["f32", "f64", *(f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64))])
@pytest.mark.parametrize("of", ["f32", "f64", *(f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64))])
def test_conversions_of_floats(to: str, of: str) -> None:
    """Floats become the nearest integer towards 0 that there is; NaN 0, or of 64 bits the one with the highest bit."""
    if "f" not in to + of or to == of:
        return
    of_bits, to_bits = int(of[1:]), int(to[1:])
    values = floats(of_bits) if of[0] == "f" else edges(of_bits)
    rounding = "" if (of, to) == ("f32", "f64") else ".rn" if to[0] == "f" else ".rzi"
    found = answers(f"cvt{rounding}.{to}.{of}", (of_bits,), to_bits, [values])
    numbers = np.array(values, f"u{of_bits // 8}").view(f"{of[0].replace('s', 'i')}{of_bits // 8}")
    if to[0] == "f":
        with np.errstate(all="ignore"):
            assert found == bits_of(numbers.astype(f"f{to_bits // 8}"))
        return
    low, high = (-(1 << to_bits - 1), (1 << to_bits - 1) - 1) if to[0] == "s" else (0, (1 << to_bits) - 1)
    for number, answer in zip(numbers.tolist(), found, strict=True):
        if math.isnan(number):
            expected = 1 << 63 if to_bits == 64 else 0
        else:
            expected = (low if number < 0 else high) if math.isinf(number) else min(max(int(number), low), high)
        assert answer == expected % (1 << to_bits), number


@pytest.mark.parametrize("bits", [32, 64])
def test_comparisons_of_floats(bits: int) -> None:
    pairs = list(itertools.product(floats(bits), repeat=2))
    columns = [list(column) for column in zip(*pairs, strict=True)]
    a, b = (as_floats(column, bits) for column in columns)
    unordered = np.isnan(a) | np.isnan(b)
    ordered = {"eq": a == b, "ne": (a != b) & ~unordered, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    expected = {**ordered, "num": ~unordered, "nan": unordered}
    expected |= {f"{name}u": truth | unordered for name, truth in ordered.items()}
    for name, truth in expected.items():
        assert compared(f"setp.{name}.f{bits}", bits, columns) == truth.astype(int).tolist(), name
        is_first = np.arange(len(truth)) == 0
        combined = {".and": truth & ~is_first, ".or": truth | ~is_first, ".xor": truth ^ ~is_first}
        for way, both in combined.items():
            assert compared(f"setp.{name}{way}.f{bits}", bits, columns, ", !%p2") == both.astype(int).tolist(), name


# What is not known, and what does not fit


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("wgmma.fence.sync.aligned;", "does not know"),
        ("add.f16 %rs2, %rs3, %rs4;", "type that the emulator does not know here: .f16"),
        ("add.sat.s32 %r2, %r3, %r4;", "modifier that the emulator does not know: .sat"),
        ("add.s64 %rd12, %r3, %rd14;", "%r3 has 32 bits where the instruction takes 64"),
        ("mul.wide.u32 %r2, %r3, %r4;", "%r2 has 32 bits where the instruction takes 64"),
        ("shl.b64 %rd12, %rd13, %rd14;", "%rd14 has 64 bits where the instruction takes 32"),
        ("ld.global.u64 %r2, [%rd1];", "%r2 has 32 bits where the instruction takes 64"),
        ("ld.const.u32 %r2, [%rd1];", "modifier that the emulator does not know: .const"),
        ("mov.u32 %r2, %smid;", "operand that the emulator does not know: %smid"),
        ("and.b16 %rs1, %rs2, 65536;", "65536 does not fit 16 bits"),
        ("ld.param.u64 %rd12, [p1+4];", "reads 8 bytes at 4 of a parameter of 8"),
        ("add.rz.f32 %r2, %r3, %r4;", "modifier that the emulator does not know: .rz"),
        ("cvt.rni.s32.f32 %r2, %r3;", "conversion of floats that the emulator does not know"),
        ("setp.lo.f32 %p1, %r2, %r3;", "comparison of floats that the emulator does not know: .lo"),
        ("bra $nowhere;", "a label that is not there"),
        ("mov.u32 %r99, 1;", "a register that is not declared: %r99"),
    ],
)
def test_what_is_not_known_is_an_error_with_its_line(statement: str, message: str) -> None:
    text = kernel(f"add.s64 %rd11, %rd1, 0;\n{statement}")
    with pytest.raises(PtxError, match=message.replace(".", r"\.")) as raised:
        Program(text)
    assert raised.value.line == line_of(text, statement)


def test_a_kernel_that_calls_is_refused() -> None:
    with pytest.raises(PtxError, match="a function that is called"):
        Program(".func f() { ret; }\n" + kernel(""))


def test_a_division_by_zero_is_an_error() -> None:
    text = kernel("div.u64 %rd12, %rd1, %rd2;")
    with pytest.raises(EmulatedError, match=f"line {line_of(text, 'div.u64')}, .*divides by zero"):
        Program(text).launch(1, 32, 5, 0)
