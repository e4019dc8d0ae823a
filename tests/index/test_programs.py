"""Index programs against the slow reference.

Tests of: index.programs, algebra.forms.
"""

import pickle

import pytest
from hypothesis import example, given

from fastindex import Layout, LayoutError, Shape, UnsupportedError
from fastindex.algebra.forms import IndexProgram, Quotient, without_unused_quotients, wrapped_int64
from fastindex.core.layout_fields import MOST_TILES
from fastindex.index.programs import conversion_program, linear_program, multi_program, tile_program, within_tile_count
from tests.cases.strategies import RandomSource, array_shapes, draw_layout, random_pair, random_shape
from tests.oracles import reference

PINNED = [
    "f32[7]{0:T(3)(2)}",
    "f32[20]{0:T(4)(6)}",
    "f32[3,5]{1,0:T(2,2)}",
    "bf16[10,13]{1,0:T(4,3)(2,1)}",
    "bf16[5,7,9]{0,2,1:T(*,6)(4)L(7)}",
    "f32[4,6]{1,0:T(2,3)(*,*,*,5)}",
    "f32[2,7,8,11]{3,2,1,0:T(*,2,*,3)}",
    "f32[]{:T(4)(2,1)}",
    "f32[]{:L(8)}",
    "f32[5]{0:T(2,4)(3,1,1)}",
    "f32[1,1,9]{2,1,0:T(2,4)(2,1)}",
    "f32[3,4]{1,0:PAD(5,4)T(2,2)}",
    "f32[0,4]{1,0:PAD(3,4)}",
    "f32[0,4]{1,0:T(2,2)}",
    "f32[0,1,1]{0,1,2:PAD(1,1,1)T(*,2)(4)L(128)}",
    "f32[10]{0:L(16)}",
    "f32[8,16]{1,0:T(*,4)(*,2,1)}",
]


def misplaced(shape: reference.ReferenceShape, linear=linear_program) -> list[str]:
    """Elements and slots that the programs send elsewhere than the reference."""
    ours = Shape.parse(str(shape))
    cells = reference.slots(shape)
    forward, backward = linear(ours), multi_program(ours)
    found = []
    for slot, cell in enumerate(cells):
        coordinates, holds = backward.evaluate((slot,))
        if (coordinates if holds else None) != cell:
            found.append(f"slot {slot} of {shape}: {coordinates}, {holds}, expected {cell}")
        if cell is not None and forward.evaluate(cell)[0] != (slot,):
            found.append(f"element {cell} of {shape}: {forward.evaluate(cell)}, expected {slot}")
    return found


def within_limits(program: IndexProgram, inputs: tuple[int, ...]) -> bool:
    """Whether every numerator stays within the limit from which kernels choose their arithmetic."""
    values = list(inputs)
    for quotient in program.quotients:
        numerator = sum(values[v] * c for v, c in quotient.numerator)
        if not 0 <= numerator <= quotient.limit:
            return False
        values.append(numerator // quotient.divisor)
    return True


@pytest.mark.parametrize("text", PINNED)
def test_pinned_shapes_agree_with_the_reference(text):
    assert misplaced(reference.parse(text)) == []


@given(array_shapes())
def test_any_shape_agrees_with_the_reference(shape):
    assert misplaced(shape) == []


@pytest.mark.parametrize("seed", range(60))
def test_numerators_stay_within_their_limits(seed):
    shape = random_shape(seed)
    ours = Shape.parse(str(shape))
    forward, backward = linear_program(ours), multi_program(ours)
    assert all(within_limits(backward, (slot,)) for slot in range(ours.slot_count))
    assert all(within_limits(forward, cell) for cell in reference.slots(shape) if cell is not None)


def test_a_planted_bug_shows():
    """Planted: the last quotient is dropped from the output."""

    def wrong(shape: Shape) -> IndexProgram:
        program = linear_program(shape)
        return IndexProgram(program.input_bounds, program.quotients, tuple(form[:-1] for form in program.outputs))

    assert misplaced(reference.parse("f32[3,5]{1,0:T(2,2)}"), linear=wrong) != []


@pytest.mark.parametrize("seed", range(40))
def test_tile_programs_agree_with_the_reference(seed):
    shape = random_shape(seed)
    ours = Shape.parse(str(shape))
    for level in range(len(shape.tiles)):
        program = tile_program(ours, level)
        within = within_tile_count(ours, level)
        for cell in reference.every_index(shape.dimensions):
            outer, inner = reference.tile_index(shape, cell, level)
            values, _ = program.evaluate(cell)
            assert values == outer + inner
            assert len(inner) == within


def misconverted(source: reference.ReferenceShape, destination: reference.ReferenceShape) -> list[str]:
    ours = Shape.parse(str(source)), Shape.parse(str(destination))
    program = conversion_program(*ours)
    cells, slot_of = reference.slots(source), reference.linear_indices(destination)
    found = []
    for slot, cell in enumerate(cells):
        expected = None if cell is None else slot_of[cell]
        (got,), holds = program.evaluate((slot,))
        if (got if holds else None) != expected:
            found.append(f"slot {slot} of {source} in {destination}: {got}, {holds}, expected {expected}")
    return found


@pytest.mark.parametrize("seed", range(60))
def test_conversions_agree_with_the_reference(seed):
    assert misconverted(*random_pair(seed)) == []


@pytest.mark.parametrize("seed", range(20))
def test_conversion_to_the_same_layout_is_the_identity(seed):
    shape = random_shape(seed)
    assert misconverted(shape, shape) == []
    ours = Shape.parse(str(shape))
    if ours.slot_count > 1:
        assert conversion_program(ours, ours).outputs == (((0, 1),),)


def test_conversion_needs_one_array():
    with pytest.raises(LayoutError, match=r"dimensions of f32\[2\]\{0\} and f32\[3\]\{0\} differ"):
        conversion_program(Shape("f32", (2,)), Shape("f32", (3,)))


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        ("bf16[4096,4000]{1,0:T(8,128)(2,1)}", 3),
        ("f32[8,16,32]{2,1,0}", 0),
        ("s8[64,512]{1,0:T(8,128)(4,1)}", 3),
        ("f32[4096]{0:T(1024)(128)(8)}", 0),
        ("f32[2,64,8,8]{3,2,1,0:T(16,1,1)}", 1),
    ],
)
def test_tiles_that_divide_each_other_take_one_division_each(text, divisions):
    program = linear_program(Shape.parse(text))
    assert len(program.quotients) == divisions
    assert all(len(q.numerator) == 1 and q.numerator[0][0] < 4 for q in program.quotients)


def test_describe_is_stable():
    assert multi_program(Shape.parse("f32[20]{0:T(4)(6)}")).describe() == (
        "x0 < 30\nq0 = x0 // 6\ny0 = x0 - 2 q0\npadding unless x0 - 2 q0 < 20\npadding unless x0 - 6 q0 < 4"
    )
    assert linear_program(Shape.parse("f32[1,1]")).describe() == "x0 < 1, x1 < 1\ny0 = 0"
    assert linear_program(Shape.parse("f32[]")).describe() == "no inputs\ny0 = 0"


def test_large_sizes_stay_exact():
    shape = Shape.parse("u8[3000000000,3000000]{1,0:T(1024,128)(3,1)}")
    forward, backward = linear_program(shape), multi_program(shape)
    for cell in [(0, 0), (2_999_999_999, 2_999_999), (2**31, 2**20 + 1), (2**31 - 1, 77)]:
        (slot,), _ = forward.evaluate(cell)
        assert 0 <= slot < shape.slot_count
        assert within_limits(backward, (slot,))
        assert backward.evaluate((slot,)) == (cell, True)


@pytest.mark.parametrize(
    "text",
    [
        "u8[100003,100019]{1,0:T(8,128)(4,1)}",
        "u8[2147483648,2]",
        "u8[2,2147483648]",
        "u8[2147483647,2147483648]",
        "u8[3,2147483647]{0,1}",
        "f32[1024,1024,1024,1024]{0,2,1,3}",
        "u8[2147483647,2,3]{2,1,0:T(2,1)}",
        "bf16[65536,65537]{1,0:T(16,128)(2,1)}",
    ],
)
def test_a_slot_beyond_31_bits_is_divided_once(text):
    """Everything else is derived from the two narrow parts of that division, exactly where they begin and end."""
    shape, case = Shape.parse(text), reference.parse(text)
    program = multi_program(shape)
    last = shape.slot_count - 1
    wide = [quotient for quotient in program.quotients if quotient.limit >= 2**31]
    assert len(wide) <= 1
    parts = {quotient.divisor for quotient in wide} | {2**31, 2**32}
    near = {part * k + step for part in parts for k in (1, 2, last // part) for step in (-1, 0, 1)}
    for slot in {0, 1, last // 3, last - 1, last} | {slot for slot in near if 0 <= slot <= last}:
        assert within_limits(program, (slot,))
        found, holds = program.evaluate((slot,))
        element = tuple(min(max(at, 0), size - 1) for at, size in zip(found, shape.dimensions, strict=True))
        at = reference.linear_index(case, element)
        assert holds == (element == found and at == slot)
        assert program.evaluate((at,)) == (element, True)


def test_as_many_tiles_as_a_layout_may_have():
    shape = Shape("u8", (5,), Layout((0,), tiles=((2,),) * MOST_TILES))
    assert linear_program(shape).evaluate((4,)) == ((4,), True)
    assert multi_program(shape).evaluate((5,))[1] is False


@pytest.mark.parametrize("text", ["f32[?]", "token[]", "(f32[2])", "f32[4]{0:D(C)}"])
def test_shapes_without_slots_are_refused(text):
    shape = Shape.parse(text)
    for make in (linear_program, multi_program):
        with pytest.raises(UnsupportedError):
            make(shape)


def test_slots_beyond_int64_are_refused():
    with pytest.raises(LayoutError, match="int64"):
        linear_program(Shape.parse("u8[4611686018427387904]{0:T(3,2)}"))


def test_programs_compare_by_value_and_keep_what_is_derived():
    shape = Shape.parse("f32[3,5]{1,0:T(2,2)}")
    assert linear_program(shape) is linear_program(Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    program = linear_program(shape)
    made = []

    def length(program):
        made.append(program)
        return len(program.quotients)

    assert [program.derived(length), program.derived(length)] == [2, 2]
    assert made == [program]
    assert pickle.loads(pickle.dumps(program)) == program


def test_unused_quotients_go():
    program = IndexProgram(
        (10,),
        (Quotient(((0, 1),), 2, 9), Quotient(((0, 1),), 3, 9), Quotient(((2, 5),), 4, 15)),
        (((3, 7),),),
    )
    slim = without_unused_quotients(program)
    assert slim.quotients == (Quotient(((0, 1),), 3, 9), Quotient(((1, 5),), 4, 15))
    assert [slim.evaluate((i,)) for i in range(10)] == [program.evaluate((i,)) for i in range(10)]


@pytest.mark.in_turn(seconds=4)
@given(array_shapes())
@example(reference.parse("f32[4,4]{1,0:T(2,2)}"))
def test_conversions_of_any_shape_to_plain(shape):
    plain = reference.ReferenceShape(
        shape.element_type, shape.dimensions, tuple(reversed(range(len(shape.dimensions))))
    )
    assert misconverted(shape, plain) == []
    other = draw_layout(RandomSource(3), shape.element_type, shape.dimensions, True)
    assert misconverted(other, shape) == []


def test_wrapped():
    assert [wrapped_int64(n) for n in (2**63, -(2**63) - 1, 5)] == [-(2**63), 2**63 - 1, 5]
