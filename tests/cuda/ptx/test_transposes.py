"""NVIDIA's examples of transposes, whose counts are known, in the emulator.

"An Efficient Matrix Transpose in CUDA C/C++" (Mark Harris, 2013): a naive transpose, one that goes through shared
memory, and one whose tile has a column more than it needs, so that no two lanes meet in a bank.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.cuda.ptx.compiled import ptx_of
from tests.cuda.ptx.emulator import Access, Program, arrays
from tests.cuda.stand_in import driver

pytestmark = pytest.mark.skipif(
    driver.missing() is not None and "ptx" not in os.environ.get("FASTINDEX_REQUIRE", ""), reason=driver.missing() or ""
)

HEAD = """
const int TILE = 32, ROWS = 8;
extern "C" __global__ void transpose(float *odata, const float *idata)
{
"""

NAIVE = """
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y, width = gridDim.x * TILE;
  for (int j = 0; j < TILE; j += ROWS) odata[x * width + (y + j)] = idata[(y + j) * width + x];
}
"""

THROUGH_SHARED = """
  __shared__ float tile[TILE][TILE + PADDING];
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y, width = gridDim.x * TILE;
  for (int j = 0; j < TILE; j += ROWS) tile[threadIdx.y + j][threadIdx.x] = idata[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x;
  y = blockIdx.x * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += ROWS) odata[(y + j) * width + x] = tile[threadIdx.x][threadIdx.y + j];
}
"""

SIZE = 128


def counted(body: str, capability: tuple[int, int] = (9, 0)) -> dict[tuple[str, int], list[Access]]:
    """Transpose; return the counts by operation and space."""
    program = Program(ptx_of(HEAD + body, capability))
    data = np.random.default_rng(1).random((SIZE, SIZE), np.float32)
    with arrays(data.nbytes, data) as (to, source):
        program.launch((SIZE // 32, SIZE // 32), (32, 8), to, source, counting=True)
        assert np.array_equal(to.bytes.view(np.float32).reshape(SIZE, SIZE), data.T)
        assert to.sectors(2) == source.sectors(1) == data.nbytes // 32
    found: dict[tuple[str, int], list[Access]] = {}
    for access in program.accesses:
        found.setdefault((access.operation, access.space), []).append(access)
    return found


GLOBAL, SHARED = 1, 3


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_a_naive_transpose_writes_32_sectors_a_request(capability: tuple[int, int]) -> None:
    found = counted(NAIVE, capability)
    loads, stores = found["LD", GLOBAL], found["ST", GLOBAL]
    requests = SIZE * SIZE // 32
    assert sum(one.requests for one in loads) == sum(one.requests for one in stores) == requests
    assert sum(one.sectors for one in loads) == 4 * requests
    assert sum(one.sectors for one in stores) == 32 * requests


@pytest.mark.parametrize(("padding", "ways"), [(0, 32), (1, 1)])
def test_a_transpose_through_shared_memory(padding: int, ways: int) -> None:
    found = counted(THROUGH_SHARED.replace("PADDING", str(padding)))
    requests = SIZE * SIZE // 32
    for operation in ("LD", "ST"):
        accesses = found[operation, GLOBAL]
        assert sum(one.requests for one in accesses) == requests
        assert sum(one.sectors for one in accesses) == 4 * requests
    read, written = found["LD", SHARED], found["ST", SHARED]
    assert sum(one.wavefronts for one in written) == requests
    assert sum(one.wavefronts for one in read) == ways * requests
    assert sum(one.least_wavefronts for one in read) == requests


def test_rows_of_two_and_four_words() -> None:
    """Half a warp at a time reads 8 bytes a lane, a quarter reads 16: neighbours have no conflict."""
    for kind, nbytes in (("float2", 8), ("float4", 16)):
        body = f"""
  __shared__ {kind} tile[32 * 33];
  {kind} *to = ({kind} *)odata;
  const {kind} *from = (const {kind} *)idata;
  tile[threadIdx.x * 33] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = tile[threadIdx.x * 33];
}}"""
        program = Program(ptx_of(HEAD + body))
        data = np.arange(8 * nbytes, dtype=np.float32)
        with arrays(data.nbytes, data) as (to, source):
            program.launch(1, 32, to, source, counting=True)
            assert np.array_equal(to.bytes, source.bytes)
        for access in program.accesses:
            if access.space == SHARED:
                assert (access.wavefronts, access.least_wavefronts) == (nbytes // 4, nbytes // 4)
            else:
                assert (access.requests, access.sectors) == (1, nbytes)
