"""XLA's own SPMD partitioner, run on host devices in a separate process: what each device holds of an array."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_MODULE = """HloModule m, num_partitions={count}
ENTRY e {{
  p = {shape} parameter(0), sharding={{replicated}}
  ROOT r = {shape} copy(p), sharding={text}
}}
"""


def device_buffers(cases: Sequence[tuple[str, str]], count: int = 8) -> list[list[np.ndarray[Any, Any]]]:
    """Return, for each (shape, sharding), what each device holds of an array that holds its own indices."""
    environment = dict(os.environ, XLA_FLAGS=f"--xla_force_host_platform_device_count={count}", JAX_PLATFORMS="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "buffers.npz")
        question = json.dumps({"cases": list(cases), "count": count, "path": path})
        subprocess.run([sys.executable, __file__], input=question, text=True, env=environment, check=True)
        with np.load(path) as found:
            return [[found[f"{i}_{device}"] for device in range(count)] for i in range(len(cases))]


def _main() -> None:
    import jax
    from jax._src.sharding_impls import GSPMDSharding
    from jaxlib import _hlo, xla_client

    question = json.load(sys.stdin)
    count = question["count"]
    client = jax.devices()[0].client
    devices = jax.devices()[:count]
    found = {}
    for i, (shape, text) in enumerate(question["cases"]):
        module = _hlo.hlo_module_from_text(_MODULE.format(shape=shape, text=text, count=count))
        computation = _hlo.XlaComputation(module.as_serialized_hlo_module_proto())
        options = xla_client.CompileOptions()
        build = options.executable_build_options
        build.num_replicas, build.num_partitions = 1, count
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = False
        build.device_assignment = xla_client.DeviceAssignment.create(np.arange(count).reshape(1, count))
        mlir = xla_client._xla.mlir.hlo_to_stablehlo(computation.as_serialized_hlo_module_proto())
        executable = client.compile_and_load(mlir, tuple(devices), options)
        sizes = [int(n) for n in shape[shape.index("[") + 1 : shape.index("]")].split(",")]
        whole = np.arange(int(np.prod(sizes)), dtype=np.int32).reshape(sizes)
        pieces = [jax.device_put(whole, device) for device in devices]
        replicated = jax.make_array_from_single_device_arrays(
            tuple(sizes), GSPMDSharding.get_replicated(devices), pieces
        )
        outputs = executable.execute_sharded([replicated]).disassemble_into_single_device_arrays()[0]
        for device, output in enumerate(outputs):
            found[f"{i}_{device}"] = np.asarray(output)
    np.savez(question["path"], **found)


if __name__ == "__main__":
    _main()
