"""Eight threads that call everything a thousand times each, at once; every answer is known."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import numpy as np

import fastindex as fi
from tests.faults.tally import Tally
from tests.oracles import reference
from tests.oracles.slot_owners import buffer_of, elements_of_slots, slots_of_elements

_THREADS, _CALLS = 8, 1000
_TEXTS = (
    "bf16[70,201]{1,0:T(8,128)(2,1)}",
    "f32[33,70]{0,1:T(8,128)}",
    "u8[5,7,90]{0,2,1:T(4,128)(4,1)}",
    "f64[300,11]{1,0:T(2,16)L(96)}",
    "c128[40,40]{0,1}",
)

Call = Callable[[int], bool]


def run(tally: Tally) -> None:
    """Call from eight threads until the time is over."""
    calls = [call for text in _TEXTS for call in _calls_of(text)]
    while tally.going():
        done = [0] * _THREADS
        wrong: list[str] = []
        began = threading.Barrier(_THREADS)

        def caller(number: int, done: list[int], wrong: list[str], began: threading.Barrier) -> None:
            source = Random(tally.seed * 100 + number)
            began.wait()
            for _ in range(_CALLS):
                name, call = source.choice(calls)
                try:
                    right = call(source.choice((1, 2)))
                except Exception as error:
                    right = False
                    name = f"{name}: {type(error).__name__}: {error}"
                if not right:
                    wrong.append(name)
                    return
                done[number] += 1
                if not tally.going():
                    return

        tally.begin("eight threads")
        threads = [threading.Thread(target=caller, args=(k, done, wrong, began)) for k in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tally.count("calls from eight threads at once", sum(done))
        for name in wrong:
            tally.find("calls from eight threads at once", name)
        tally.seed += 1
        tally.save()


def _calls_of(text: str) -> list[tuple[str, Call]]:
    """Calls for one layout, each with the answer that the definition has."""
    shape = reference.parse(text)
    places = elements_of_slots(shape)
    count, width = reference.element_count(shape), reference.VALUE_BITS[shape.element_type] // 8
    slots = slots_of_elements(places)
    coordinates = np.indices(shape.dimensions).reshape(len(shape.dimensions), -1)
    values = np.random.default_rng(3).integers(0, 256, (count, width), np.uint8)
    buffer = buffer_of(shape, places, values)
    dtype = fi.Shape.parse(text).element_type.numpy_dtype
    array = values.reshape(-1).view(dtype).reshape(shape.dimensions)
    plain = text.split("{")[0]

    def same(found: np.ndarray, expected: np.ndarray) -> bool:
        return found.tobytes() == expected.tobytes()

    def refuses(threads: int) -> bool:
        try:
            fi.linear_index(text, [np.array([10**6])] * len(coordinates), threads=threads)
        except fi.OutOfBoundsError:
            return True
        return False

    return [
        (f"linear_index {text}", lambda n: same(fi.linear_index(text, coordinates, threads=n), slots)),
        (f"multi_index {text}", lambda n: same(np.stack(fi.multi_index(text, slots, threads=n)), coordinates)),
        (f"convert_index {text}", lambda n: same(fi.convert_index(plain, text, np.arange(count), threads=n), slots)),
        (f"pack {text}", lambda n: same(fi.pack(array, text, threads=n), buffer)),
        (f"unpack {text}", lambda n: same(fi.unpack(buffer, text, threads=n), array)),
        (f"relayout from {text}", lambda n: same(fi.relayout(buffer, text, plain, threads=n), array)),
        (f"relayout to {text}", lambda n: same(fi.relayout(array.reshape(-1), plain, text, threads=n), buffer)),
        (f"out of bounds {text}", refuses),
        (f"parse {text}", lambda n: str(fi.Shape.parse(text)) == text),
    ]
