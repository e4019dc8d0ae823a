from fastindex.bulk.numpy_dropins import ravel_multi_index as ravel_multi_index
from fastindex.bulk.numpy_dropins import unravel_index as unravel_index
from fastindex.moving.numpy_copies import ascontiguousarray as ascontiguousarray
from fastindex.moving.numpy_copies import asfortranarray as asfortranarray
from fastindex.moving.numpy_copies import copyto as copyto
