"""Named formats in the rules of a checkpoint: source, target, and the sizes of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.patterns.format_table import PARAMETERS
from fastindex.patterns.named_formats import PLAIN, chosen, known_name, takes_any_width
from fastindex.weights.found_formats import FoundFormat, found_format_of
from fastindex.weights.repack_arguments import (
    Parameters,
    check_words,
    checked_bits,
    checked_parameters,
    checked_sizes,
    has_words,
    other_version,
    sizes_of_words,
    word_bits,
)
from fastindex.weights.repack_jobs import Formats
from fastindex.weights.repack_plans import End, Format
from fastindex.weights.tensors import Tensor

_KEYS = ("from", "to", "shape", "bits")


@dataclass(frozen=True, slots=True)
class FormatRule:
    """A move between named formats, as `repack` does it.

    Attributes
    ----------
    names : (Format, Format)
    sizes : tuple of int, optional
        The dimensions of the array; by default, derived from the tensor.
    bits : int, optional
    parameters : tuple of (str, object)
    """

    names: tuple[Format, Format]
    sizes: tuple[int, ...] | None
    bits: int | None
    parameters: Parameters

    def formats_of(self, tensor: Tensor) -> Formats:
        """Return the move of a tensor, with its sizes and bits.

        Raises
        ------
        FastIndexError
            The sizes, the width or the bytes of the tensor do not fit.
        """
        if tensor.is_opaque and str(self.names[0]).startswith("gguf_"):
            raise FastIndexError(
                f"{tensor.name[:200]!r} is blocks of {tensor.dtype}, each with its scale beside its codes, and "
                f'{self.names[0]} is the codes alone: fastindex convert separates them, with "field": "codes"'
            )
        width, bits = _bits_of(tensor), self.bits
        if bits is None and self.names[0] == PLAIN and takes_any_width(self.names[1]):
            bits = width
        sizes = self.sizes if self.sizes is not None else self._sizes_of(tensor, width)
        formats = Formats(self.names, sizes, bits, self.parameters)
        left = formats.plan().ends[0]
        if left.side.nbytes != tensor.shape.nbytes:
            raise FastIndexError(
                f"{tensor.name[:200]!r} has {tensor.shape.nbytes} bytes, {left.name} of {left.sizes} with {left.bits} "
                f"bits takes {left.side.nbytes}{other_version(left, tensor.shape.nbytes)}"
            )
        if not tensor.is_opaque:
            check_words(left, tensor.sizes, width, repr(tensor.name[:200]))
        return formats

    def _sizes_of(self, tensor: Tensor, width: int) -> tuple[int, ...]:
        name, given = self.names[0], dict(self.parameters)
        if name == PLAIN:
            return tensor.sizes
        if isinstance(name, FoundFormat):
            return name.sizes
        if not has_words(name) or len(tensor.sizes) < 2 or tensor.is_opaque:
            raise FastIndexError(
                f"{tensor.name[:200]!r} does not tell of what sizes its {name} is; give the format a shape such as "
                "[4096, 11008]"
            )
        one = chosen(name, self.bits, {k: v for k, v in given.items() if k in PARAMETERS.get(name, {})})
        *batch, last = tensor.sizes
        return sizes_of_words(one, (*batch, last * width // word_bits(one)))


def _bits_of(tensor: Tensor) -> int:
    element_type = tensor.shape.element_type
    return element_type.bits if tensor.shape.layout.element_size_in_bits else 8 * element_type.nbytes


def formats_of(given: Any) -> dict[str, FoundFormat]:
    """Return the discovered formats that rules bring along, by their names: ``{"formats": {...}, "rules": [...]}``.

    Raises
    ------
    ArgumentTypeError, FastIndexError
        No mapping of names to objects that `Discovery.to_json` makes.
    """
    formats = given.get("formats", {}) if isinstance(given, Mapping) else {}
    if not isinstance(formats, Mapping):
        raise ArgumentTypeError(f"formats are a mapping of names to what was discovered, got {str(formats)[:200]}")
    return {name: found_format_of(one, name) for name, one in formats.items()}


def format_rule_of(given: Any, formats: Mapping[str, FoundFormat]) -> FormatRule:
    """Parse the ``format`` of a rule.

    Parameters
    ----------
    given : object
    formats : mapping
        The discovered formats by their names.

    Raises
    ------
    ArgumentTypeError
        Not a mapping, or sizes, bits or parameters of another type.
    FastIndexError
        A missing or unknown name of a format.
    """
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ArgumentTypeError(f"the format of a rule is a mapping with {', '.join(_KEYS)}, got {str(given)[:200]}")
    if not {"from", "to"} <= set(given):
        raise FastIndexError(f"the format of a rule says from what to what; got {', '.join(given)[:200]}")
    source, target = (_format_of(given[key], formats) for key in ("from", "to"))
    sizes = None if given.get("shape") is None else checked_sizes(given["shape"])
    parameters = checked_parameters({key: value for key, value in given.items() if key not in _KEYS})
    return FormatRule((source, target), sizes, checked_bits(given.get("bits")), parameters)


def _format_of(name: Any, formats: Mapping[str, FoundFormat]) -> Format:
    if isinstance(name, str) and name in formats:
        return formats[name]
    return known_name(name)


def shape_of(end: End) -> Shape:
    """Return the shape of one end of a move as stored: the codes of a plain array, or the bytes of a format.

    Examples
    --------
    >>> print(shape_of(Formats(("awq", "marlin"), (16, 64), None, ()).plan().ends[1]))
    u8[512]{0}
    >>> print(shape_of(Formats(("awq", "plain"), (16, 64), None, ()).plan().ends[1]))
    u8[16,64]{1,0}
    """
    return Shape(f"u{max(end.bits, 8)}", end.sizes) if end.row is None else Shape("u8", (end.side.nbytes,))
