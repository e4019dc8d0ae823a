"""Conversions of elements to another type: vectors of bits, read, converted and written.

Results are those of NumPy and ml_dtypes, bit for bit, except that a float which an integer type cannot hold becomes the
nearest number that it can, and NaN becomes 0: NumPy's result there depends on the processor. XLA says so too, in the
``ConvertElementType`` of `jaxlib`. What else is particular to a pair of types stands beside it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.kernels.compilation import instructions
from fastindex.kernels.cpu.memory import load_at, store_at
from fastindex.tables.casts import names_of

_INT8, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()

_TABLE_BYTES = {"byte": 1, "two bytes": 2, "four bytes": 4, "eight bytes": 8}


@instructions("code", "lanes")
def cast_elements(builder: Any, code: int, lanes: int, target: Any, source: Any, table: Any) -> None:
    """Convert a literal number of elements that follow each other, as the literal `code` says.

    `table` is the address of a table of results, where the conversion has one.
    """
    _Conversion(builder, lanes, *names_of(code)).run(target, source, table)


class _Conversion:
    """The instructions of one conversion of a vector of elements."""

    def __init__(self, builder: Any, lanes: int, source: str, target: str) -> None:
        self.b, self.lanes, self.source, self.target = builder, lanes, source, target

    def run(self, target: Any, source: Any, table: Any) -> None:
        if self.source == "byte":
            indices = self.b.zext(load_at(self.b, source, self.lanes, 1), self._of(_INT64))
            found = self._looked_up(table, indices, _TABLE_BYTES[self.target])
        elif self.target == "narrow":
            found = self._looked_up(table, self._upper_half(self._as_float(self._read(source))), 1)
        else:
            found = self._converted(self._read(source))
        store_at(self.b, found, target, False)

    def _of(self, kind: Any) -> Any:
        return ir.VectorType(kind, self.lanes)

    def _all(self, kind: Any, number: float) -> Any:
        return ir.Constant(self._of(kind), [number] * self.lanes)

    def _looked_up(self, table: Any, indices: Any, nbytes: int) -> Any:
        kind = ir.IntType(8 * nbytes)
        found: Any = ir.Constant(self._of(kind), ir.Undefined)
        for lane in range(self.lanes):
            offset = self.b.mul(self.b.extract_element(indices, _INT32(lane)), _INT64(nbytes))
            value = self.b.load(self.b.inttoptr(self.b.add(table, offset), kind.as_pointer()), align=1)
            found = self.b.insert_element(found, value, _INT32(lane))
        return found

    # Values: integers as they are, f64, and everything else that is a float as the bits of an f32.

    def _read(self, source: Any) -> Any:
        bits = int(self.source.lstrip("bsuf"))
        value = load_at(self.b, source, self.lanes, bits // 8)
        if self.source == "f16":
            return self._from_half(value)
        if self.source == "bf16":
            return self.b.shl(self.b.zext(value, self._of(_INT32)), self._all(_INT32, 16))
        return self.b.bitcast(value, self._of(_DOUBLE)) if self.source == "f64" else value

    @property
    def _is_integral(self) -> bool:
        return self.source[0] in "su"

    def _as_float(self, value: Any) -> Any:
        """Return the bits of values as f32, rounded once more where a narrower float is wanted: as ml_dtypes does."""
        if self._is_integral:
            convert = self.b.sitofp if self.source[0] == "s" else self.b.uitofp
            return self.b.bitcast(convert(value, self._of(_FLOAT)), self._of(_INT32))
        if self.source == "f64":
            return self.b.bitcast(self.b.fptrunc(value, self._of(_FLOAT)), self._of(_INT32))
        return value

    def _converted(self, value: Any) -> Any:
        match self.target:
            case "pred":
                return self._truth(value)
            case "f64":
                return self._to_double(value)
            case "f32":
                return self._as_float(value)
            case "bf16":
                return self._to_bfloat(self._as_float(value))
            case "f16":
                return self._double_to_half(value) if self.source == "f64" else self._to_half(self._as_float(value))
        return self._to_integer(value, int(self.target[1:]))

    def _truth(self, value: Any) -> Any:
        if self._is_integral:
            found = self.b.icmp_unsigned("!=", value, self._all(value.type.element, 0))
        else:
            number = value if self.source == "f64" else self.b.bitcast(value, self._of(_FLOAT))
            # NaN is true.
            found = self.b.fcmp_unordered("!=", number, self._all(number.type.element, 0.0))
        return self.b.zext(found, self._of(_INT8))

    def _to_integer(self, value: Any, bits: int) -> Any:
        kind, stored = ir.IntType(bits), ir.IntType(max(bits, 8))
        if not self._is_integral:
            number = value if self.source == "f64" else self.b.bitcast(value, self._of(_FLOAT))
            if bits < 32:
                return self._clamped(self._saturated(number, "s", 32), bits)
            return self._saturated(number, self.target[0], bits)
        own = value.type.element.width
        if bits < 8:
            low = self.b.trunc(value, self._of(_INT8)) if own > 8 else value
            return self.b.and_(low, self._all(_INT8, (1 << bits) - 1))
        if own == stored.width:
            return value
        if own > stored.width:
            return self.b.trunc(value, self._of(kind))
        return (self.b.sext if self.source[0] == "s" else self.b.zext)(value, self._of(kind))

    def _saturated(self, number: Any, sign: str, bits: int) -> Any:
        """Return floats as the nearest integers towards 0, saturated; NaN as 0."""
        kind, width = self._of(ir.IntType(bits)), 64 if self.source == "f64" else 32
        name = f"llvm.fpto{sign}i.sat.v{self.lanes}i{bits}.v{self.lanes}f{width}"
        return self.b.call(self._declared(name, kind, number.type), [number])

    def _clamped(self, value: Any, bits: int) -> Any:
        """Return integers of 32 bits as the nearest ones of fewer bits, with the other bits of their byte 0."""
        is_signed = self.target[0] == "s"
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
        for limit, relation in ((high, ">"), (low, "<")):
            most = self._all(_INT32, limit & 0xFFFFFFFF)
            value = self.b.select(self.b.icmp_signed(relation, value, most), most, value)
        if bits < 8:
            value = self.b.and_(value, self._all(_INT32, (1 << bits) - 1))
        return self.b.trunc(value, self._of(ir.IntType(max(bits, 8))))

    def _declared(self, name: str, result: Any, argument: Any) -> Any:
        module = self.b.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, [argument]), name)

    def _upper_half(self, bits: Any) -> Any:
        """Return the upper 16 bits of f32, the last of them set where any of the others is.

        That rounds to odd: rounded once more, to a float with two bits fewer, it is as if it had been rounded once.
        """
        upper = self.b.lshr(bits, self._all(_INT32, 16))
        rest = self.b.and_(bits, self._all(_INT32, 0xFFFF))
        is_more = self.b.zext(self.b.icmp_unsigned("!=", rest, self._all(_INT32, 0)), self._of(_INT32))
        return self.b.zext(self.b.or_(upper, is_more), self._of(_INT64))

    # Floats of 16 bits

    def _to_bfloat(self, bits: Any) -> Any:
        """Round the bits of f32 to bf16; every NaN becomes the quiet one of its sign, as in ml_dtypes."""
        upper = self.b.lshr(bits, self._all(_INT32, 16))
        odd = self.b.and_(upper, self._all(_INT32, 1))
        rounded = self.b.add(self.b.add(bits, self._all(_INT32, 0x7FFF)), odd)
        sign = self.b.and_(upper, self._all(_INT32, 0x8000))
        quiet = self.b.or_(sign, self._all(_INT32, 0x7FC0))
        found = self.b.select(self._is_nan(bits), quiet, self.b.lshr(rounded, self._all(_INT32, 16)))
        return self.b.trunc(found, self._of(_INT16))

    def _is_nan(self, bits: Any) -> Any:
        magnitude = self.b.and_(bits, self._all(_INT32, 0x7FFFFFFF))
        return self.b.icmp_unsigned(">", magnitude, self._all(_INT32, 0x7F800000))

    def _to_half(self, bits: Any) -> Any:
        """Round the bits of f32 to f16, with NaN as `_half_of_nan`."""
        magnitude = self.b.and_(bits, self._all(_INT32, 0x7FFFFFFF))
        odd = self.b.and_(self.b.lshr(magnitude, self._all(_INT32, 13)), self._all(_INT32, 1))
        moved = self.b.add(self.b.add(magnitude, self._all(_INT32, (15 - 127 << 23) + 0xFFF & 0xFFFFFFFF)), odd)
        normal = self.b.lshr(moved, self._all(_INT32, 13))
        # Added to 0.5, whose last bit is worth as much as that of a subnormal f16, it is rounded by the processor.
        shifted = self.b.fadd(self.b.bitcast(magnitude, self._of(_FLOAT)), self._all(_FLOAT, 0.5))
        small = self.b.sub(self.b.bitcast(shifted, self._of(_INT32)), self._all(_INT32, 126 << 23))
        found = self.b.select(
            self.b.icmp_unsigned("<", magnitude, self._all(_INT32, 127 - 14 << 23)),
            small,
            self.b.select(
                self.b.icmp_unsigned("<", magnitude, self._all(_INT32, 127 + 16 << 23)),
                normal,
                self._all(_INT32, 0x7C00),
            ),
        )
        payload = self.b.lshr(self.b.and_(bits, self._all(_INT32, 0x7FFFFF)), self._all(_INT32, 13))
        found = self.b.select(self._is_nan(bits), self._half_of_nan(payload), found)
        sign = self.b.and_(self.b.lshr(bits, self._all(_INT32, 16)), self._all(_INT32, 0x8000))
        return self.b.trunc(self.b.or_(found, sign), self._of(_INT16))

    def _half_of_nan(self, payload: Any) -> Any:
        """Return the bits of NaN: NumPy keeps the upper bits of the payload, ml_dtypes makes it the quiet one."""
        kind = payload.type.element
        if self.source == "bf16":
            return self._all(kind, 0x7E00)
        is_lost = self.b.icmp_unsigned("==", payload, self._all(kind, 0))
        return self.b.or_(self.b.select(is_lost, self._all(kind, 1), payload), self._all(kind, 0x7C00))

    def _double_to_half(self, value: Any) -> Any:
        """Round f64 to f16 at once, as `_to_half` does f32."""
        bits = self.b.bitcast(value, self._of(_INT64))
        magnitude = self.b.and_(bits, self._all(_INT64, (1 << 63) - 1))
        odd = self.b.and_(self.b.lshr(magnitude, self._all(_INT64, 42)), self._all(_INT64, 1))
        bias = self._all(_INT64, (15 - 1023 << 52) + (1 << 41) - 1 & (1 << 64) - 1)
        normal = self.b.lshr(self.b.add(self.b.add(magnitude, bias), odd), self._all(_INT64, 42))
        # The last bit of 2 ** 28 is worth as much as that of a subnormal f16.
        shifted = self.b.fadd(self.b.bitcast(magnitude, self._of(_DOUBLE)), self._all(_DOUBLE, 2.0**28))
        small = self.b.sub(self.b.bitcast(shifted, self._of(_INT64)), self._all(_INT64, 1023 + 28 << 52))
        found = self.b.select(
            self.b.icmp_unsigned("<", magnitude, self._all(_INT64, 1023 - 14 << 52)),
            small,
            self.b.select(
                self.b.icmp_unsigned("<", magnitude, self._all(_INT64, 1023 + 16 << 52)),
                normal,
                self._all(_INT64, 0x7C00),
            ),
        )
        payload = self.b.lshr(self.b.and_(bits, self._all(_INT64, (1 << 52) - 1)), self._all(_INT64, 42))
        is_nan = self.b.icmp_unsigned(">", magnitude, self._all(_INT64, 0x7FF << 52))
        found = self.b.select(is_nan, self._half_of_nan(payload), found)
        sign = self.b.and_(self.b.lshr(bits, self._all(_INT64, 48)), self._all(_INT64, 0x8000))
        return self.b.trunc(self.b.or_(found, sign), self._of(_INT16))

    def _from_half(self, value: Any) -> Any:
        """Return the bits of f16 as f32; NaN keeps its payload, and stays signalling, as in NumPy."""
        wide = self.b.zext(value, self._of(_INT32))
        sign = self.b.shl(self.b.and_(wide, self._all(_INT32, 0x8000)), self._all(_INT32, 16))
        magnitude = self.b.shl(self.b.and_(wide, self._all(_INT32, 0x7FFF)), self._all(_INT32, 13))
        exponent = self.b.and_(magnitude, self._all(_INT32, 0x7C00 << 13))
        normal = self.b.add(magnitude, self._all(_INT32, 127 - 15 << 23))
        special = self.b.add(normal, self._all(_INT32, 128 - 16 << 23))
        # A subnormal is what is left of a number with this exponent when its leading 1 is taken away.
        least = self._all(_INT32, 127 - 14 << 23)
        above = self.b.bitcast(self.b.add(magnitude, least), self._of(_FLOAT))
        small = self.b.bitcast(self.b.fsub(above, self.b.bitcast(least, self._of(_FLOAT))), self._of(_INT32))
        found = self.b.select(
            self.b.icmp_unsigned("==", exponent, self._all(_INT32, 0)),
            small,
            self.b.select(self.b.icmp_unsigned("==", exponent, self._all(_INT32, 0x7C00 << 13)), special, normal),
        )
        return self.b.or_(found, sign)

    def _to_double(self, value: Any) -> Any:
        if self._is_integral:
            convert = self.b.sitofp if self.source[0] == "s" else self.b.uitofp
            return convert(value, self._of(_DOUBLE))
        wide = self.b.fpext(self.b.bitcast(value, self._of(_FLOAT)), self._of(_DOUBLE))
        if self.source != "f16":
            return wide
        # A signalling NaN of f16 stays one in NumPy, which converts it by hand; the processor makes it quiet.
        bits = self.b.zext(value, self._of(_INT64))
        sign = self.b.shl(self.b.and_(bits, self._all(_INT64, 1 << 31)), self._all(_INT64, 32))
        payload = self.b.shl(self.b.and_(bits, self._all(_INT64, 0x7FFFFF)), self._all(_INT64, 29))
        kept = self.b.or_(self.b.or_(sign, payload), self._all(_INT64, 0x7FF << 52))
        return self.b.select(self._is_nan(value), self.b.bitcast(kept, self._of(_DOUBLE)), wide)
