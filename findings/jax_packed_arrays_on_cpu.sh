#!/usr/bin/env bash
# Guesses before the run: an int4 array of 16 elements in the memory of JAX's CPU device says that it takes 8 bytes, and
# its format is that of the program that takes it.
#
# Seen with jax and jaxlib 0.10.2, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: the buffer holds two elements a byte,
# and the compiled program counts 8 bytes for it, but `on_device_size_in_bytes` says 16 (of int2 also 16, where 4 are
# used). Its `format` has sub_byte_element_size_in_bits=0, that of the program's argument 4, so the two never compare
# equal: a check whether an array is already as a program wants it fails for every packed type.
#
# Output seen:
#   int4: array 16, program 8, format bits 0 and 4, equal False, 1032547610325476
#   int2: array 16, program 4, format bits 0 and 2, equal False, 44444444
#   int8: array 16, program 16, format bits 0 and 0, equal True, 000102030405060708090a0b0c0d0e0f
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import ctypes
import sys

import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__)
same = True
for name, bits, mask in (("int4", 4, 7), ("int2", 2, 1), ("int8", 8, 127)):
    array = jax.device_put(np.arange(16, dtype=np.int8) & mask).astype(name).block_until_ready()
    compiled = jax.jit(lambda x: x[:8] + x[8:]).lower(array).compile()
    wanted = compiled.input_formats[0][0]
    used = compiled.memory_analysis().argument_size_in_bytes
    size = array.on_device_size_in_bytes()
    memory = bytes((ctypes.c_uint8 * used).from_address(array.unsafe_buffer_pointer()))
    kinds = array.format.layout.sub_byte_element_size_in_bits, wanted.layout.sub_byte_element_size_in_bits
    equal = array.format == wanted
    print(f"{name}: array {size}, program {used}, format bits {kinds[0]} and {kinds[1]}, equal {equal}, {memory.hex()}")
    values = (np.arange(16) & mask).astype(np.uint8)
    low_first = np.packbits(values[:, None] >> np.arange(bits) & 1, bitorder="little").tobytes()
    same &= size == 16 and used == 2 * bits and memory == low_first and equal == (bits == 8)
sys.exit(not same)
PYTHON
