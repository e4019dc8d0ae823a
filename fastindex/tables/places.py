"""Records that say where their own fields are in a table of numbers.

Beside a record of ints stands ``NAME = places(Record)``; kernels read ``entry(geometry, NAME.field)``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

Record = TypeVar("Record", bound=NamedTuple)


def places(record: type[Record]) -> Record:
    """Return a record each of whose fields is its own place.

    Examples
    --------
    >>> from fastindex.tables.passes import FillGeometry
    >>> places(FillGeometry)
    FillGeometry(run_bytes=0, streamed=1)
    """
    return record(*range(len(record._fields)))
