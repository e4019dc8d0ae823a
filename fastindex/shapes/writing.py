"""Printing shapes exactly like XLA.

Source: ``ShapeUtil::HumanStringWithLayout`` in ``xla/shape_util.cc``.
"""

from __future__ import annotations

from fastindex.shapes.integers import UNBOUNDED
from fastindex.shapes.shape_fields import ShapeFields


def format_shape(shape: ShapeFields, *, with_layout: bool = True) -> str:
    """Return the text of a shape, exactly like XLA's.

    Parameters
    ----------
    shape : Shape
    with_layout : bool
        Whether to include the layouts of arrays; that of a scalar is left out if it is ``{}``.

    Examples
    --------
    >>> from fastindex import Shape
    >>> format_shape(Shape.tuple([Shape("f32", (2, 3)), Shape("s32")]))
    '(f32[2,3]{1,0}, s32[])'
    >>> format_shape(Shape("f32", (2, 3)), with_layout=False)
    'f32[2,3]'
    """
    if shape.is_array:
        return _format_array(shape, with_layout)
    pieces: list[str] = []
    # Items still to be printed, the next one last. No recursion: tuples can nest thousands of levels deep.
    pending: list[ShapeFields | str] = [shape]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif item.is_tuple:
            pieces.append("(")
            pending.append(")")
            for i in range(len(item.tuple_shapes) - 1, -1, -1):
                pending.append(item.tuple_shapes[i])
                if i:
                    pending.append(", " if i % 5 else f", /*index={i}*/")
        elif item.is_buffer:
            pieces.append(f"b({_format_array(item.tuple_shapes[0], with_layout)})")
        elif item.is_array:
            pieces.append(_format_array(item, with_layout))
        else:
            pieces.append(f"{item.element_type}[]")
    return "".join(pieces)


def _format_array(shape: ShapeFields, with_layout: bool) -> str:
    if True in shape.dynamic_dimensions:
        sizes = ",".join(
            [
                "?" if size == UNBOUNDED else f"<={size}" if dynamic else str(size)
                for size, dynamic in zip(shape.dimensions, shape.dynamic_dimensions, strict=True)
            ]
        )
    else:
        sizes = ",".join(map(str, shape.dimensions))
    text = f"{shape.element_type.name}[{sizes}]"
    if not with_layout:
        return text
    layout = str(shape.layout)
    return text if layout == "{}" else text + layout
