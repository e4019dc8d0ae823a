"""jaxlib's HloSharding in a separate process, since it aborts on some texts; as a script, this is that process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

Answer = dict[str, Any]


def ask(questions: Sequence[Answer]) -> list[Answer | None]:
    """Return jaxlib's answer to each question, None where it aborted.

    A question is ``{"text": t}``, ``{"proto": hex}``, ``{"equal": [t, u]}``, ``{"tile": [t, shape]}``, or
    ``{"indices": [t, count, shape]}`` for `devices_indices_map`.
    """
    answers: list[Answer | None] = []
    while len(answers) < len(questions):
        pending = "".join(json.dumps(question) + "\n" for question in questions[len(answers) :])
        environment = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=16", JAX_PLATFORMS="cpu")
        run = subprocess.run(
            [sys.executable, __file__], input=pending, capture_output=True, text=True, env=environment, check=False
        )
        answers += [json.loads(line) for line in run.stdout.splitlines()]
        if len(answers) < len(questions):
            answers.append(None)
    return answers


def _described(sharding: Any) -> Answer:
    import numpy as np

    text = repr(sharding)
    answer = {"text": text, "proto": sharding.to_proto().SerializeToString().hex()}
    leaf = sharding.v3_to_v2_sharding() if "mesh[" in text and not text.startswith("{{") else sharding
    if not text.startswith("{{") and text != "{}" and leaf.is_tiled():
        devices = np.array(leaf.tile_assignment_devices()).reshape(leaf.tile_assignment_dimensions())
        answer["devices"] = devices.tolist()
    return answer


def _answer(question: Answer) -> Answer:
    from jaxlib import xla_client

    parse = xla_client.HloSharding.from_string
    try:
        if "text" in question:
            return _described(parse(question["text"]))
        if "proto" in question:
            proto = xla_client.OpSharding()
            proto.ParseFromString(bytes.fromhex(question["proto"]))
            return _described(xla_client.HloSharding.from_proto(proto))
        if "equal" in question:
            first, second = map(parse, question["equal"])
            return {"equal": first == second}
        if "tile" in question:
            text, shape = question["tile"]
            return {"shape": str(parse(text).tile(xla_client.Shape(shape)))}
        return {"indices": _indices(*question["indices"])}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _indices(text: str, count: int, shape: list[int]) -> list[list[list[int]]]:
    import jax
    from jax._src.sharding_impls import GSPMDSharding
    from jaxlib import xla_client

    devices = jax.devices()[:count]
    placed = GSPMDSharding(devices, xla_client.HloSharding.from_string(text)).devices_indices_map(tuple(shape))
    return [
        [list(part.indices(size)[:2]) for part, size in zip(placed[device], shape, strict=True)] for device in devices
    ]


def _serve() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
