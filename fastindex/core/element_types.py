"""XLA's primitive types: names, numbers, widths and NumPy dtypes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal

from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.first_use import load

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["predicate", "signed", "unsigned", "float", "complex", "other"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ElementType:
    """One of XLA's primitive types. It compares equal to its name.

    Source: ``PrimitiveType`` in ``xla/xla_data.proto``.

    Attributes
    ----------
    name : str
        XLA's name, as in text.
    number : int
        XLA's number, as in protos.
    bits : int
        Number of bits of a value; 0 for types that are not array elements.
    kind : {"predicate", "signed", "unsigned", "float", "complex", "other"}
    nbytes : int
        Number of bytes of one element that is not packed.
    is_array : bool
        Whether arrays can have this element type.
    is_integral : bool
        Whether this is a signed or unsigned integer type; ``pred`` is neither.
    is_floating, is_complex : bool
        Whether this is a real, or a complex floating-point type.
    is_sub_byte : bool
        Whether a value has fewer than 8 bits; false for ``pred``.

    Examples
    --------
    >>> t = ElementType.of("s4")
    >>> t == "s4", str(t), t.bits, t.nbytes, t.is_sub_byte, t.is_integral
    (True, 's4', 4, 1, True, True)
    >>> ElementType.of("pred").is_integral, ElementType.of("c64").nbytes, ElementType.of("token").is_array
    (False, 8, False)
    """

    name: str
    number: int
    bits: int
    kind: Kind

    nbytes: int = field(init=False)
    is_array: bool = field(init=False)
    is_integral: bool = field(init=False)
    is_floating: bool = field(init=False)
    is_complex: bool = field(init=False)
    is_sub_byte: bool = field(init=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)
        put("nbytes", -(-self.bits // 8))
        put("is_array", self.kind != "other")
        put("is_integral", self.kind in ("signed", "unsigned"))
        put("is_floating", self.kind == "float")
        put("is_complex", self.kind == "complex")
        put("is_sub_byte", 0 < self.bits < 8 and self.kind != "predicate")

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of unpacked elements. Imports NumPy, and ml_dtypes if needed.

        Raises
        ------
        UnsupportedError
            Arrays cannot have this type, or the installed ml_dtypes lacks it.

        Examples
        --------
        >>> ElementType.of("f32").numpy_dtype
        dtype('float32')
        """
        return _numpy_dtype(self.name)

    @staticmethod
    def of(value: Any) -> ElementType:
        """Return the element type for an ElementType, an XLA name or a NumPy dtype.

        Raises
        ------
        FastIndexError
            There is no such element type.
        ArgumentTypeError
            `value` is none of these.

        Examples
        --------
        >>> import numpy as np
        >>> ElementType.of("bf16"), ElementType.of(np.float32)
        (ElementType('bf16'), ElementType('f32'))
        """
        if isinstance(value, ElementType):
            return value
        if isinstance(value, str):
            found = BY_NAME.get(value)
            if found is None:
                raise FastIndexError(f"no element type is called {value!r}; {_names_meant(value)}")
            return found
        try:
            if value is not None:
                return ElementType.from_numpy_dtype(value)
        except TypeError:
            pass
        # Dtypes of other libraries, such as torch.float32.
        meant = xla_name(str(value).rpartition(".")[2])
        hint = f"; write {meant!r}" if meant else ""
        raise ArgumentTypeError(
            f"an element type must be an ElementType, XLA's name such as 'f32', or a NumPy dtype, got {value!r}{hint}"
        )

    @staticmethod
    def from_number(number: int) -> ElementType:
        """Return the element type with XLA's `number`.

        Raises
        ------
        FastIndexError
            There is no such element type.

        Examples
        --------
        >>> ElementType.from_number(16)
        ElementType('bf16')
        """
        found = BY_NUMBER.get(number)
        if found is None:
            raise FastIndexError(f"no element type has the number {number}")
        return found

    @staticmethod
    def from_numpy_dtype(dtype: Any) -> ElementType:
        """Return the element type of a NumPy dtype or scalar type.

        Raises
        ------
        FastIndexError
            XLA does not have this element type.

        Examples
        --------
        >>> import ml_dtypes
        >>> ElementType.from_numpy_dtype("float32"), ElementType.from_numpy_dtype(ml_dtypes.int4)
        (ElementType('f32'), ElementType('s4'))
        """
        import numpy as np

        return _of_numpy(np.dtype(dtype))

    @staticmethod
    def from_dtype_name(name: str, library: str) -> ElementType:
        """Return the element type for a dtype's name in NumPy, ml_dtypes, JAX or PyTorch.

        Parameters
        ----------
        name : str
        library : str
            The library, for the error message.

        Raises
        ------
        FastIndexError
            XLA does not have this element type.

        Examples
        --------
        >>> ElementType.from_dtype_name("bfloat16", "PyTorch")
        ElementType('bf16')
        """
        found = _NAME_OF_DTYPE.get(name)
        if found is None:
            raise FastIndexError(f"XLA has no element type for the {library} dtype {name}")
        return BY_NAME[found]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ElementType):
            return self.name == other.name
        if isinstance(other, str):
            return self.name == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"ElementType({self.name!r})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return ElementType.of, (self.name,)


_ROWS: tuple[tuple[str, int, int, Kind, str], ...] = (
    ("pred", 1, 1, "predicate", "bool"),
    ("s1", 30, 1, "signed", "int1"),
    ("s2", 26, 2, "signed", "int2"),
    ("s4", 21, 4, "signed", "int4"),
    ("s8", 2, 8, "signed", "int8"),
    ("s16", 3, 16, "signed", "int16"),
    ("s32", 4, 32, "signed", "int32"),
    ("s64", 5, 64, "signed", "int64"),
    ("u1", 31, 1, "unsigned", "uint1"),
    ("u2", 27, 2, "unsigned", "uint2"),
    ("u4", 22, 4, "unsigned", "uint4"),
    ("u8", 6, 8, "unsigned", "uint8"),
    ("u16", 7, 16, "unsigned", "uint16"),
    ("u32", 8, 32, "unsigned", "uint32"),
    ("u64", 9, 64, "unsigned", "uint64"),
    ("f16", 10, 16, "float", "float16"),
    ("bf16", 16, 16, "float", "bfloat16"),
    ("f32", 11, 32, "float", "float32"),
    ("f64", 12, 64, "float", "float64"),
    ("f8e5m2", 19, 8, "float", "float8_e5m2"),
    ("f8e4m3", 28, 8, "float", "float8_e4m3"),
    ("f8e4m3fn", 20, 8, "float", "float8_e4m3fn"),
    ("f8e4m3b11fnuz", 23, 8, "float", "float8_e4m3b11fnuz"),
    ("f8e3m4", 29, 8, "float", "float8_e3m4"),
    ("f8e5m2fnuz", 24, 8, "float", "float8_e5m2fnuz"),
    ("f8e4m3fnuz", 25, 8, "float", "float8_e4m3fnuz"),
    ("f8e8m0fnu", 33, 8, "float", "float8_e8m0fnu"),
    ("f6e3m2fn", 35, 6, "float", "float6_e3m2fn"),
    ("f6e2m3fn", 36, 6, "float", "float6_e2m3fn"),
    ("f4e2m1fn", 32, 4, "float", "float4_e2m1fn"),
    ("c64", 15, 64, "complex", "complex64"),
    ("c128", 18, 128, "complex", "complex128"),
    ("tuple", 13, 0, "other", ""),
    ("opaque", 14, 0, "other", ""),
    ("token", 17, 0, "other", ""),
    ("buffer", 34, 0, "other", ""),
)
#: Element types by XLA name.
BY_NAME: Final = {name: ElementType(name, number, bits, kind) for name, number, bits, kind, _ in _ROWS}
#: Element types by XLA number.
BY_NUMBER: Final = {element_type.number: element_type for element_type in BY_NAME.values()}
#: Names of the integer types, as a set and by XLA number.
INTEGER_TYPES: Final = frozenset(name for name, found in BY_NAME.items() if found.kind in ("signed", "unsigned"))
INTEGER_NAMES: Final = {BY_NAME[name].number: name for name in INTEGER_TYPES}
_DTYPE_NAME_OF = {row[0]: row[4] for row in _ROWS if row[4]}
_NAME_OF_DTYPE = {row[4]: row[0] for row in _ROWS if row[4]}


#: Names from C and PyTorch. `int` and `float` are left out: their widths differ between libraries.
_OTHER_NAMES: Final = {
    "half": "f16",
    "bfloat": "bf16",
    "single": "f32",
    "double": "f64",
    "cfloat": "c64",
    "cdouble": "c128",
    "short": "s16",
    "long": "s64",
    "byte": "u8",
    **{f"fp{bits}": f"f{bits}" for bits in (16, 32, 64)},
}


def xla_name(text: str) -> str | None:
    """Return XLA's name for an element type of NumPy, PyTorch, MLIR or C; None if `text` is not one.

    Examples
    --------
    >>> xla_name("bfloat16"), xla_name("i8"), xla_name("F32"), xla_name("half"), xla_name("f33")
    ('bf16', 's8', 'f32', 'f16', None)
    """
    lower = text.lower()
    known = _NAME_OF_DTYPE.get(lower) or _OTHER_NAMES.get(lower)
    signed = f"s{lower[1:]}" if lower[:1] == "i" else lower
    return known or next((name for name in (lower, signed) if name in BY_NAME), None)


def _names_meant(text: str) -> str:
    meant = xla_name(text)
    if meant:
        return f"XLA's name is {meant}"
    if "[" in text:
        return f"Shape.parse({text!r}) reads the text of a shape"
    return f"the names are {', '.join(name for name, kind in BY_NAME.items() if kind.is_array)}"


@lru_cache(maxsize=256)
def _of_numpy(dtype: np.dtype[Any]) -> ElementType:
    # Cached: NumPy builds a dtype's name in Python on each access, which took a seventh of a small `pack`.
    return ElementType.from_dtype_name(dtype.name, "NumPy")


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    dtype_name = _DTYPE_NAME_OF.get(name)
    if dtype_name is None:
        raise UnsupportedError(f"{name} is not an array element type, so it has no NumPy dtype")
    if hasattr(np, dtype_name):
        return np.dtype(dtype_name)
    load("ml_dtypes")
    import ml_dtypes

    scalar = getattr(ml_dtypes, dtype_name, None)
    if scalar is None:
        raise UnsupportedError(f"{name} needs ml_dtypes.{dtype_name}; update ml_dtypes ({ml_dtypes.__version__})")
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype
