"""Serialization of arrays with ml_dtypes types between Distributed workers.

Distributed sends the type of an array as ``dtype.str`` unless its kind is "V". Among the types of ml_dtypes,
float8_e5m2 has the kind "f" and the name "<f1", which NumPy cannot parse: the receiver fails. This module sends the
dtype itself, as Distributed does for kind "V".
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import numpy as np

#: The value of `numpy.dtype.isbuiltin` for user-defined types, added by another library.
ADDED = 2


@lru_cache(maxsize=1)
def let_added_types_travel() -> None:
    """Make Distributed, in this process, send the dtype itself if NumPy cannot parse its name."""
    from distributed.protocol import dask_serialize
    from distributed.protocol.numpy import serialize_numpy_ndarray

    def serialize(array: np.ndarray[Any, Any], context: Any = None) -> Any:
        header, frames = serialize_numpy_ndarray(array, context)
        if array.dtype.isbuiltin == ADDED and header.get("dtype") == (0, array.dtype.str):
            header["dtype"] = (1, pickle.dumps(array.dtype))
        return header, frames

    dask_serialize.register(np.ndarray)(serialize)
