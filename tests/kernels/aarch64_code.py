"""Compile every kernel for AArch64, which need not be this machine, and print what its code calls as JSON.

A separate program, which `test_aarch64_code` runs with the environment variables of that level.
"""

from __future__ import annotations

import json
import re

from fastindex.moving.warmup import every_kernel
from fastindex.runtime.kernels import assembly
from fastindex.runtime.machine_code import LEVELS

#: Instructions on whole registers of 16 bytes.
_VECTOR_INSTRUCTION = re.compile(r"^\s+\w+\s.*\b(?:q\d+|v\d+\.(?:16b|8h|4s|2d))", re.MULTILINE)


def main() -> None:
    found = {}
    for name, kernel in every_kernel().items():
        code = assembly(kernel, LEVELS["aarch64"].on("-unknown-linux-gnu"))
        calls = set(re.findall(r"^\s+bl?\s+([A-Za-z_]\S*)", code, re.MULTILINE))
        defined = set(re.findall(r"^([\w.]+):", code, re.MULTILINE))
        found[name] = {
            "calls": sorted(call for call in calls - defined if not call.startswith(".L")),
            "vector_instructions": len(_VECTOR_INSTRUCTION.findall(code)),
        }
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
