"""Statements of PTX as numbers: each operand a slot, each opcode an operation with its width, which is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cuda.ptx.reading import TYPE_BITS, Entry, PtxError, Statement

OPERATIONS = re.findall(r"\((\w+)\)", (Path(__file__).parent / "operations.def").read_text())

GENERIC, GLOBAL, SHARED = 0, 1, 3

#: In the order of their slots.
SPECIAL = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"] + ["%laneid", "%warpid"]

#: Where generic addresses of shared memory begin, as in ``machine.h``.
SHARED_WINDOW = 0x7E0000000000

_COMPARISONS = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5, "lo": 2, "ls": 3, "hi": 4, "hs": 5}
#: Of floats; those with a u behind them are true where a side is NaN.
_FLOAT_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_FLOATS = ("f32", "f64")
#: What a number is to a conversion.
_UNSIGNED, _SIGNED, _FLOAT = 0, 1, 2
_ATOMICS = {"add": 0, "min": 1, "max": 2, "and": 3, "or": 4, "xor": 5, "exch": 6, "cas": 7}
#: What says how caches may keep a value, or how far others see it: the emulator's memory is seen by all at once.
_HINTS = {"relaxed", "weak", "volatile", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "cta", "gpu", "sys"}
_CACHE_HINT = re.compile(r"(L1|L2)(::\w+)?")


@dataclass(slots=True)
class Encoded:
    """One instruction; the fields are those of ``Instruction`` in ``machine.h``."""

    operation: int
    line: int
    guard: int = -1
    negated: int = 0
    bits: int = 64
    is_signed: int = 0
    from_bits: int = 64
    from_signed: int = 0
    d: list[int] = field(default_factory=lambda: [-1, -1, -1, -1])
    a: int = -1
    b: int = -1
    c: int = -1
    e: int = -1
    count: int = 1
    space: int = GLOBAL
    mode: int = 0
    combined: int = -1
    offset: int = 0


class Encoder:
    """Turns the statements of a kernel into instructions, and knows the slots of constants and registers."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.code: list[Encoded] = []
        self._constants: dict[int, int] = {}
        self._registers = {name: i for i, name in enumerate(entry.registers)}
        self._starts: list[int] = []
        self._read: dict[str, Statement] = {}
        self._written: set[str] = set()
        self._now = Statement(0, "", None, False, "", ())

    # Slots: constants, then special registers, then registers. Until all constants are known, slots of the latter are
    # negative: -2 - number.

    def encode(self) -> tuple[list[Encoded], list[int]]:
        """Return the instructions and the constants."""
        for statement in self.entry.statements:
            self._now = statement
            self._starts.append(len(self.code))
            self._encode(statement)
        self._starts.append(len(self.code))
        for name, statement in self._read.items():
            if name not in self._written:
                raise PtxError(f"reads {name}, which nothing writes", statement.line, statement.text)
        constants = len(self._constants)
        for one in self.code:
            one.guard, one.a, one.b, one.c, one.e = (
                _final(slot, constants) for slot in (one.guard, one.a, one.b, one.c, one.e)
            )
            one.d = [_final(slot, constants) for slot in one.d]
            if OPERATIONS[one.operation] == "BRA":
                one.offset = self._starts[one.offset]
        return self.code, list(self._constants)

    def error(self, message: str) -> PtxError:
        return PtxError(message, self._now.line, self._now.text)

    def _encode(self, statement: Statement) -> None:
        base, *modifiers = statement.opcode.split(".")
        handler: Callable[[Encoder, list[str], tuple[str, ...]], None] | None = _HANDLERS.get(base)
        if handler is None:
            raise self.error(f"an instruction that the emulator does not know: {statement.opcode}")
        handler(self, modifiers, statement.operands)

    def emit(self, operation: str, **fields: object) -> Encoded:
        made = Encoded(OPERATIONS.index(operation), self._now.line, **fields)  # type: ignore[arg-type]
        if self._now.guard is not None:
            made.guard = self.operand(self._now.guard, 1)
            made.negated = int(self._now.negated)
        self.code.append(made)
        return made

    def take_type(self, modifiers: list[str], allowed: str = "bus") -> tuple[str, int, int]:
        """Take the last modifier as a type: its name, its bits, whether it is signed."""
        name = modifiers.pop() if modifiers else ""
        if (
            name not in TYPE_BITS
            or (name != "pred" and name[0] not in allowed)
            or (name == "pred" and "p" not in allowed)
        ):
            raise self.error(f"a type that the emulator does not know here: .{name}")
        return name, TYPE_BITS[name], int(name[0] == "s")

    def require_no_more(self, modifiers: Sequence[str]) -> None:
        if modifiers:
            raise self.error(f"a modifier that the emulator does not know: .{modifiers[0]}")

    def require_operands(self, operands: Sequence[str], *counts: int) -> None:
        if len(operands) not in counts:
            raise self.error(f"{len(operands)} operands")

    def register(self, name: str, bits: int, wider: bool = False) -> int:
        """Return the slot of a register that is written, of this width (or `wider`)."""
        self._written.add(name)
        return self._slot(name, bits, wider)

    def _slot(self, name: str, bits: int, wider: bool) -> int:
        held = self.entry.registers.get(name)
        if held is None:
            raise self.error(f"a register that is not declared: {name}")
        width = TYPE_BITS[held]
        if width != bits and not (wider and width > bits):
            raise self.error(f"{name} has {width} bits where the instruction takes {bits}")
        return -2 - len(SPECIAL) - self._registers[name]

    def width_of(self, name: str) -> int:
        return TYPE_BITS[self.entry.registers[name]] if name in self.entry.registers else 0

    def constant(self, value: int, bits: int) -> int:
        return self._constants.setdefault(value & ((1 << bits) - 1), len(self._constants))

    def operand(self, text: str, bits: int, wider: bool = False) -> int:
        """Return the slot of what is read: a register, a special one, a number or the address of a variable."""
        if text in SPECIAL:
            if bits != 32:
                raise self.error(f"{text} has 32 bits where the instruction takes {bits}")
            return -2 - SPECIAL.index(text)
        if text in self.entry.registers:
            self._read.setdefault(text, self._now)
            return self._slot(text, bits, wider)
        number = number_of(text)
        if number is not None:
            if not -(1 << (bits - 1)) <= number < 1 << bits:
                raise self.error(f"{text} does not fit {bits} bits")
            return self.constant(number, bits)
        if text in self.entry.shared:
            return self.constant(self.entry.shared[text][0], bits)
        if text == "WARP_SZ":
            return self.constant(32, bits)
        raise self.error(f"an operand that the emulator does not know: {text}")

    def address(self, text: str) -> tuple[int, int]:
        """Return the slot and the offset of ``[address+offset]``."""
        found = re.fullmatch(r"\[\s*([\w$%@.]+)\s*(?:([+-])\s*(-?\w+))?\s*\]", text)
        if found is None:
            raise self.error(f"an address that the emulator does not know: {text}")
        offset = (number_of(found[3]) or 0) * (-1 if found[2] == "-" else 1) if found[3] else 0
        width = self.width_of(found[1]) or 64
        return self.operand(found[1], width), offset

    def vector(self, text: str) -> list[str]:
        return [part.strip() for part in text[1:-1].split(",")] if text.startswith("{") else [text]


def _final(slot: int, constants: int) -> int:
    return constants + (-2 - slot) if slot < -1 else slot


def number_of(text: str) -> int | None:
    """Return an integer of PTX, or the bits of a float that is written in hexadecimal digits."""
    found = re.fullmatch(r"(-?)(0[fFdD][0-9a-fA-F]+|0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?", text)
    if found is None:
        return None
    digits = found[2]
    if digits[:2].lower() in ("0f", "0d"):
        value = int(digits[2:], 16)
    elif digits[:2].lower() == "0x":
        value = int(digits, 16)
    elif digits[:2].lower() == "0b":
        value = int(digits, 2)
    else:
        value = int(digits, 8 if digits[0] == "0" and len(digits) > 1 else 10)
    return -value if found[1] else value


Handler = Callable[[Encoder, list[str], tuple[str, ...]], None]


def _simple(operation: str, operands: int, allowed: str = "bus") -> Handler:
    """Make the handler of an instruction whose operands are all of its type."""

    def handle(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
        _, bits, is_signed = encoder.take_type(modifiers, allowed)
        encoder.require_no_more(modifiers)
        encoder.require_operands(given, operands + 1)
        slots = [encoder.operand(text, bits) for text in given[1:]] + [-1, -1]
        destination = [encoder.register(given[0], bits), -1, -1, -1]
        encoder.emit(operation, bits=bits, is_signed=is_signed, d=destination, a=slots[0], b=slots[1])

    return handle


def _multiplication(operation: str, operands: int) -> Handler:
    def handle(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
        _, bits, is_signed = encoder.take_type(modifiers, "us")
        part = modifiers.pop(0) if modifiers else ""
        if part not in ("lo", "hi", "wide"):
            raise encoder.error("which half of the product?")
        encoder.require_no_more(modifiers)
        encoder.require_operands(given, operands + 1)
        result = 2 * bits if part == "wide" else bits
        slots = [encoder.operand(text, bits) for text in given[1:3]]
        slots.append(encoder.operand(given[3], result) if operands == 3 else -1)
        destination = [encoder.register(given[0], result), -1, -1, -1]
        name = f"{operation}_{part.upper()}"
        encoder.emit(name, bits=bits, is_signed=is_signed, d=destination, a=slots[0], b=slots[1], c=slots[2])

    return handle


def _mov(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, _ = encoder.take_type(modifiers, "busfp")
    encoder.require_no_more(modifiers)
    encoder.require_operands(given, 2)
    to, source = given
    if source.startswith("{"):
        parts = encoder.vector(source)
        slots = [encoder.operand(part, bits // len(parts)) for part in parts] + [-1] * 2
        slots += [-1] * (4 - len(slots))
        a, b, c, e = slots[:4]
        destination = [encoder.register(to, bits), -1, -1, -1]
        encoder.emit("PACK", bits=bits, d=destination, a=a, b=b, c=c, e=e, count=len(parts))
    elif to.startswith("{"):
        parts = encoder.vector(to)
        slots = [-1 if part == "_" else encoder.register(part, bits // len(parts)) for part in parts]
        slots += [-1] * (4 - len(slots))
        encoder.emit("UNPACK", bits=bits, d=slots, a=encoder.operand(source, bits), count=len(parts))
    else:
        destination = [encoder.register(to, bits), -1, -1, -1]
        encoder.emit("MOV", bits=bits, d=destination, a=encoder.operand(source, bits))


def _shift(operation: str) -> Handler:
    def handle(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
        _, bits, is_signed = encoder.take_type(modifiers)
        encoder.require_no_more(modifiers)
        encoder.require_operands(given, 3)
        # The amount has 32 bits whatever is shifted.
        a, b = encoder.operand(given[1], bits), encoder.operand(given[2], 32)
        destination = [encoder.register(given[0], bits), -1, -1, -1]
        encoder.emit(operation, bits=bits, is_signed=is_signed, d=destination, a=a, b=b)

    return handle


def _funnel_shift(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    direction, kind, name = (*modifiers, "", "", "")[:3]
    if direction not in ("l", "r") or kind not in ("wrap", "clamp") or name != "b32" or len(modifiers) != 3:
        raise encoder.error("a funnel shift that the emulator does not know")
    encoder.require_operands(given, 4)
    a, b, c = (encoder.operand(text, 32) for text in given[1:])
    destination = [encoder.register(given[0], 32), -1, -1, -1]
    encoder.emit(f"SHF_{direction}_{kind}".upper(), bits=32, d=destination, a=a, b=b, c=c)


def _counting(operation: str) -> Handler:
    def handle(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
        _, bits, _ = encoder.take_type(modifiers, "b")
        encoder.require_no_more(modifiers)
        encoder.require_operands(given, 2)
        destination = [encoder.register(given[0], 32), -1, -1, -1]
        encoder.emit(operation, bits=bits, d=destination, a=encoder.operand(given[1], bits))

    return handle


def _bit_field_extract(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, is_signed = encoder.take_type(modifiers, "us")
    encoder.require_no_more(modifiers)
    encoder.require_operands(given, 4)
    a, b, c = (encoder.operand(text, width) for text, width in zip(given[1:], (bits, 32, 32), strict=True))
    destination = [encoder.register(given[0], bits), -1, -1, -1]
    encoder.emit("BFE", bits=bits, is_signed=is_signed, d=destination, a=a, b=b, c=c)


def _bit_field_insert(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, _ = encoder.take_type(modifiers, "b")
    encoder.require_no_more(modifiers)
    encoder.require_operands(given, 5)
    widths = (bits, bits, 32, 32)
    a, b, c, e = (encoder.operand(text, width) for text, width in zip(given[1:], widths, strict=True))
    destination = [encoder.register(given[0], bits), -1, -1, -1]
    encoder.emit("BFI", bits=bits, d=destination, a=a, b=b, c=c, e=e)


def _permute(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    if modifiers != ["b32"]:
        raise encoder.error("a permutation that the emulator does not know")
    encoder.require_operands(given, 4)
    a, b, c = (encoder.operand(text, 32) for text in given[1:])
    encoder.emit("PRMT", bits=32, d=[encoder.register(given[0], 32), -1, -1, -1], a=a, b=b, c=c)


def _lop3(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    if modifiers != ["b32"]:
        raise encoder.error("a table that the emulator does not know")
    encoder.require_operands(given, 5)
    a, b, c = (encoder.operand(text, 32) for text in given[1:4])
    table = number_of(given[4])
    if table is None or not 0 <= table < 256:
        raise encoder.error(f"a table of {given[4]}")
    encoder.emit("LOP3", bits=32, d=[encoder.register(given[0], 32), -1, -1, -1], a=a, b=b, c=c, offset=table)


def _selp(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, _ = encoder.take_type(modifiers, "busf")
    encoder.require_no_more(modifiers)
    encoder.require_operands(given, 4)
    a, b, c = encoder.operand(given[1], bits), encoder.operand(given[2], bits), encoder.operand(given[3], 1)
    encoder.emit("SELP", bits=bits, d=[encoder.register(given[0], bits), -1, -1, -1], a=a, b=b, c=c)


def _sum(operation: str) -> Handler:
    """Make the handler of a sum or difference, of integers or of floats that are rounded to the nearest."""
    of_integers = _simple(operation, 2, "us")

    def handle(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
        if modifiers[-1:] not in (["f32"], ["f64"]):
            of_integers(encoder, modifiers, given)
            return
        _, bits, _ = encoder.take_type(modifiers, "f")
        encoder.require_no_more([one for one in modifiers if one != "rn"])
        encoder.require_operands(given, 3)
        a, b = (encoder.operand(text, bits) for text in given[1:])
        encoder.emit(f"F{operation}", bits=bits, d=[encoder.register(given[0], bits), -1, -1, -1], a=a, b=b)

    return handle


def _setp_of_floats(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, _ = encoder.take_type(modifiers, "f")
    comparison = modifiers.pop(0) if modifiers else ""
    if comparison not in _FLOAT_COMPARISONS:
        raise encoder.error(f"a comparison of floats that the emulator does not know: .{comparison}")
    combined = modifiers.pop(0) if modifiers else None
    encoder.require_no_more(modifiers)
    encoder.require_operands(given, 3 if combined is None else 4)
    made = encoder.emit(
        "FSETP",
        bits=bits,
        d=[encoder.register(given[0], 1), -1, -1, -1],
        a=encoder.operand(given[1], bits),
        b=encoder.operand(given[2], bits),
        mode=_FLOAT_COMPARISONS.index(comparison),
    )
    _combine(encoder, made, combined, given)


def _combine(encoder: Encoder, made: Encoded, combined: str | None, given: tuple[str, ...]) -> None:
    if combined is None:
        return
    if combined not in ("and", "or", "xor"):
        raise encoder.error(f"a modifier that the emulator does not know: .{combined}")
    made.c = encoder.operand(given[3].lstrip("!"), 1)
    made.combined = ("and", "or", "xor").index(combined) + 4 * given[3].startswith("!")


def _setp(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    if modifiers[-1:] in (["f32"], ["f64"]):
        _setp_of_floats(encoder, modifiers, given)
        return
    name, bits, is_signed = encoder.take_type(modifiers)
    comparison = modifiers.pop(0) if modifiers else ""
    signed_only = comparison in ("lt", "le", "gt", "ge")
    if comparison not in _COMPARISONS or (name[0] == "b" and comparison not in ("eq", "ne")):
        raise encoder.error(f"a comparison that the emulator does not know: .{comparison}.{name}")
    if is_signed and not signed_only and comparison not in ("eq", "ne"):
        raise encoder.error(f".{comparison} is for unsigned numbers")
    combined = modifiers.pop(0) if modifiers else None
    encoder.require_no_more(modifiers)
    encoder.require_operands(given, 3 if combined is None else 4)
    targets = [encoder.register(part.strip(), 1) for part in given[0].split("|")]
    made = encoder.emit(
        "SETP",
        bits=bits,
        is_signed=is_signed,
        d=[*targets, *[-1] * (4 - len(targets))],
        a=encoder.operand(given[1], bits),
        b=encoder.operand(given[2], bits),
        mode=_COMPARISONS[comparison],
    )
    _combine(encoder, made, combined, given)


def _cvt_of_floats(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    from_name, from_bits, from_signed = encoder.take_type(modifiers, "usf")
    name, bits, is_signed = encoder.take_type(modifiers, "usf")
    kinds = [_FLOAT if one in _FLOATS else is_s for one, is_s in ((from_name, from_signed), (name, is_signed))]
    # Integers are rounded to the nearest float, floats to the nearest narrower one, or cut to an integer.
    exact = kinds == [_FLOAT, _FLOAT] and bits > from_bits
    rounding = [] if exact else ["rzi"] if kinds[1] != _FLOAT else ["rn"]
    if "f16" in (name, from_name) or modifiers != rounding:
        raise encoder.error("a conversion of floats that the emulator does not know")
    encoder.require_operands(given, 2)
    encoder.emit(
        "FCVT",
        bits=bits,
        d=[encoder.register(given[0], bits, wider=kinds[1] != _FLOAT), -1, -1, -1],
        a=encoder.operand(given[1], from_bits, wider=kinds[0] != _FLOAT),
        is_signed=kinds[1],
        from_bits=from_bits,
        from_signed=kinds[0],
    )


def _cvt(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    if any(one[0] == "f" for one in modifiers):
        _cvt_of_floats(encoder, modifiers, given)
        return
    _, from_bits, from_signed = encoder.take_type(modifiers, "us")
    _, bits, is_signed = encoder.take_type(modifiers, "us")
    encoder.require_no_more(modifiers)
    encoder.require_operands(given, 2)
    width = encoder.width_of(given[0])
    destination = [encoder.register(given[0], bits, wider=True), -1, -1, -1]
    source = encoder.operand(given[1], from_bits, wider=True)
    encoder.emit("CVT", bits=bits, d=destination, a=source, from_bits=from_bits, from_signed=from_signed)
    if is_signed and width > bits:
        encoder.emit("CVT", bits=width, d=destination, a=destination[0], from_bits=bits, from_signed=1)


def _cvta(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, _ = encoder.take_type(modifiers, "u")
    back = modifiers[:1] == ["to"]
    space = modifiers[-1] if modifiers else ""
    encoder.require_operands(given, 2)
    if bits != 64 or space not in ("global", "shared") or len(modifiers) != 1 + back:
        raise encoder.error("a conversion of addresses that the emulator does not know")
    destination = [encoder.register(given[0], 64), -1, -1, -1]
    window = encoder.constant(SHARED_WINDOW if space == "shared" else 0, 64)
    encoder.emit("SUB" if back else "ADD", d=destination, a=encoder.operand(given[1], 64), b=window)


# Memory


def _take_space(encoder: Encoder, modifiers: list[str]) -> tuple[int, int]:
    """Take the hints, the space and the vector's size out of the modifiers of a load or store."""
    space, count = GENERIC, 1
    spaces = {"global": GLOBAL, "shared": SHARED}
    for name in modifiers:
        bare = name.split("::")[0]
        if bare in spaces and name in (bare, "shared::cta"):
            space = spaces[bare]
        elif name in ("v2", "v4"):
            count = int(name[1])
        elif name not in _HINTS and not _CACHE_HINT.fullmatch(name):
            raise encoder.error(f"a modifier that the emulator does not know: .{name}")
    return space, count


def _ld(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, is_signed = encoder.take_type(modifiers, "busf")
    encoder.require_operands(given, 2)
    of_parameter = modifiers[:1] == ["param"]
    space, count = _take_space(encoder, modifiers[1:] if of_parameter else modifiers)
    parts = encoder.vector(given[0])
    if len(parts) != count:
        raise encoder.error(f"{len(parts)} registers for {count} values")
    held = next((encoder.width_of(part) for part in parts if part != "_"), 64)
    targets = [-1 if part == "_" else encoder.register(part, bits, wider=True) for part in parts]
    common = {"bits": bits, "is_signed": is_signed, "from_bits": held, "count": count}
    common["d"] = [*targets, *[-1] * (4 - count)]
    if of_parameter:
        found = re.fullmatch(r"\[\s*([\w$%.]+)\s*(?:\+\s*(\d+))?\s*\]", given[1])
        if found is None or found[1] not in encoder.entry.parameters:
            raise encoder.error(f"a parameter that is not declared: {given[1]}")
        begin, size = encoder.entry.parameters[found[1]]
        offset = int(found[2] or 0)
        if offset + bits // 8 * count > size:
            raise encoder.error(f"reads {bits // 8 * count} bytes at {offset} of a parameter of {size}")
        encoder.emit("LD_PARAM", offset=begin + offset, **common)
    else:
        slot, offset = encoder.address(given[1])
        encoder.emit("LD", a=slot, offset=offset, space=space, **common)


def _st(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, _ = encoder.take_type(modifiers, "busf")
    encoder.require_operands(given, 2)
    space, count = _take_space(encoder, modifiers)
    parts = encoder.vector(given[1])
    if len(parts) != count:
        raise encoder.error(f"{len(parts)} registers for {count} values")
    sources = [encoder.operand(part, bits, wider=True) for part in parts]
    slot, offset = encoder.address(given[0])
    encoder.emit("ST", bits=bits, d=[*sources, *[-1] * (4 - count)], a=slot, offset=offset, space=space, count=count)


def _atom(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    _, bits, is_signed = encoder.take_type(modifiers)
    returns = encoder._now.opcode.startswith("atom")
    operation = modifiers.pop() if modifiers else ""
    if operation not in _ATOMICS or bits < 32:
        raise encoder.error(f"an atomic that the emulator does not know: .{operation}")
    space, count = _take_space(
        encoder, [name for name in modifiers if name not in ("relaxed", "acquire", "release", "acq_rel")]
    )
    values = given[1 + returns :]
    encoder.require_operands(values, 2 if operation == "cas" else 1)
    target = encoder.register(given[0], bits) if returns and given[0] != "_" else -1
    slot, offset = encoder.address(given[int(returns)])
    slots = [encoder.operand(text, bits) for text in values] + [-1]
    fields = {"bits": bits, "is_signed": is_signed, "d": [target, -1, -1, -1], "count": count}
    encoder.emit("ATOM", a=slot, offset=offset, b=slots[0], c=slots[1], space=space, mode=_ATOMICS[operation], **fields)


def _cp(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    name = ".".join(modifiers)
    if name == "async.commit_group":
        encoder.emit("CP_COMMIT")
    elif name == "async.wait_all":
        encoder.emit("CP_WAIT", mode=-1)
    elif name == "async.wait_group":
        encoder.emit("CP_WAIT", mode=number_of(given[0]) or 0)
    elif re.fullmatch(r"async\.(ca|cg)\.shared(::cta)?\.global(\.L2::\w+)?", name):
        encoder.require_operands(given, 3, 4)
        size = number_of(given[2])
        if size not in ((16,) if modifiers[1] == "cg" else (4, 8, 16)):
            raise encoder.error(f"cp.async of {given[2]} bytes")
        to, to_offset = encoder.address(given[0])
        source, offset = encoder.address(given[1])
        if to_offset:
            raise encoder.error("an offset of the shared address of cp.async")
        kept = encoder.operand(given[3], 32) if len(given) == 4 else -1
        encoder.emit("CP_ASYNC", a=to, b=source, c=kept, offset=offset, mode=size)
    else:
        raise encoder.error(f"an instruction that the emulator does not know: cp.{name}")


# Control, and threads among themselves


def _bra(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    encoder.require_no_more([name for name in modifiers if name != "uni"])
    encoder.require_operands(given, 1)
    if given[0] not in encoder.entry.labels:
        raise encoder.error(f"a label that is not there: {given[0]}")
    encoder.emit("BRA", offset=encoder.entry.labels[given[0]])


def _ret(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    encoder.require_no_more([name for name in modifiers if name != "uni"])
    encoder.emit("RET")


def _bar(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    parts = [name for name in modifiers if name not in ("cta", "aligned")]
    if parts == ["warp", "sync"]:
        encoder.emit("WARP_SYNC")
        return
    if parts != ["sync"]:
        raise encoder.error(f"a barrier that the emulator does not know: {encoder._now.opcode}")
    encoder.require_operands(given, 1)
    number = number_of(given[0])
    if number is None or not 0 <= number < 16:
        raise encoder.error(f"a barrier that the emulator does not know: {given[0]}")
    encoder.emit("BAR", mode=number)


def _shfl(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    modes = ("up", "down", "bfly", "idx")
    if len(modifiers) != 3 or modifiers[0] != "sync" or modifiers[1] not in modes or modifiers[2] != "b32":
        raise encoder.error("a shuffle that the emulator does not know")
    encoder.require_operands(given, 5)
    targets = given[0].split("|")
    slots = [encoder.register(targets[0], 32), encoder.register(targets[1], 1) if len(targets) > 1 else -1, -1, -1]
    a, b, c, e = (encoder.operand(text, 32) for text in given[1:])
    encoder.emit("SHFL", bits=32, d=slots, a=a, b=b, c=c, e=e, mode=modes.index(modifiers[1]))


def _vote(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    modes = ("all", "any", "uni", "ballot")
    if len(modifiers) != 3 or modifiers[0] != "sync" or modifiers[1] not in modes:
        raise encoder.error("a vote that the emulator does not know")
    encoder.require_operands(given, 3)
    bits = 32 if modifiers[1] == "ballot" else 1
    encoder.emit(
        "VOTE",
        bits=bits,
        d=[encoder.register(given[0], bits), -1, -1, -1],
        a=encoder.operand(given[1].lstrip("!"), 1),
        b=encoder.operand(given[2], 32),
        mode=modes.index(modifiers[1]),
        combined=int(given[1].startswith("!")),
    )


def _activemask(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    if modifiers != ["b32"]:
        raise encoder.error("a mask that the emulator does not know")
    encoder.emit("ACTIVE_MASK", bits=32, d=[encoder.register(given[0], 32), -1, -1, -1])


def _nothing(encoder: Encoder, modifiers: list[str], given: tuple[str, ...]) -> None:
    encoder.emit("NOTHING")


_HANDLERS: dict[str, Handler] = {
    "mov": _mov,
    "add": _sum("ADD"),
    "sub": _sum("SUB"),
    "div": _simple("DIV", 2, "us"),
    "rem": _simple("REM", 2, "us"),
    "abs": _simple("ABS", 1, "s"),
    "neg": _simple("NEG", 1, "s"),
    "min": _simple("MIN", 2, "us"),
    "max": _simple("MAX", 2, "us"),
    "and": _simple("AND", 2, "bp"),
    "or": _simple("OR", 2, "bp"),
    "xor": _simple("XOR", 2, "bp"),
    "not": _simple("NOT", 1, "bp"),
    "cnot": _simple("CNOT", 1, "b"),
    "brev": _simple("BREV", 1, "b"),
    "mul": _multiplication("MUL", 2),
    "mad": _multiplication("MAD", 3),
    "shl": _shift("SHL"),
    "shr": _shift("SHR"),
    "shf": _funnel_shift,
    "popc": _counting("POPC"),
    "clz": _counting("CLZ"),
    "bfe": _bit_field_extract,
    "bfi": _bit_field_insert,
    "prmt": _permute,
    "lop3": _lop3,
    "selp": _selp,
    "setp": _setp,
    "cvt": _cvt,
    "cvta": _cvta,
    "ld": _ld,
    "ldu": _ld,
    "st": _st,
    "atom": _atom,
    "red": _atom,
    "cp": _cp,
    "bra": _bra,
    "ret": _ret,
    "exit": _ret,
    "bar": _bar,
    "barrier": _bar,
    "shfl": _shfl,
    "vote": _vote,
    "activemask": _activemask,
    "membar": _nothing,
    "fence": _nothing,
    "prefetch": _nothing,
    "prefetchu": _nothing,
    "nanosleep": _nothing,
}
