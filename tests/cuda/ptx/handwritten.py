"""Small kernels of PTX, for the tests of the emulator."""

from __future__ import annotations

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel({parameters})
{{
	.reg .pred %p<8>;
	.reg .b16 %rs<8>;
	.reg .b32 %r<16>;
	.reg .b64 %rd<24>;
"""


def kernel(body: str, parameters: int = 2, shared: str = "") -> str:
    """Return a kernel of 64-bit parameters, which begin in %rd1, %rd2 ...; %r1 is the thread and %rd10 its number."""
    names = ", ".join(f".param .u64 p{i}" for i in range(1, parameters + 1))
    loads = "".join(f"\tld.param.u64 %rd{i}, [p{i}];\n" for i in range(1, parameters + 1))
    thread = "\tmov.u32 %r1, %tid.x;\n\tcvt.u64.u32 %rd10, %r1;\n"
    lines = "".join(f"\t{line.strip()}\n" for line in body.strip().splitlines())
    return HEAD.format(parameters=names) + shared + loads + thread + lines + "\tret;\n}\n"


def line_of(ptx: str, part: str) -> int:
    """Return the number of the one line that has this in it."""
    (found,) = (i for i, line in enumerate(ptx.splitlines(), 1) if part in line)
    return found
