"""Programs and kernels compiled too large for each TPU, without one: the message of the installed libtpu is read.

Tests of: hlo.allocations, hlo.out_of_memory.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import fastindex as fi

TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
#: Longer than a compilation takes on busy processors; libtpu can hang.
_SECONDS = 300

#: Compiles what is too large for the topology, and prints the exception.
PROGRAM = """
import os, sys
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
# Of the memory of a core, what a kernel may have.
os.environ["LIBTPU_INIT_ARGS"] = "--xla_tpu_scoped_vmem_limit_kib=1024" if sys.argv[1] == "scoped" else ""
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl, topologies
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import SingleDeviceSharding

name, topology = sys.argv[1:]
device = SingleDeviceSharding(topologies.get_topology_desc(topology, platform="tpu").devices[0])
f32 = jnp.float32

def array(*shape, dtype=f32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=device)

def kernel(*scratch):
    def body(x, out, held):
        if name == "smem":
            held[0, 0] = f32(1)
        else:
            held[...] = jnp.zeros_like(held)
        out[...] = x[...]
    return pl.pallas_call(body, out_shape=array(8, 128), scratch_shapes=scratch)

def doubled(x, out):
    out[...] = x[...] * 2

block = pl.BlockSpec((1024, 2048), lambda i: (i, 0))
windows = pl.pallas_call(doubled, grid=(4,), in_specs=[block], out_specs=block, out_shape=array(4096, 2048))
programs = {
    "scoped": (windows, [array(4096, 2048)]),
    "hbm": (lambda a, b: (a + b, a - b), [array(1 << 18, 1 << 16)] * 2),
    "vmem": (kernel(pltpu.VMEM((1 << 14, 1 << 13), f32)), [array(8, 128)]),
    "smem": (kernel(pltpu.SMEM((1 << 12, 1 << 10), f32)), [array(8, 128)]),
}
function, arguments = programs[name]
try:
    jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).compile()
    print("compiled")
except Exception as error:
    print(f"{type(error).__module__}.{type(error).__name__}: {error}")
"""


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the extra tpu is not installed")
@pytest.mark.in_turn(seconds=20)
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("space", ["hbm", "vmem", "smem", "scoped"])
def test_what_the_installed_compiler_says(space: str, topology: str) -> None:
    command = [sys.executable, "-c", PROGRAM, space, topology]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = fi.hlo.report(done.stdout)
    (module,) = report.modules
    assert module.label == f"out of memory in {'vmem' if space == 'scoped' else space}", done.stdout
    assert report.problems == ()
    assert report.peak_nbytes is not None
    # Two arrays of 64 GiB in and two out; of the kernels, the scratch alone, or two windows in and two out.
    least = {"hbm": 256 << 30, "vmem": 1 << 29, "smem": 1 << 24, "scoped": 1 << 25}[space]
    # Where the compiler keeps an array in the memory of the core, it needs no windows.
    assert least / (2 if space == "scoped" else 1) <= report.peak_nbytes <= 1.01 * least, done.stdout
    assert any("available" in note and "short" in note for note in module.notes)
    if space == "scoped":
        names = [place.instruction for use in report.uses for place in use.places]
        assert any(name.startswith("tpu_custom_call") for name in names)
        # The kernel's result and operand, or, of older chips, its windows.
        assert {use.shape.dimensions for use in report.uses} in ({(4096, 2048)}, {(16777216,)})
    elif space == "hbm":
        assert report.uses or any("--xla_dump_to" in note for note in module.notes)
    else:
        assert sum(use.count * use.nbytes for use in report.uses) == least
