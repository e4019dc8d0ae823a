"""Compile all kernels for Linux on AArch64, into the cache of a system where a compiler would be emulated.

`tests/other_systems.sh` runs it, with sources and cache at the paths that they have there, with the processor and the
features that Numba finds there. Numba is that system's version, in a wheel for this processor. No kernel runs.
"""

from __future__ import annotations

import platform
import sys


def main() -> None:
    import llvmlite.binding as llvm
    from numba.core import codegen

    processor, features = sys.argv[1:]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: "aarch64-unknown-linux-gnu"
    llvm.get_host_cpu_name = lambda: processor
    known = ((one[1:], one[0] == "+") for one in features.split(",") if one)
    found = llvm.targets.FeatureMap(known)
    llvm.get_host_cpu_features = lambda: found
    codegen.get_host_cpu_features = lambda: features
    platform.machine = lambda: "aarch64"
    # Imported last: its kernels look at the processor.
    from fastindex.moving.warmup import every_kernel
    from fastindex.runtime.machine_code import kept_code

    for kernel in every_kernel().values():
        kept_code(kernel)


if __name__ == "__main__":
    main()
