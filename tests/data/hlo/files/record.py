"""Record the files of this folder: ``python - FOLDER < tests/data/hlo/files/record.py``, from stdin for short paths.

A program on two CPU devices, as XLA dumps it in text and as a proto, and a profile of four runs of it.
"""

import gzip
import lzma
import os
import shutil
import sys
import tempfile
from pathlib import Path

target, work = Path(sys.argv[1]), Path(tempfile.mkdtemp())
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count=2 --xla_dump_to={work} --xla_dump_hlo_as_text --xla_dump_hlo_as_proto"
)

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def program(x, w):
    y = x.T @ w
    z = jax.lax.fori_loop(0, 5, lambda i, c: c * 1.5 + c.T[:, ::-1], y)
    return z, jnp.transpose(z.reshape(8, 8, 8, 8), (3, 1, 2, 0))


mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
sharded, whole = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), ()))
x, w = jax.device_put(jnp.ones((256, 64)), sharded), jax.device_put(jnp.ones((256, 64)), sharded)
compiled = jax.jit(program, out_shardings=whole).lower(x, w).compile()
jax.block_until_ready(compiled(x, w))
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
options.host_tracer_level = 1
with jax.profiler.trace(str(work / "profile"), profiler_options=options):
    for _ in range(4):
        jax.block_until_ready(compiled(x, w))

for file in work.glob("*.jit_program.cpu_after_optimizations*"):
    name = "module_0001.jit_program" + file.name.partition("jit_program")[2]
    if name.endswith(("optimizations.txt", "-buffer-assignment.txt")):
        shutil.copy(file, target / name)
    elif name.endswith(".hlo.pb"):
        (target / f"{name}.gz").write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
(profile,) = (work / "profile").rglob("*.xplane.pb")
(target / "recorded.xplane.pb.xz").write_bytes(lzma.compress(profile.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
shutil.rmtree(work)
