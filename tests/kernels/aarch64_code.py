"""Compile every kernel for AArch64, which need not be this machine, and print what its code calls as JSON.

A separate program, which `test_aarch64_code` runs with Numba's optimisations off: they are left to LLVM's AArch64
pipeline.
"""

from __future__ import annotations

import json
import re

import llvmlite.binding as llvm

from fastindex.moving.warmup import every_kernel
from fastindex.runtime.kernels import compiled

TRIPLE = "aarch64-unknown-linux-gnu"
PROCESSOR = "generic"

#: Instructions on whole registers of 16 bytes.
_VECTOR_INSTRUCTION = re.compile(r"^\s+\w+\s.*\b(?:q\d+|v\d+\.(?:16b|8h|4s|2d))", re.MULTILINE)


def assembly_of(module: str, machine: llvm.TargetMachine) -> str:
    """Optimise a module and compile it; the code for the machine at hand has its own data layout."""
    foreign = llvm.parse_assembly(re.sub(r"^target (?:datalayout|triple) .*$", "", module, flags=re.MULTILINE))
    foreign.triple, foreign.data_layout = TRIPLE, str(machine.target_data)
    foreign.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        foreign, llvm.create_pass_builder(machine, options)
    )
    return str(machine.emit_assembly(foreign))


def main() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=PROCESSOR, opt=3, reloc="pic")
    found = {}
    for name, kernel in every_kernel().items():
        code = assembly_of(str(compiled(kernel)), machine)
        calls = sorted(set(re.findall(r"^\s+bl?\s+([A-Za-z_]\S*)", code, re.MULTILINE)))
        defined = set(re.findall(r"^(\w+):", code, re.MULTILINE))
        found[name] = {
            "calls": [call for call in calls if call not in defined and not call.startswith(".L")],
            "vector_instructions": len(_VECTOR_INSTRUCTION.findall(code)),
        }
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
