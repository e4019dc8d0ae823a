"""Sentences about copies: the producer of the operand's layout, and the consumers that need another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.show.spelling import listed

_NAMED = 2


def layout_text(shape: Shape) -> str:
    """Return the layout of an array, without its memory space.

    Examples
    --------
    >>> layout_text(Shape.parse("f32[3,5]{1,0:T(8,128)S(1)}"))
    '{1,0:T(8,128)}'
    """
    return _without_memory(shape.layout)


@lru_cache(maxsize=4096)
def _without_memory(layout: Layout) -> str:
    return str(replace(layout, memory_space=0, split_configs=()))


def origin_text(
    what: str,
    verb: str,
    shape: Shape,
    source: Shape,
    carry: str = "",
    *,
    is_invariant: bool = False,
    is_sliced: bool = False,
    is_changed: bool = False,
) -> str:
    """Describe the producer of the operand of a copy, and its layout.

    Parameters
    ----------
    what, verb : str
        Producer and verb: "argument 3, params['q']" and "is", or "fusion.7" and "writes".
    shape : Shape
        The array of the producer.
    source : Shape
        The operand of the copy: the same array, or the same buffer with other dimensions.
    carry : str
        The loop that carries the array; empty without a loop.
    is_invariant : bool
        Whether the array is loop-invariant.
    is_sliced : bool
        Whether the operand is a slice of the array.
    is_changed : bool
        Whether the loop updates the array, so that the producer only gives its initial value.

    Examples
    --------
    >>> shape = Shape.parse("f32[8,300]{0,1:T(8,128)}")
    >>> origin_text("argument 3, params['q']", "is", shape, shape)
    "argument 3, params['q'], is {0,1:T(8,128)}"
    """
    is_same = shape.dimensions == source.dimensions and layout_text(shape) == layout_text(source)
    there = layout_text(shape) if is_same else f"{shape.element_type}{list(shape.dimensions)}".replace(" ", "")
    if not is_same:
        there += layout_text(shape)
    if carry and (verb == "writes" or is_changed):
        text = f"the carry of {carry}, begun by {what}, is {there}"
    elif carry:
        text = f"{what}, carried by {carry}, {verb} {there}"
    else:
        text = f"{what}{',' if ',' in what else ''} {verb} {there}"
    part = "a slice of " if is_sliced else ""
    return f"{part}{text}" + (", the same in every trip" if is_invariant else "")


def wanted_text(consumers: Sequence[tuple[str, str]], result: Shape) -> str:
    """Name the consumers of the result of a copy, and the layout that they need.

    Parameters
    ----------
    consumers : sequence of (str, str)
        The name of each consumer, and the verb "need" or "be".
    result : Shape

    Examples
    --------
    >>> result = Shape.parse("f32[8,300]{1,0:T(8,128)}")
    >>> wanted_text([("fusion.7", "need"), ("dot.2", "need")], result)
    'fusion.7 and dot.2 need {1,0:T(8,128)}'
    >>> wanted_text([("result 2", "be")], result)
    'result 2 is {1,0:T(8,128)}'
    """
    if not consumers:
        return f"nothing else in the text takes {layout_text(result)}"
    named = [name for name, _ in consumers[:_NAMED]]
    if len(consumers) > _NAMED:
        named.append(f"{len(consumers) - _NAMED} more")
    need = any(verb == "need" for _, verb in consumers)
    singular, plural = ("needs", "need") if need else ("is", "are")
    return f"{listed(named)} {singular if len(named) == 1 else plural} {layout_text(result)}"


def shared_origins_text(origins: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return advice for copies of slices of one result, which no single layout of the result avoids.

    Parameters
    ----------
    origins : sequence of (str, str, str)
        For each copy: its name, the producer of its operand, and its operation in the program.

    Examples
    --------
    >>> split = [("copy.5", "fusion.6", "jit(f)/split"), ("copy.6", "fusion.6", "jit(f)/split")]
    >>> shared_origins_text(split)[0]
    'copy.5 and copy.6 copy parts of what fusion.6 writes (split): if it is a product, give each part its own weights'
    """
    grouped: dict[str, list[str]] = {}
    for name, origin, operation in origins:
        if operation.rpartition("/")[2] in ("split", "slice", "dynamic_slice", "squeeze"):
            grouped.setdefault(f"{origin} writes ({operation.rpartition('/')[2]})", []).append(name)
    return [
        f"{listed(names)} copy parts of what {what}: if it is a product, give each part its own weights"
        for what, names in grouped.items()
        if len(names) > 1
    ]
