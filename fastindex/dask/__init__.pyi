from fastindex.dask.arrays import pack as pack
from fastindex.dask.arrays import rearrange as rearrange
from fastindex.dask.arrays import relayout as relayout
from fastindex.dask.arrays import unpack as unpack
from fastindex.dask.indices import convert_index as convert_index
from fastindex.dask.indices import linear_index as linear_index
from fastindex.dask.indices import multi_index as multi_index
from fastindex.dask.warming import WarmUp as WarmUp
