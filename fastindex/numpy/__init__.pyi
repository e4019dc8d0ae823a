from fastindex.bulk.strided_copies import ascontiguousarray as ascontiguousarray
from fastindex.bulk.strided_copies import asfortranarray as asfortranarray
from fastindex.bulk.strided_copies import copyto as copyto
from fastindex.index.numpy_indices import ravel_multi_index as ravel_multi_index
from fastindex.index.numpy_indices import unravel_index as unravel_index
