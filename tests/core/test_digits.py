"""Sums of digits: division with remainder and equality, against their values."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from typing import cast

from fastindex.core.digits import Digits, Names, Variable, always_equal, canonical, digit, divided, largest_sum, scaled
from tests.cases.strategies import OTHER_SEEDS, seeds

Values = Mapping[object, int]


def value_of_variable(variable: Variable, values: Values, names: Names) -> int:
    if variable.is_coordinate:
        return values[variable.key]
    kind, name = cast(tuple[str, int], variable.key)
    parts, tile_size = next(known for known, number in names.items() if number == name)
    whole = value(parts, values, names)
    return whole // tile_size if kind == "quotient" else whole % tile_size


def value(digits: Digits, values: Values, names: Names) -> int:
    total = 0
    for d in digits:
        part = value_of_variable(d.variable, values, names) // d.low
        total += d.weight * (part if d.high is None else part % (d.high // d.low))
    return total


def random_digits(rng: random.Random, variables: list[Variable]) -> Digits:
    digits: Digits = ()
    for _ in range(rng.randint(1, 3)):
        low = rng.choice((1, 1, 2, 3, 4))
        high = rng.choice((None, low * rng.choice((2, 3, 4, 6))))
        digits += digit(rng.choice((1, 2, 3, 4, 6, 12)), rng.choice(variables), low, high)
    return digits


def everywhere(variables: list[Variable]) -> list[dict[object, int]]:
    ranges = [range(variable.extent) for variable in variables]
    return [
        {variable.key: number for variable, number in zip(variables, numbers, strict=True)}
        for numbers in itertools.product(*ranges)
    ]


def test_division_with_remainder() -> None:
    for seed in seeds(500):
        rng = random.Random(seed)
        variables = [Variable(name, rng.choice((1, 2, 5, 6, 8, 12)), True) for name in "xy"]
        names: Names = {}
        whole = random_digits(rng, variables)
        parts = [(whole, divided(whole, tile_size := rng.choice((1, 2, 3, 4, 6, 12)), names), tile_size)]
        # What was split is split again, so that what could not be split appears inside.
        for part in parts[0][1]:
            tile_size = rng.choice((2, 3, 4))
            parts.append((scaled(part, 2), divided(scaled(part, 2), tile_size, names), tile_size))
        for values in everywhere(variables):
            for digits, (quotient, remainder), tile_size in parts:
                expected = divmod(value(digits, values, names), tile_size)
                found = value(quotient, values, names), value(remainder, values, names)
                assert found == expected, (seed, digits, tile_size)
                assert found[1] <= largest_sum(remainder)


def test_equality() -> None:
    verdicts: Counter[bool | None] = Counter()
    for seed in seeds(2000):
        rng = random.Random(seed)
        variables = [Variable("x", rng.choice((2, 5, 6, 8, 12, 24)), True)]
        a, b = random_digits(rng, variables), random_digits(rng, variables)
        same = all(value(a, values, {}) == value(b, values, {}) for values in everywhere(variables))
        verdict = always_equal(a, b)
        assert verdict in (same, None), (a, b)
        assert canonical(a) != canonical(b) or same
        verdicts[verdict] += 1
    assert verdicts[True] > 20 or OTHER_SEEDS, verdicts
    assert verdicts[False] > 500 or OTHER_SEEDS, verdicts
    assert verdicts[None] > 50 or OTHER_SEEDS, verdicts


def test_uneven_digits_are_not_taken_for_even_ones() -> None:
    x = Variable("x", 24, True)
    # They agree at 1, 2, 3, 4, 6 and 12 and differ at 5.
    a = digit(1, x, 1, 3) + digit(3, x, 3, None)
    b = digit(1, x, 1, 2) + digit(2, x, 2, None)
    assert always_equal(a, b) is True
    uneven = digit(1, x, 1, 3) + digit(2, x, 2, None)
    assert always_equal(uneven, b) is not True
