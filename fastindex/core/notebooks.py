"""Jupyter's protocol for displaying objects.

Source: "Integrating your objects with IPython", https://ipython.readthedocs.io/en/latest/config/integrating.html
"""

from __future__ import annotations

from collections.abc import Collection


class ShownInNotebooks:
    """An object that notebooks show as HTML and terminals as `repr`; subclasses define `_repr_html_`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        forms = {"text/html": self._repr_html_, "text/plain": self.__repr__}
        return {
            kind: form()
            for kind, form in forms.items()
            if (include is None or kind in include) and (exclude is None or kind not in exclude)
        }
