#!/usr/bin/env bash
# Guess before the run: jaxlib refuses to parse the text of a compiled program whose large constants were left out.
#
# Seen with jax and jaxlib 0.12.0.1, numpy 2.4.2, Python 3.13 on x86-64, 2026-11-28: `compiled.as_text()` prints a
# constant of more than 10 elements as `constant({...})`. `hlo_module_from_text` reads that without an error or a
# warning, and makes up the elements: integers of 32 bits get 0, 1, 2 and so on, floats the values with these bits, which
# are nearly zero. So a program that is read back from its own text computes something else.
#
# Output seen:
#   float32[10]: printed {7, 7, 7, 7, 7, 7, 7, 7, 7, 8}, read back {7, 7, 7, 7, 7, 7, 7, 7, 7, 8}
#   float32[11]: printed {...}, read back {0, 1.4013e-45, 2.8026e-45, 4.2039e-45, 5.60519e-45, 7.00649e-45, ...
#   int32[10]: printed {7, 7, 7, 7, 7, 7, 7, 7, 7, 8}, read back {7, 7, 7, 7, 7, 7, 7, 7, 7, 8}
#   int32[11]: printed {...}, read back {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
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
"$work/venv/bin/pip" install -q --disable-pip-version-check jax==0.12.0.1 jaxlib==0.12.0.1 numpy==2.4.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import re
import sys

import jax
import numpy as np
from jaxlib import _hlo

print("jax", jax.__version__)
everything = _hlo.HloPrintOptions()
everything.print_large_constants = True
same = True
for dtype in ("float32", "int32"):
    for count in (10, 11):
        table = np.array([7] * (count - 1) + [8], dtype)
        printed = jax.jit(lambda x: x + table).lower(table).compile().as_text()
        again = _hlo.hlo_module_from_text(printed).to_string(everything)
        before, after = (re.search(r" constant\((\{.*?\})\)", text)[1] for text in (printed, again))
        short = after if len(after) < 60 else after[: after.index(",", 60) + 2] + "..."
        print(f"{dtype}[{count}]: printed {before}, read back {short}")
        read = np.array(after.strip("{}").split(","), dtype)
        wanted = table if count == 10 else np.arange(count, dtype=np.int32).view(dtype)
        same &= np.allclose(read, wanted, rtol=1e-5, atol=0) and (before == "{...}") == (count == 11)
sys.exit(not same)
PYTHON
