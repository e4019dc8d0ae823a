"""Conversions between element types, as LLVM instructions: of vectors on the CPU, of one element on the GPU.

Results are those of NumPy and ml_dtypes, bit for bit, except that a float which an integer type cannot hold becomes the
nearest number that it can, and NaN becomes 0: NumPy's result there depends on the processor. XLA does the same, in the
``ConvertElementType`` of `jaxlib`. Comments in the code name the other special cases.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.runtime.numbers import CODE_BITS, CODE_GREATEST, CODE_LEAST, CODE_OFFSET, CODE_OUTSIDE

_INT8, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()

_TABLE_BYTES = {"byte": 1, "checked byte": 1, "two bytes": 2, "four bytes": 4, "eight bytes": 8}


class Conversion:
    """The instructions of one conversion: integers of an element's bits become integers of another's.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    names : pair of str
        The source and the target, as `fastindex.algebra.cast_numbers.names_of` returns them.
    lanes : int, optional
        Number of vector lanes; without it, numbers are converted one by one.
    space : int
        LLVM's address space of the lookup table.
    keeps_nan : bool
        Whether the hardware keeps the payload of NaN between f32 and f64, as CPUs do; a GPU need not.
    """

    def __init__(
        self, builder: Any, names: tuple[str, str], lanes: int = 0, space: int = 0, keeps_nan: bool = True
    ) -> None:
        self.b, self.lanes, self.space, self.keeps_nan = builder, lanes, space, keeps_nan
        self.source, self.target = names

    def converted(self, value: Any, table: Any) -> Any:
        """Return the bits of the results; `table` is the address of the lookup table."""
        if self.source == "byte":
            return self._looked_up(table, self.b.zext(value, self._of(_INT64)), _TABLE_BYTES[self.target])
        value = self._number(value)
        if self.target == "code":
            return self._to_code(value, table)
        if self.target == "narrow":
            return self._looked_up(table, self._upper_half(self._as_float(value)), 1)
        found = self._converted(value)
        return self.b.bitcast(found, self._of(_INT64)) if self.target == "f64" else found

    def _of(self, kind: Any) -> Any:
        return ir.VectorType(kind, self.lanes) if self.lanes else kind

    def _all(self, kind: Any, number: float) -> Any:
        return ir.Constant(self._of(kind), [number] * self.lanes if self.lanes else number)

    def _width_of(self, value: Any) -> int:
        return int(value.type.element.width if self.lanes else value.type.width)

    def _looked_up(self, table: Any, indices: Any, nbytes: int) -> Any:
        kind = ir.IntType(8 * nbytes)
        offsets = self.b.mul(indices, self._all(_INT64, nbytes))
        if not self.lanes:
            return self._entry(self.b.add(table, offsets), kind)
        found: Any = ir.Constant(self._of(kind), ir.Undefined)
        for lane in range(self.lanes):
            address = self.b.add(table, self.b.extract_element(offsets, _INT32(lane)))
            found = self.b.insert_element(found, self._entry(address, kind), _INT32(lane))
        return found

    def _entry(self, address: Any, kind: Any) -> Any:
        return self.b.load(self.b.inttoptr(address, kind.as_pointer(self.space)), align=kind.width // 8)

    # Values: integers as they are, f64 as such, all other floats as the bits of an f32.

    def _number(self, value: Any) -> Any:
        if self.source == "f16":
            return self._from_half(value)
        if self.source == "bf16":
            return self.b.shl(self.b.zext(value, self._of(_INT32)), self._all(_INT32, 16))
        return self.b.bitcast(value, self._of(_DOUBLE)) if self.source == "f64" else value

    @property
    def _is_integral(self) -> bool:
        return self.source[0] in "su"

    @property
    def _float(self) -> Any:
        """The float type to compute with, for a source of floats."""
        return _DOUBLE if self.source == "f64" else _FLOAT

    def _as_float(self, value: Any) -> Any:
        """Return the bits of values as f32; for a narrower float they are rounded once more, as in ml_dtypes."""
        if self._is_integral:
            convert = self.b.sitofp if self.source[0] == "s" else self.b.uitofp
            return self.b.bitcast(convert(value, self._of(_FLOAT)), self._of(_INT32))
        if self.source != "f64":
            return value
        found = self.b.bitcast(self.b.fptrunc(value, self._of(_FLOAT)), self._of(_INT32))
        if self.keeps_nan:
            return found
        upper = self.b.lshr(self.b.bitcast(value, self._of(_INT64)), self._all(_INT64, 29))
        payload = self.b.and_(self.b.trunc(upper, self._of(_INT32)), self._all(_INT32, 0x7FFFFF))
        sign = self.b.trunc(self.b.lshr(upper, self._all(_INT64, 3)), self._of(_INT32))
        nan = self.b.or_(self.b.and_(sign, self._all(_INT32, 1 << 31)), self._all(_INT32, 0x7FC00000))
        return self.b.select(self._is_nan_of_double(value), self.b.or_(nan, payload), found)

    def _is_nan_of_double(self, value: Any) -> Any:
        bits = self.b.and_(self.b.bitcast(value, self._of(_INT64)), self._all(_INT64, (1 << 63) - 1))
        return self.b.icmp_unsigned(">", bits, self._all(_INT64, 0x7FF << 52))

    def _converted(self, value: Any) -> Any:
        match self.target:
            case "pred":
                return self._truth(value)
            case "f64":
                return self._to_double(value)
            case "f32":
                return self._as_float(value)
            case "bf16":
                bits = self._as_float(value)
                # A byte has no more bits than bf16 keeps.
                return self._upper_bits(bits) if self.source in ("s8", "u8") else self._to_bfloat(bits)
            case "f16":
                if self.source == "f64":
                    return self._rounded_to_half(self.b.bitcast(value, self._of(_INT64)), 52)
                return self._to_half(self._as_float(value))
        return self._to_integer(value, int(self.target[1:]))

    def _truth(self, value: Any) -> Any:
        """Return whether values are not zero, of either sign; NaN is true."""
        if self.source == "f64":
            value = self.b.bitcast(value, self._of(_INT64))
        kind = ir.IntType(self._width_of(value))
        if not self._is_integral:
            value = self.b.and_(value, self._all(kind, (1 << kind.width - 1) - 1))
        return self.b.zext(self.b.icmp_unsigned("!=", value, self._all(kind, 0)), self._of(_INT8))

    def _to_integer(self, value: Any, bits: int) -> Any:
        kind, (low, high) = ir.IntType(bits), self._bounds(bits)
        if self._is_integral:
            return self._of_width(value, kind)
        number = self.b.bitcast(value, self._of(self._float))
        if bits < (53 if self._float is _DOUBLE else 24):
            bounds = [self._all(self._float, float(bound)) for bound in (low, high)]
            found = self._clamped(number, bounds[0], bounds[1], low < 0 or bits <= 16)
            return self.b.trunc(found, self._of(kind)) if bits < 32 else found
        return self._saturated(number, kind, low, high)

    def _to_code(self, value: Any, table: Any) -> Any:
        """Return integers of at most 8 bits, by the table, with the unused bits of their byte 0."""
        if not self._is_integral:
            bounds = [self._code_number(table, number, _INT32) for number in (CODE_LEAST, CODE_GREATEST)]
            low, high = (self.b.sitofp(bound, self._of(self._float)) for bound in bounds)
            value = self._clamped(self.b.bitcast(value, self._of(self._float)), low, high, True)
        return self.b.and_(self._of_width(value, _INT8), self._code_number(table, CODE_BITS, _INT8))

    def misfits(self, value: Any, table: Any) -> Any:
        """Return a nonzero value where an integer is not a valid code, by the table."""
        kind = ir.IntType(self._width_of(value))
        offset, outside = (self._code_number(table, number, kind) for number in (CODE_OFFSET, CODE_OUTSIDE))
        return self.b.and_(self.b.add(value, offset), outside)

    def _code_number(self, table: Any, number: int, kind: Any) -> Any:
        """Return a number of the table, broadcast to all lanes; it is invariant, so LLVM may read it once."""
        found = self._entry(self.b.add(table, _INT64(8 * number)), _INT64)
        found.set_metadata("invariant.load", self.b.module.add_metadata([]))
        if kind.width < 64:
            found = self.b.trunc(found, kind)
        if not self.lanes:
            return found
        first = self.b.insert_element(ir.Constant(self._of(kind), ir.Undefined), found, _INT32(0))
        return self.b.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INT32, self.lanes), [0] * self.lanes))

    def _of_width(self, value: Any, kind: Any) -> Any:
        """Return integers of another width: truncated, or extended by sign or zeros."""
        own = self._width_of(value)
        if own > kind.width:
            return self.b.trunc(value, self._of(kind))
        extend = self.b.sext if self.source[0] == "s" else self.b.zext
        return extend(value, self._of(kind)) if own < kind.width else value

    def _bounds(self, bits: int) -> tuple[int, int]:
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if self.target[0] == "s" else (0, (1 << bits) - 1)

    def _clamped(self, number: Any, low: Any, high: Any, is_signed: bool) -> Any:
        """Return floats rounded towards 0 to 32-bit integers, clamped to bounds that are exact floats; NaN as 0."""
        is_nan = self.b.fcmp_unordered("uno", number, number)
        number = self.b.select(self.b.fcmp_ordered("<", number, low), low, number)
        number = self.b.select(self.b.fcmp_ordered(">", number, high), high, number)
        number = self.b.select(is_nan, self._all(self._float, 0.0), number)
        return (self.b.fptosi if is_signed else self.b.fptoui)(number, self._of(_INT32))

    def _saturated(self, number: Any, integer: Any, low: int, high: int) -> Any:
        """Return floats rounded towards 0 to integers, saturated, where a bound is not exact as a float; NaN as 0."""
        is_above = self.b.fcmp_ordered(">=", number, self._all(self._float, float(high + 1)))
        is_below = self.b.fcmp_ordered("<=", number, self._all(self._float, float(low)))
        is_outside = self.b.or_(self.b.or_(is_above, is_below), self.b.fcmp_unordered("uno", number, number))
        inside = self.b.select(is_outside, self._all(self._float, 0.0), number)
        found = (self.b.fptosi if low else self.b.fptoui)(inside, self._of(integer))
        found = self.b.select(is_above, self._all(integer, high), found)
        return self.b.select(is_below, self._all(integer, low), found)

    def _upper_half(self, bits: Any) -> Any:
        """Return the upper 16 bits of f32, with the lowest one set if any of the lower 16 bits is.

        This rounds to odd: rounding again, to a float with two bits fewer, gives the same as rounding once.
        """
        upper = self.b.lshr(bits, self._all(_INT32, 16))
        lower = self.b.and_(bits, self._all(_INT32, 0xFFFF))
        is_more = self.b.zext(self.b.icmp_unsigned("!=", lower, self._all(_INT32, 0)), self._of(_INT32))
        return self.b.zext(self.b.or_(upper, is_more), self._of(_INT64))

    # Floats of 16 bits

    def _to_bfloat(self, bits: Any) -> Any:
        """Round the bits of f32 to bf16; every NaN becomes the quiet one of its sign, as in ml_dtypes."""
        sign = self.b.and_(bits, self._all(_INT32, 1 << 31))
        quiet = self.b.or_(sign, self._all(_INT32, 0x7FC0 << 16))
        return self._upper_bits(self.b.select(self._is_nan(bits), quiet, self._rounded_to_bfloat(bits)))

    def _rounded_to_bfloat(self, bits: Any) -> Any:
        """Return the bits of f32, not NaN, rounded so that the upper half is the result."""
        odd = self.b.and_(self.b.lshr(bits, self._all(_INT32, 16)), self._all(_INT32, 1))
        return self.b.add(self.b.add(bits, self._all(_INT32, 0x7FFF)), odd)

    def _upper_bits(self, bits: Any) -> Any:
        return self.b.trunc(self.b.lshr(bits, self._all(_INT32, 16)), self._of(_INT16))

    def _is_nan(self, bits: Any) -> Any:
        magnitude = self.b.and_(bits, self._all(_INT32, 0x7FFFFFFF))
        return self.b.icmp_unsigned(">", magnitude, self._all(_INT32, 0x7F800000))

    def _to_half(self, bits: Any) -> Any:
        """Round the bits of f32 to f16."""
        return self._rounded_to_half(bits, 23)

    def _rounded_to_half(self, bits: Any, mantissa: int) -> Any:
        """Round the bits of f32 or f64, with this many bits of mantissa, to f16, with NaN as `_half_of_nan`."""
        kind = ir.IntType(self._width_of(bits))
        real, bias = (_FLOAT, 127) if mantissa == 23 else (_DOUBLE, 1023)
        lost = mantissa - 10
        magnitude = self.b.and_(bits, self._all(kind, (1 << kind.width - 1) - 1))
        odd = self.b.and_(self.b.lshr(magnitude, self._all(kind, lost)), self._all(kind, 1))
        rebias = (15 - bias << mantissa) + (1 << lost - 1) - 1 & (1 << kind.width) - 1
        normal = self.b.lshr(self.b.add(self.b.add(magnitude, self._all(kind, rebias)), odd), self._all(kind, lost))
        # The last bit of this power of two is worth as much as that of a subnormal f16: adding it rounds in hardware.
        power = mantissa - 24
        shifted = self.b.fadd(self.b.bitcast(magnitude, self._of(real)), self._all(real, 2.0**power))
        small = self.b.sub(self.b.bitcast(shifted, self._of(kind)), self._all(kind, bias + power << mantissa))
        found = self.b.select(
            self.b.icmp_unsigned("<", magnitude, self._all(kind, bias - 14 << mantissa)),
            small,
            self.b.select(
                self.b.icmp_unsigned("<", magnitude, self._all(kind, bias + 16 << mantissa)),
                normal,
                self._all(kind, 0x7C00),
            ),
        )
        payload = self.b.lshr(self.b.and_(bits, self._all(kind, (1 << mantissa) - 1)), self._all(kind, lost))
        is_nan = self.b.icmp_unsigned(">", magnitude, self._all(kind, 2 * bias + 1 << mantissa))
        found = self.b.select(is_nan, self._half_of_nan(payload), found)
        sign = self.b.and_(self.b.lshr(bits, self._all(kind, kind.width - 16)), self._all(kind, 0x8000))
        return self.b.trunc(self.b.or_(found, sign), self._of(_INT16))

    def _half_of_nan(self, payload: Any) -> Any:
        """Return the bits of NaN: NumPy keeps the upper bits of the payload, ml_dtypes returns the quiet NaN."""
        kind = ir.IntType(self._width_of(payload))
        if self.source == "bf16":
            return self._all(kind, 0x7E00)
        is_lost = self.b.icmp_unsigned("==", payload, self._all(kind, 0))
        return self.b.or_(self.b.select(is_lost, self._all(kind, 1), payload), self._all(kind, 0x7C00))

    def _from_half(self, value: Any) -> Any:
        """Return the bits of f16 as f32; NaN keeps its payload, and stays signalling, as in NumPy."""
        wide = self.b.zext(value, self._of(_INT32))
        sign = self.b.shl(self.b.and_(wide, self._all(_INT32, 0x8000)), self._all(_INT32, 16))
        magnitude = self.b.shl(self.b.and_(wide, self._all(_INT32, 0x7FFF)), self._all(_INT32, 13))
        exponent = self.b.and_(magnitude, self._all(_INT32, 0x7C00 << 13))
        normal = self.b.add(magnitude, self._all(_INT32, 127 - 15 << 23))
        special = self.b.add(normal, self._all(_INT32, 128 - 16 << 23))
        # A subnormal is a number with this exponent, minus its leading 1.
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
        if self.source != "f16" and self.keeps_nan:
            return wide
        # A signalling NaN of f16 stays one in NumPy, which converts it in software; the hardware makes others quiet.
        quiet = 0x7FF << 52 if self.source == "f16" else 0xFFF << 51
        bits = self.b.zext(value, self._of(_INT64))
        sign = self.b.shl(self.b.and_(bits, self._all(_INT64, 1 << 31)), self._all(_INT64, 32))
        payload = self.b.shl(self.b.and_(bits, self._all(_INT64, 0x7FFFFF)), self._all(_INT64, 29))
        kept = self.b.or_(self.b.or_(sign, payload), self._all(_INT64, quiet))
        return self.b.select(self._is_nan(value), self.b.bitcast(kept, self._of(_DOUBLE)), wide)
