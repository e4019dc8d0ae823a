"""Infer omitted shapes of instructions from operands and attributes, as XLA's parser does.

XLA prints every shape; handwritten text and tests omit them. A result with the dimensions of an operand mostly has its
layout; other results have the default layout.

Source: ``CanInferShape`` in ``xla/hlo/parser/hlo_parser.cc``, ``xla/service/shape_inference.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from fastindex.core.element_types import ElementType
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.hlo.flow_rules import ELEMENTWISE
from fastindex.hlo.grammar import integer

_UNINFERRED = frozenset(("bitcast-convert", "convert", "reduce-precision", "stochastic-convert"))
#: Opcodes whose shape may be omitted.
INFERRED = frozenset(opcode.encode() for opcode in ELEMENTWISE - _UNINFERRED) | frozenset(
    (
        b"add-dependency", b"after-all", b"batch-norm-grad", b"batch-norm-inference", b"batch-norm-training",
        b"broadcast", b"call", b"cholesky", b"concatenate", b"conditional", b"convolution", b"copy", b"domain", b"dot",
        b"fft", b"gather", b"get-dimension-size", b"get-tuple-element", b"pad", b"partition-id", b"ragged-dot",
        b"reduce", b"reduce-window", b"replica-id", b"reverse", b"scaled-dot", b"scan", b"scatter",
        b"select-and-scatter", b"set-dimension-size", b"sort", b"topk", b"transpose", b"triangular-solve", b"tuple",
        b"while",
    )
)  # fmt: skip

#: Number of the operand that has the result's shape, by opcode.
_SHAPE_OF = {
    "add-dependency": 0, "batch-norm-inference": 0, "cholesky": 0, "clamp": 1, "copy": 0, "domain": 0, "reverse": 0,
    "select-and-scatter": 0, "triangular-solve": 1, "while": 0,
}  # fmt: skip
_SCALARS = {"get-dimension-size": "s32[]", "partition-id": "u32[]", "replica-id": "u32[]", "after-all": "token[]"}
_PREDICATES = frozenset(("compare", "is-finite"))
_LABELS = re.compile(r", dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"\b(size|stride|pad|lhs_dilate|rhs_dilate)=([\d_x\-]+)")
#: Returns the shape of the root of the named computation; None if unknown.
RootShape = Callable[[str], Shape | None]


def inferred_shape(opcode: str, operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape | None:
    """Return the shape of an instruction; None if it cannot be inferred.

    Parameters
    ----------
    opcode : str
    operands : sequence of Shape
    attributes : str
        In XLA's spelling.
    root_shape : callable

    Examples
    --------
    >>> a = Shape.parse("f32[8,7]{0,1:T(8,128)}")
    >>> str(inferred_shape("compare", [a, a], ", direction=LT", lambda name: None))
    'pred[8,7]{0,1:T(8,128)}'
    >>> str(inferred_shape("concatenate", [a, a], ", dimensions={1}", lambda name: None))
    'f32[8,14]{1,0}'
    """
    try:
        return _inferred(opcode, operands, attributes, root_shape)
    except (IndexError, KeyError, ValueError):
        # A missing or inconsistent attribute or operand; every error of the package is a ValueError.
        return None


def _inferred(opcode: str, operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape | None:
    if opcode in _SCALARS:
        return Shape.parse(_SCALARS[opcode])
    if opcode in ("call", "conditional"):
        return root_shape(_callee(attributes))
    if opcode in _SHAPE_OF:
        return operands[_SHAPE_OF[opcode]]
    if opcode == "tuple" or (opcode == "sort" and len(operands) > 1):
        return _tuple(operands)
    if opcode in ("scatter", "sort"):
        inputs = operands[: (len(operands) - 1) // 2] if opcode == "scatter" else operands
        return inputs[0] if len(inputs) == 1 else _tuple(inputs)
    if opcode == "get-tuple-element":
        return operands[0].tuple_shapes[_numbers(attributes, "index")[0]]
    if opcode in _PREDICATES:
        return _broadcast_together(operands).with_element_type("pred")
    if opcode == "complex":
        return _broadcast_together(operands).with_element_type("c128" if operands[0].element_type == "f64" else "c64")
    if opcode in ("real", "imag", "abs"):
        return operands[0].with_element_type(_real(operands[0].element_type))
    if opcode == "select":
        predicate, value = operands[0], operands[1]
        if not predicate.rank:
            return value
        layout = replace(predicate.layout, element_size_in_bits=value.layout.element_size_in_bits)
        return predicate.with_element_type(value.element_type).with_layout(layout)
    if opcode == "map":
        root = root_shape(_callee(attributes))
        return None if root is None else _plain(root.element_type, operands[0].dimensions)
    if opcode in _OTHERS:
        return _OTHERS[opcode](operands, attributes, root_shape)
    return _broadcast_together(operands) if opcode in ELEMENTWISE else None


def _broadcast_together(operands: Sequence[Shape]) -> Shape:
    """Return the result shape of an elementwise opcode: that of the first operand, unless the dimensions differ."""
    first, *others = operands
    for other in others:
        element_type = _wider(first.element_type, other.element_type)
        if other.dimensions == first.dimensions:
            first = first.with_element_type(element_type)
        elif not other.rank or not first.rank:
            first = _plain(element_type, first.dimensions or other.dimensions)
        else:
            sizes = [b if a == 1 else a for a, b in zip(first.dimensions, other.dimensions, strict=True)]
            first = _plain(element_type, sizes)
    return first


def _tuple(shapes: Sequence[Shape]) -> Shape:
    return Shape.parse(f"({', '.join(map(str, shapes))})")


def _plain(element_type: ElementType | str, dimensions: Sequence[int]) -> Shape:
    """Return an array shape with the default layout."""
    return Shape(element_type, tuple(dimensions), Layout(tuple(range(len(dimensions)))[::-1]))


def _real(element_type: ElementType) -> str:
    return {"c64": "f32", "c128": "f64"}.get(element_type.name, element_type.name)


def _wider(first: ElementType, second: ElementType) -> ElementType:
    return second if second.is_floating and first.is_floating and second.bits > first.bits else first


def _callee(attributes: str) -> str:
    found = re.search(r"(?:to_apply|true_computation|branch_computations)=\{?%?([^\s,{}]+)", attributes)
    return found.group(1) if found else ""


def _numbers(attributes: str, name: str) -> list[int]:
    """Return the numbers in an attribute; empty if it is absent."""
    found = re.search(rf", {name}=\{{?([\d,\s]*)", attributes)
    return [integer(number) for number in re.findall(r"\d+", found.group(1))] if found else []


def _transpose(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    operand, order = operands[0], _numbers(attributes, "dimensions")
    dimensions = [operand.dimensions[number] for number in order]
    minor_to_major = tuple(order.index(number) for number in operand.layout.minor_to_major)
    return Shape(operand.element_type, dimensions, replace(operand.layout, minor_to_major=minor_to_major))


def _broadcast(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    return _plain(operands[0].element_type, [*_numbers(attributes, "dimensions"), *operands[0].dimensions])


def _concatenate(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    (number,) = _numbers(attributes, "dimensions")
    dimensions = list(operands[0].dimensions)
    dimensions[number] = sum(operand.dimensions[number] for operand in operands)
    element_type = operands[0].element_type
    for operand in operands[1:]:
        element_type = _wider(element_type, operand.element_type)
    return _plain(element_type, dimensions)


def _pad(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    found = re.search(r", padding=([\d_x\-]+)", attributes)
    edges = [[int(part) for part in each.split("_")] for each in found.group(1).split("x")] if found else []
    sizes = [
        size + low + high + max(size - 1, 0) * sum(inner)
        for size, (low, high, *inner) in zip(operands[0].dimensions, edges, strict=True)
    ]
    return _plain(_wider(operands[0].element_type, operands[1].element_type), sizes)


def _reduce(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape | None:
    gone = _numbers(attributes, "dimensions")
    sizes = [size for number, size in enumerate(operands[0].dimensions) if number not in gone]
    return _of_root(root_shape(_callee(attributes)), sizes)


def _of_root(root: Shape | None, sizes: Sequence[int]) -> Shape | None:
    """Return array shapes with the element types of a reducer's result."""
    if root is None:
        return None
    return (
        _tuple([_plain(each.element_type, sizes) for each in root.tuple_shapes])
        if root.is_tuple
        else (_plain(root.element_type, sizes))
    )


def _dot(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    left, right = operands
    batch, other_batch = _numbers(attributes, "lhs_batch_dims"), _numbers(attributes, "rhs_batch_dims")
    gone = [*batch, *_numbers(attributes, "lhs_contracting_dims")]
    other_gone = [*other_batch, *_numbers(attributes, "rhs_contracting_dims")]
    sizes = [left.dimensions[number] for number in batch]
    sizes += [size for number, size in enumerate(left.dimensions) if number not in gone]
    sizes += [size for number, size in enumerate(right.dimensions) if number not in other_gone]
    return _plain(_wider(left.element_type, right.element_type), sizes)


def _scaled_dot(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    return _dot((operands[0], operands[2]), attributes, root_shape)


def _fft(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    operand, lengths = operands[0], _numbers(attributes, "fft_length")
    sizes = list(operand.dimensions)
    if "fft_type=RFFT" in attributes:
        sizes[-1] = lengths[-1] // 2 + 1
        return Shape("c128" if operand.element_type == "f64" else "c64", sizes, operand.layout)
    if "fft_type=IRFFT" in attributes:
        sizes[-1] = lengths[-1]
        return Shape(_real(operand.element_type), sizes, operand.layout)
    return operand


def _gather(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    operand, indices = operands
    vector = _numbers(attributes, "index_vector_dim")[0]
    gone = [*_numbers(attributes, "collapsed_slice_dims"), *_numbers(attributes, "operand_batching_dims")]
    slices = [size for number, size in enumerate(_numbers(attributes, "slice_sizes")) if number not in gone]
    batches = [size for number, size in enumerate(indices.dimensions) if number != vector]
    offsets = _numbers(attributes, "offset_dims")
    sizes = [slices.pop(0) if number in offsets else batches.pop(0) for number in range(len(slices) + len(batches))]
    return _plain(operand.element_type, sizes)


def _windowed(sizes: Sequence[int], attributes: str) -> list[int]:
    """Return the number of window positions along each dimension."""
    found = re.search(r", window=\{([^{}]*)\}", attributes)
    fields = {name: text.split("x") for name, text in _WINDOW.findall(found.group(1))} if found else {}
    counts = []
    for number, size in enumerate(sizes):

        def at(name: str, default: str, number: int = number) -> str:
            return fields[name][number] if name in fields else default

        low, high = (int(part) for part in at("pad", "0_0").split("_"))
        dilated = (size - 1) * int(at("lhs_dilate", "1")) + 1 if size else 0
        window = (int(at("size", "1")) - 1) * int(at("rhs_dilate", "1")) + 1
        left = dilated + low + high - window
        counts.append(left // int(at("stride", "1")) + 1 if left >= 0 else 0)
    return counts


def _reduce_window(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape | None:
    return _of_root(root_shape(_callee(attributes)), _windowed(operands[0].dimensions, attributes))


def _convolution(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    found = _LABELS.search(attributes)
    left, right, result = found.groups() if found else ("", "", "")
    spatial = sorted(label for label in result if label.isdigit())
    counts = _windowed([operands[0].dimensions[left.index(label)] for label in spatial], attributes)
    sizes = dict(zip(spatial, counts, strict=True))
    groups = _numbers(attributes, "batch_group_count") or [1]
    sizes["b"] = operands[0].dimensions[left.index("b")] // groups[0]
    sizes["f"] = operands[1].dimensions[right.index("o")]
    return _plain(_wider(operands[0].element_type, operands[1].element_type), [sizes[label] for label in result])


def _batch_norm(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    feature = _plain(operands[0].element_type, [operands[0].dimensions[_numbers(attributes, "feature_index")[0]]])
    return _tuple((operands[0], feature, feature))


def _topk(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    sizes = [*operands[0].dimensions[:-1], _numbers(attributes, "k")[0]]
    return _tuple((_plain(operands[0].element_type, sizes), _plain("s32", sizes)))


def _bounded(operands: Sequence[Shape], attributes: str, root_shape: RootShape) -> Shape:
    """Mark a dimension as bounded dynamic."""
    (number,) = _numbers(attributes, "dimensions")
    sizes = [f"<={size}" if at == number else str(size) for at, size in enumerate(operands[0].dimensions)]
    return Shape.parse(f"{operands[0].element_type}[{','.join(sizes)}]{operands[0].layout}")


_OTHERS: dict[str, Callable[[Sequence[Shape], str, RootShape], Shape | None]] = {
    "batch-norm-grad": _batch_norm,
    "batch-norm-training": _batch_norm,
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "convolution": _convolution,
    "dot": _dot,
    "fft": _fft,
    "gather": _gather,
    "pad": _pad,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scaled-dot": _scaled_dot,
    "set-dimension-size": _bounded,
    "topk": _topk,
    "transpose": _transpose,
}
