"""Sending arrays of types that NumPy does not have from one worker to another.

Distributed sends the type of an array as ``dtype.str`` unless its kind is "V". Of the types of ml_dtypes, float8_e5m2
has the kind "f", and nobody knows its name "<f1": the receiver fails. So it is sent like those of kind "V".
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import numpy as np

#: The value of `numpy.dtype.isbuiltin` for types that another library has added.
ADDED = 2


@lru_cache(maxsize=1)
def let_added_types_travel() -> None:
    """Make Distributed, in this process, send the dtype itself if NumPy does not know its name."""
    from distributed.protocol import dask_serialize
    from distributed.protocol.numpy import serialize_numpy_ndarray

    def serialize(array: np.ndarray[Any, Any], context: Any = None) -> Any:
        header, frames = serialize_numpy_ndarray(array, context)
        if array.dtype.isbuiltin == ADDED and header.get("dtype") == (0, array.dtype.str):
            header["dtype"] = (1, pickle.dumps(array.dtype))
        return header, frames

    dask_serialize.register(np.ndarray)(serialize)
