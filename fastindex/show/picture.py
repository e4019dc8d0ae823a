"""Pictures of layouts and of relayouts, as SVG and as text."""

from __future__ import annotations

import shutil
from html import escape
from typing import Protocol, runtime_checkable

from fastindex.core.notebooks import ShownInNotebooks
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.first_use import load
from fastindex.show.scenes import Scene, layout_scene, relayout_scene
from fastindex.show.svg import svg_of
from fastindex.show.text import text_of
from fastindex.terminal import shows_colours


@runtime_checkable
class RelayoutLike(Protocol):
    """The shapes of a relayout plan."""

    @property
    def source(self) -> Shape:
        """The shape before."""

    @property
    def destination(self) -> Shape:
        """The shape after."""


class DescribedRelayout(RelayoutLike, Protocol):
    """The interface of a relayout plan that notebook display needs."""

    def describe(self) -> str:
        """Return a description of the kernels that run."""


#: Width of SVG pictures in characters, about that of a page.
_SVG_CHARACTERS = 190


class Drawing(ShownInNotebooks):
    """A drawing that notebooks show as SVG and terminals as text."""

    def svg(self) -> str:
        """Return an SVG document."""
        raise NotImplementedError

    def text(self, colour: bool | None = None, width: int | None = None) -> str:
        """Return lines of text."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.svg()

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return self.text(colour=False)

    __repr__ = __str__


class Picture(Drawing):
    """A picture of a layout, or of a relayout.

    Notebooks display it directly; `svg`, `html` and `text` are for files and terminals.

    Parameters
    ----------
    source : Shape
    destination : Shape, optional
        Draw the relayout from `source` to this shape.
    """

    def __init__(self, source: Shape, destination: Shape | None = None) -> None:
        self._source = source
        self._destination = destination
        self._scene = self._make_scene(_SVG_CHARACTERS)

    def _make_scene(self, characters: int) -> Scene:
        if self._destination is None:
            return layout_scene(self._source, characters)
        return relayout_scene(self._source, self._destination, characters)

    @property
    def scene(self) -> Scene:
        """The contents of the picture: every cell with its slot, element and tiles."""
        return self._scene

    def svg(self) -> str:
        """Return an SVG document of less than 300 KB that follows the reader's colour scheme.

        Examples
        --------
        >>> import fastindex as fi
        >>> fi.draw("f32[3,5]{1,0:T(2,2)}").svg()[:4]
        '<svg'
        """
        return svg_of(self._scene)

    def text(self, colour: bool | None = None, width: int | None = None) -> str:
        """Return the picture as lines of text.

        Parameters
        ----------
        colour : bool, optional
            Use ANSI colours. By default, if stdout is a terminal and ``NO_COLOR`` is not set.
        width : int, optional
            Characters per line; by default, the width of the terminal.

        Examples
        --------
        >>> import fastindex as fi
        >>> print(fi.draw("s8[2,2]{0,1}").text(colour=False).splitlines()[5])
        0 │ 0│ 2│
        """
        if colour is None:
            colour = shows_colours()
        return text_of(self._make_scene(width or shutil.get_terminal_size().columns), colour)

    def html(self) -> str:
        """Return an interactive page that covers every element and slot; it works offline.

        Examples
        --------
        >>> import fastindex as fi
        >>> fi.draw("f32[3,5]{1,0:T(2,2)}").html()[:15]
        '<!doctype html>'
        """
        load("fastindex.show.page")
        from fastindex.show.page import page_of

        return page_of(self._source, self._destination)


def shape_html(shape: Shape) -> str:
    """Return the HTML of a shape for notebooks: its text, its size and, for arrays, its picture.

    Examples
    --------
    >>> shape_html(Shape.parse("(f32[2], f32[3])"))
    '<div><code>(f32[2]{0}, f32[3]{0})</code>, 20 bytes</div>'
    """
    text = f"<code>{escape(str(shape))}</code>"
    try:
        nbytes = f"{shape.nbytes:,} bytes"
    except FastIndexError:
        return f"<div>{text}</div>"
    if shape.nbytes != shape.logical_nbytes:
        nbytes += f" for {shape.logical_nbytes:,} bytes of elements"
    picture = Picture(shape).svg() if shape.is_array else ""
    return f"<div>{text}, {nbytes}</div>{picture}"


def plan_html(plan: DescribedRelayout) -> str:
    """Return the HTML of a relayout plan for notebooks: its kernels, and the picture of the relayout.

    Examples
    --------
    >>> import fastindex as fi
    >>> plan_html(fi.plan_relayout("s8[2,2]{1,0}", "s8[2,2]{0,1}")).splitlines()[0]
    '<pre>s8[2,2]{1,0} -&gt; s8[2,2]{0,1}'
    """
    return f"<pre>{escape(plan.describe())}</pre>{Picture(plan.source, plan.destination).svg()}"


def draw(subject: Shape | str | RelayoutLike) -> Picture:
    """Draw a layout: the logical grid with the slot of every element, and the buffer in memory order.

    Parameters
    ----------
    subject : Shape, str, or relayout plan
        For a plan from `plan_relayout`, the picture shows where the elements move.

    Returns
    -------
    Picture
        Notebooks display it; ``.svg()`` returns the contents of an SVG file, ``.text()`` lines for a terminal.

    Raises
    ------
    ParseError
        The text is not a shape.
    UnsupportedError
        The shape is not an array, or has no size.

    Examples
    --------
    >>> import fastindex as fi
    >>> picture = fi.draw("f32[3,5]{1,0:T(2,2)}")
    >>> [cell.slot for cell in picture.scene.panels[0].cells[0]]
    [0, 1, 4, 5, 8, 9]
    """
    if isinstance(subject, str):
        subject = Shape.parse(subject)
    if isinstance(subject, Shape):
        return Picture(subject)
    if isinstance(subject, RelayoutLike):
        return Picture(subject.source, subject.destination)
    raise ArgumentTypeError(f"draw takes a shape, its text or a relayout plan, got {type(subject).__name__}")
