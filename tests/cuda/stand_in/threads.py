"""Kernels run in one thread while others allocate and free, for the thread sanitizer of `test_stand_in`."""

from __future__ import annotations

import ctypes
import sys
import threading

from tests.cuda.ptx.handwritten import kernel
from tests.cuda.stand_in.emulated import DRIVER, finish

LAUNCHES, THREADS, ALLOCATIONS = 10, 2, 120

#: Each thread adds 1 to its four bytes, a hundred times.
BODY = """
shl.b64 %rd11, %rd10, 2;
add.s64 %rd12, %rd1, %rd11;
mov.u32 %r3, 0;
again:
ld.global.u32 %r2, [%rd12];
add.s32 %r2, %r2, 1;
st.global.u32 [%rd12], %r2;
add.s32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, 100;
@%p1 bra again;
"""


def allocated(nbytes: int) -> ctypes.c_size_t:
    found = ctypes.c_size_t()
    assert DRIVER.cuMemAlloc(ctypes.byref(found), ctypes.c_size_t(nbytes)) == 0
    return found


def allocate() -> None:
    for size in range(1, ALLOCATIONS):
        held = [allocated(size) for _ in range(3)]
        for one in held[:2]:
            assert DRIVER.cuMemFreeAsync(one, None) == 0


program = ctypes.c_void_p()
assert DRIVER.cuLibraryLoadData(ctypes.byref(program), kernel(BODY, 1).encode(), *[None] * 6) == 0
array = allocated(256)
assert DRIVER.cuMemsetD8(array, 0, ctypes.c_size_t(256)) == 0
others = [threading.Thread(target=allocate) for _ in range(THREADS)]
for one in others:
    one.start()
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(array))
for _ in range(LAUNCHES):
    assert DRIVER.cuLaunchKernel(program, 1, 1, 1, 64, 1, 1, 0, None, parameters, None) == 0
    assert DRIVER.cuCtxSynchronize() == 0
for one in others:
    one.join()
finish()
result = (ctypes.c_uint32 * 64)()
assert DRIVER.cuMemcpyDtoH(result, array, ctypes.c_size_t(256)) == 0
assert [*result] == [100 * LAUNCHES] * 64
sys.stdout.write("right\n")
