"""The shape of a computation: its parameters and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastindex.core.integers import counted
from fastindex.core.proto import shape_from_bytes, shape_to_bytes
from fastindex.core.shape import Shape
from fastindex.core.shape_text import format_shape
from fastindex.core.wire import Fields, bytes_field, bytes_of_message
from fastindex.errors import ArgumentTypeError, LayoutError


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
