"""What `paired.py` starts for each version: it imports nothing but that version of fastindex and NumPy.

A line on stdin with two shape texts plans a relayout and runs it once, one with a number runs it so often; each is
answered by the seconds that it took, 0 where a side is too large.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import fastindex as fi

MOST_BYTES = 288 << 20


def main() -> None:
    """Answer until stdin ends."""
    threads = int(sys.argv[1])
    clock = time.thread_time if threads == 1 else time.perf_counter
    source = np.random.default_rng(0).integers(0, 256, MOST_BYTES, np.uint8)
    output = np.ones(MOST_BYTES, np.uint8)
    calls, plan, sides = 0, None, (source, output)
    for line in sys.stdin:
        question = json.loads(line)
        if isinstance(question, list):
            shapes = [fi.Shape.parse(text) for text in question]
            calls = int(all(shape.nbytes <= MOST_BYTES for shape in shapes))
            plan = fi.plan_relayout(*shapes)
            sides = source[: shapes[0].nbytes], output[: shapes[1].nbytes]
            if calls:
                plan(*sides, threads=threads)
        else:
            calls = question
        began = clock()
        for _ in range(calls):
            plan(*sides, threads=threads)
        print(clock() - began if calls else 0, flush=True)


if __name__ == "__main__":
    main()
