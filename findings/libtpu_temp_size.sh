#!/usr/bin/env bash
# Guess before the run: of a program compiled for a TPU, argument + output + temp - alias of `memory_analysis()` is the
# memory that XLA assigns on the device, within its rounding to 4 KiB; `total_allocation_bytes` is the same number.
#
# Seen with jax and jaxlib 0.12.0.1, libtpu 0.0.52, Python 3.13 on x86-64, 2026-11-28, compiled for a v5e without one:
# `temp_size_in_bytes` is 0 if the temporaries are only index tables and scalars, although 24 matrix products hold 352
# KiB of them; for a sort it is 16 KiB too large. `total_allocation_bytes` is the assignment to the byte.
#
# Output seen:
#   network: temp 0, assigned temporaries 360960; sum 6815744, total_allocation_bytes 7176704, assigned 7176704
#   ranked: temp 311296, assigned temporaries 295424; sum 1360384, total_allocation_bytes 1346560, assigned 1346560
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# These versions need Python 3.12 or later.
for python in python3 python3.13 python3.12 ~/.pyenv/versions/3.1[23]*/bin/python3; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then break; fi
done
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check jax==0.12.0.1 jaxlib==0.12.0.1 libtpu==0.0.52
export JAX_PLATFORMS=cpu TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_SKIP_MDS_QUERY=1 ALLOW_MULTIPLE_LIBTPU_LOAD=1
export TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0
"$work/venv/bin/python" - "$work/dumps" <<'PYTHON'
import os
import re
import sys
from pathlib import Path

folder = Path(sys.argv[1])
os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

device = SingleDeviceSharding(topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[0])


def network(x, *weights):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


def ranked(x, *weights):
    return jnp.argsort(x, axis=0), x @ weights[0]


print("jax", jax.__version__)
same = True
array = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=device)
for function, count in ((network, 24), (ranked, 1)):
    lowered = jax.jit(function).trace(*[array] * (count + 1)).lower(lowering_platforms=("tpu",))
    analysis = lowered.compile().memory_analysis()
    (file,) = folder.glob(f"*jit_{function.__name__}.*buffer-assignment.txt")
    lines = re.findall(r"^allocation \d+: size (\d+)(.*)$", file.read_text(), re.MULTILINE)
    assigned = [(int(size), rest) for size, rest in lines if "color" not in rest and "thread-local" not in rest]
    held = sum(size for size, rest in assigned if "preallocated-temp" in rest)
    total = sum(size for size, _ in assigned)
    a = analysis
    said = a.argument_size_in_bytes + a.output_size_in_bytes + a.temp_size_in_bytes - a.alias_size_in_bytes
    print(
        f"{function.__name__}: temp {a.temp_size_in_bytes}, assigned temporaries {held}; "
        f"sum {said}, total_allocation_bytes {a.total_allocation_bytes}, assigned {total}"
    )
    same &= a.total_allocation_bytes == total
    same &= a.temp_size_in_bytes == 0 < held if function is network else said != total
sys.exit(not same)
PYTHON
