from fastindex.index.indices import ravel_multi_index as ravel_multi_index
from fastindex.index.indices import unravel_index as unravel_index
from fastindex.moving.numpy_copies import ascontiguousarray as ascontiguousarray
from fastindex.moving.numpy_copies import asfortranarray as asfortranarray
from fastindex.moving.numpy_copies import copyto as copyto
