"""The shapes inside nested tuples.

A shape index is a path to one of them: ``(1, 0)`` is element 0 of element 1, ``()`` is the whole shape.

Source: ``xla/shape_util.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import SupportsIndex

from fastindex.core.integers import as_integers, spelled
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import OutOfBoundsError

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
