"""What libtpu compiles, in a child process, which it ends on some programs; run as a script this file is the child.

No TPU is needed. An answer is the layouts of the parameters and of the result, as the compiled module has them.
``python -m tests.oracles.tpu_compiler`` records the default layouts of random arrays in `RECORDED`.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "data" / "tpu_defaults.txt.xz"
HAS_LIBTPU = find_spec("libtpu") is not None and find_spec("jax") is not None
#: Topologies of each generation; v2 and v3, and those from v4 on, give the same arrays the same layouts.
OLD, NEW = ("v2:2x2", "v3:2x2"), ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
#: Lets libtpu compile where there is no TPU.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
#: One compilation with all parameters costs hardly more than one with a few.
PARAMETERS = 20
CHILD_SECONDS = 600
DTYPES = (
    "bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn",
)  # fmt: skip
SIZES = (
    1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 120, 127, 128, 129, 130,
    160, 192, 200, 255, 256, 257, 300, 384, 500, 512, 640, 1000, 1024, 2000, 4096, 5000,
)  # fmt: skip
#: Where several orders pad nothing, or equally much.
ALIGNED = (8, 16, 24, 32, 40, 48, 64, 72, 96, 120, 128, 136, 144, 160, 192, 248, 256, 264, 272, 384, 512, 1024, 1, 2, 3)
MOST_ELEMENTS = 20_000_000
#: What is compiled to see whether the compiler takes a layout.
PROGRAMS = ("x + 1", "softmax", "x @ x.T")

Array = tuple[str, tuple[int, ...]]


def random_arrays(seed: int, count: int) -> list[Array]:
    """Arrays of all element types, `count` of each: a scalar, and random ones of rank 1 to 5."""
    source = random.Random(seed)
    found: list[Array] = []
    for dtype in DTYPES:
        found.append((dtype, ()))
        while len(found) % count:
            rank = source.choice((1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5))
            among = ALIGNED if source.random() < 0.4 else SIZES
            sizes = [source.choice(among) for _ in range(rank)]
            if source.random() < 0.3:
                sizes[-1] = source.randint(1, 1100)
            if source.random() < 0.01:
                sizes[0] = 0
            if math.prod(sizes) <= MOST_ELEMENTS:
                found.append((dtype, tuple(sizes)))
    return found


def default_layouts(topology: str, arrays: Sequence[Array]) -> list[str | None]:
    """Return the text of each array in the layout of a parameter that nothing asks for; None where that fails."""
    found: dict[Array, str] = {}
    groups = [list(arrays[i : i + PARAMETERS]) for i in range(0, len(arrays), PARAMETERS)]
    for group, answer in zip(groups, _ask(topology, "defaults", groups), strict=True):
        found.update(zip(group, answer.get("parameters", ()), strict=False))
    alone = [array for array in arrays if array not in found]
    for array, answer in zip(alone, _ask(topology, "defaults", [[array] for array in alone]), strict=True):
        found.update(zip([array], answer.get("parameters", ()), strict=False))
    return [found.get(array) for array in arrays]


def compiled(topology: str, asked: Sequence[tuple[Array, str, str]]) -> list[dict[str, Any]]:
    """Compile lines that have a function `f`, an array `x` and a `sharding`, with one of `PROGRAMS` as `f`.

    Each question is an array, a program, and a line as printed: ``jax.jit(f, in_shardings=...)``, one that assigns
    `x`, or ``""`` for the program as it is. An answer has the texts of its ``parameters`` and its ``result``, or an
    ``error``.
    """
    return _ask(topology, "lines", asked)


def _ask(topology: str, job: str, questions: Sequence[Any]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "questions.json")
        while len(answers) < len(questions):
            path.write_text(json.dumps(questions[len(answers) :]), encoding="utf-8")
            run = subprocess.run(
                [sys.executable, __file__, topology, job, str(path)],
                env={**os.environ, **ENVIRONMENT},
                capture_output=True,
                text=True,
                timeout=CHILD_SECONDS,
                check=False,
            )
            answers += map(json.loads, run.stdout.splitlines())
            if run.returncode:
                if not run.stdout.startswith("{") and "Check fail" not in run.stderr and run.returncode > 0:
                    raise RuntimeError(run.stderr[-2000:])
                answers.append({"error": f"libtpu ended with status {run.returncode}"})
    return answers


_LAYOUTS = re.compile(r"entry_computation_layout=\{\((.*)\)->(.*?)\}(?:, \w+=|$)")
_ARRAY = re.compile(r"\w+\[[^\]]*\](?:\{[^}]*\})?")


def _child(topology: str, job: str, path: str) -> None:
    import jax
    import jax.numpy as jnp
    import ml_dtypes
    import numpy as np
    from jax.experimental import topologies
    from jax.experimental.layout import Format, Layout, with_layout_constraint
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_enable_x64", True)
    devices = topologies.get_topology_desc(topology, "tpu").devices[:1]
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())

    def shape_of(dtype: str, dimensions: Sequence[int]) -> Any:
        found = np.bool_ if dtype == "bool" else getattr(jnp, dtype, None) or getattr(ml_dtypes, dtype)
        return jax.ShapeDtypeStruct(tuple(dimensions), found, sharding=sharding)

    def softmax(x: Any) -> Any:
        return jax.nn.softmax(x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32))

    def product(x: Any) -> Any:
        return x @ (jnp.swapaxes(x, -1, -2) if x.ndim > 1 else x)

    programs: dict[str, Callable[..., Any]] = dict(zip(PROGRAMS, (lambda x: x + 1, softmax, product), strict=True))

    def traced(question: Any) -> Any:
        if job == "defaults":
            # Nothing is computed: only the parameters count.
            constant = jax.jit(lambda *x: jnp.float32(0), keep_unused=True, out_shardings=sharding)
            return constant.lower(*(shape_of(*array) for array in question))
        array, program, line = question
        names = {"jax": jax, "Format": Format, "Layout": Layout, "sharding": sharding, "f": programs[program]}
        if line.startswith("jax.jit"):
            return eval(line, names).lower(shape_of(*array))

        def changed(x: Any) -> Any:
            scope = {**names, "x": x, "with_layout_constraint": with_layout_constraint}
            exec(line, scope)
            return programs[program](scope["x"])

        return jax.jit(changed).lower(shape_of(*array))

    for question in json.loads(Path(path).read_text(encoding="utf-8")):
        try:
            header = traced(question).compile().as_text().split("\n", 1)[0]
            layouts = _LAYOUTS.search(re.sub(r"/\*.*?\*/", "", header))
            assert layouts is not None, header
            answer = {"parameters": _ARRAY.findall(layouts[1]), "result": layouts[2]}
        except Exception as error:
            # JAX and libtpu raise errors of many classes.
            answer = {"error": str(error).strip().split("\n")[0][:300] or type(error).__name__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _record() -> None:
    lines = []
    for name, topologies, arrays in (("old", OLD, random_arrays(2, 20)), ("new", NEW, random_arrays(1, 67))):
        first, *others = [default_layouts(topology, arrays) for topology in topologies]
        assert all(found == first for found in others), name
        lines += [f"{name} {text}" for text in first if text is not None]
    RECORDED.write_bytes(lzma.compress("\n".join([*lines, ""]).encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    if sys.argv[1:]:
        _child(*sys.argv[1:])
    else:
        _record()
