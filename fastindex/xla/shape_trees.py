"""The shapes inside nested tuples, and the shapes of a computation: its parameters and its result.

A shape index is a path to one of them: ``(1, 0)`` is element 0 of element 1, ``()`` is the whole shape.

Source: ``xla/shape_util.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from fastindex.core.integers import as_integers, counted, spelled
from fastindex.core.proto import shape_from_bytes, shape_to_bytes
from fastindex.core.shape import Shape, as_shape
from fastindex.core.shape_text import ShapeReader, format_shape
from fastindex.core.wire import Fields, bytes_field, bytes_of_message
from fastindex.errors import ArgumentTypeError, LayoutError, OutOfBoundsError

ShapeIndex = tuple[int, ...]


def get_subshape(shape: Shape | str, shape_index: Iterable[SupportsIndex]) -> Shape:
    """Return the shape at a shape index.

    Raises
    ------
    OutOfBoundsError
        There is no such shape.

    Examples
    --------
    >>> get_subshape("(f32[], (s8[2], u8[3]))", (1, 0))
    Shape.parse('s8[2]{0}')
    """
    shape = as_shape(shape)
    found = try_get_subshape(shape, shape_index)
    if found is None:
        path = as_integers(shape_index, "shape_index")
        raise OutOfBoundsError(f"shape index {spelled(path)} does not exist in {shape.cut_text()}")
    return found


def try_get_subshape(shape: Shape | str, shape_index: Iterable[SupportsIndex]) -> Shape | None:
    """Return the shape at a shape index, or None if there is none.

    Examples
    --------
    >>> try_get_subshape("(f32[])", (1,)) is None
    True
    """
    shape = as_shape(shape)
    for i in as_integers(shape_index, "shape_index"):
        if not (shape.is_tuple and 0 <= i < len(shape.tuple_shapes)):
            return None
        shape = shape.tuple_shapes[i]
    return shape


def subshapes(shape: Shape | str) -> Iterator[tuple[ShapeIndex, Shape]]:
    """Iterate over `shape` and all shapes inside it, with their shape indices, tuples before their elements.

    Source: ``ShapeUtil::ForEachSubshape``.

    Examples
    --------
    >>> [(index, str(found)) for index, found in subshapes("(f32[], (s8[2]))")]
    [((), '(f32[], (s8[2]{0}))'), ((0,), 'f32[]'), ((1,), '(s8[2]{0})'), ((1, 0), 's8[2]{0}')]
    """
    shape = as_shape(shape)
    pending: list[tuple[ShapeIndex, Shape]] = [((), shape)]
    while pending:
        index, current = pending.pop()
        yield index, current
        if current.is_tuple:
            elements = list(enumerate(current.tuple_shapes))
            pending.extend([((*index, i), element) for i, element in reversed(elements)])


def leaf_shapes(shape: Shape | str) -> list[tuple[ShapeIndex, Shape]]:
    """Return the shapes that are not tuples, with their shape indices.

    Source: ``ShapeUtil::GetLeafShapes``.

    Examples
    --------
    >>> [index for index, _ in leaf_shapes("(f32[], (s8[2]))")]
    [(0,), (1, 0)]
    """
    shape = as_shape(shape)
    return [(index, found) for index, found in subshapes(shape) if not found.is_tuple]


def map_leaves(shape: Shape | str, change: Callable[[Shape], Shape | str]) -> Shape:
    """Return `shape` with `change` applied to every shape in it that is not a tuple.

    Raises
    ------
    ArgumentTypeError
        `change` returns neither a shape nor text.

    Examples
    --------
    >>> str(map_leaves("(f32[], (s8[2]))", lambda leaf: Shape.token()))
    '(token[], (token[]))'
    """
    # Each entry: the remaining elements of a tuple in reverse, and the changed ones. No recursion: tuples can nest
    # thousands of levels deep.
    shape = as_shape(shape)
    open_tuples: list[tuple[list[Shape], list[Shape]]] = []
    current = shape
    while True:
        if current.is_tuple:
            open_tuples.append((list(reversed(current.tuple_shapes)), []))
            done = None
        else:
            done = as_shape(change(current))
        while open_tuples:
            waiting, changed = open_tuples[-1]
            if done is not None:
                changed.append(done)
                done = None
            if waiting:
                current = waiting.pop()
                break
            open_tuples.pop()
            done = Shape.tuple(changed)
        else:
            assert done is not None
            return done


@dataclass(frozen=True, slots=True, init=False)
class ProgramShape:
    """The parameters and the result of a computation.

    Source: ``ProgramShapeProto`` in ``xla/xla_data.proto``.

    Parameters
    ----------
    parameters : sequence of Shape
    result : Shape
    parameter_names : sequence of str, optional
        One per parameter; by default the parameters have no names.

    Raises
    ------
    LayoutError
        The number of names is not the number of parameters.

    Examples
    --------
    >>> str(ProgramShape([Shape("f32", (2, 3))], Shape("f32"), ["x"]))
    '(x: f32[2,3]) -> f32[]'
    """

    parameters: tuple[Shape, ...]
    result: Shape
    parameter_names: tuple[str, ...]

    def __init__(self, parameters: Sequence[Shape], result: Shape, parameter_names: Sequence[str] = ()) -> None:
        names = tuple(parameter_names) or ("",) * len(parameters)
        if len(names) != len(parameters):
            raise LayoutError(
                f"there must be one name per parameter: {counted(len(names), 'name')} for {len(parameters)}"
            )
        for shape in (*parameters, result):
            if not isinstance(shape, Shape):
                raise ArgumentTypeError(f"a program shape must hold shapes, got {shape!r}")
        object.__setattr__(self, "parameters", tuple(parameters))
        object.__setattr__(self, "result", result)
        object.__setattr__(self, "parameter_names", names)

    @staticmethod
    def parse(text: str) -> ProgramShape:
        """Parse the text of a program shape, with or without names and layouts.

        Raises
        ------
        ParseError
            The text is not a program shape; `position` says where it goes wrong.

        Examples
        --------
        >>> ProgramShape.parse("(x: f32[2,3]{0,1}, s8[]) -> f32[]").parameter_names
        ('x', '')
        >>> str(ProgramShape.parse("(f32[2,3]{1,0})->(f32[], s32[])"))
        '((unknown): f32[2,3]) -> (f32[], s32[])'
        """
        reader = ShapeReader(text, Shape)
        reader.expect("(", "the parameters, as in (x: f32[2]) -> f32[]")
        names: list[str] = []
        parameters: list[Shape] = []
        while reader.tokens[reader.at] != ")":
            if parameters:
                reader.expect(",", "',' or ')' in the parameters")
            names.append(reader.name())
            parameters.append(reader.shape())
        reader.at += 1
        reader.expect("-", "'->' and the result")
        reader.expect(">", "'->' and the result")
        result = reader.shape()
        reader.end("result")
        return ProgramShape(parameters, result, names)

    @staticmethod
    def from_proto(proto: object) -> ProgramShape:
        """Read a ``ProgramShapeProto``: its bytes, or a message object of the protobuf library.

        Raises
        ------
        FastIndexError
            The bytes are not a proto, or a shape is not valid.

        Examples
        --------
        >>> program = ProgramShape([Shape("f32", (2, 3))], Shape("f32"), ["x"])
        >>> ProgramShape.from_proto(program.to_proto()) == program
        True
        """
        fields = Fields(bytes_of_message(proto), "ProgramShapeProto")
        result = fields.message(2)
        if result is None:
            raise LayoutError("the ProgramShapeProto has no result")
        parameters = [shape_from_bytes(parameter, Shape) for parameter in fields.messages(1)]
        names = [name.decode("utf-8", "replace") for name in fields.messages(3)]
        # Like XLA, which fills in missing names.
        names += [""] * (len(parameters) - len(names))
        return ProgramShape(parameters, shape_from_bytes(result, Shape), names[: len(parameters)])

    def to_proto(self) -> bytes:
        """Serialise as a ``ProgramShapeProto``, byte for byte like XLA.

        Examples
        --------
        >>> ProgramShape([], Shape.token()).to_proto().hex()
        '12021011'
        """
        return b"".join(
            [
                *[bytes_field(1, shape_to_bytes(parameter)) for parameter in self.parameters],
                bytes_field(2, shape_to_bytes(self.result)),
                *[bytes_field(3, name.encode()) for name in self.parameter_names],
            ]
        )

    def __str__(self) -> str:
        parameters = [
            f"{name or '(unknown)'}: {format_shape(shape, with_layout=False)}"
            for name, shape in zip(self.parameter_names, self.parameters, strict=True)
        ]
        return f"({', '.join(parameters)}) -> {format_shape(self.result, with_layout=False)}"
