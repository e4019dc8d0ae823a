"""Tile assignments: the number of parts along each dimension, and the device of each part, validated and canonical.

The order of devices is a mixed-radix counter, or a list. XLA writes ``[4,2]T(1,0)``: an iota of 8 reshaped to 4 by 2,
transposed, and read in order. That is a counter whose digits have permuted strides, here ``((2, 1), (4, 2))`` as
(size, stride), most major first. A million devices take two digits.

Subgroups are last dimensions that do not partition the array.

Source: ``OpSharding`` in ``xla/xla_data.proto``, ``xla/hlo/ir/tile_assignment.cc``, ``HloSharding::PartialTile`` and
``HloSharding::Subgroup`` in ``xla/hlo/ir/hlo_sharding.cc``.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, SupportsIndex

from fastindex.core.integers import INT64_MAX, as_integers, check_at_least, spelled
from fastindex.errors import LayoutError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Ints = tuple[int, ...]

#: More than twice the size of the largest machines, and still fast to list.
MOST_COUNTED = 1 << 21

#: ``(size, stride)`` of each digit, most major first.
Digits = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """A permutation of the devices from 0 to ``count - 1``.

    Attributes
    ----------
    count : int
    digits : Digits or None
        The order as a counter with as few digits as possible; None if `ids` lists it.
    ids : tuple of int or None

    Examples
    --------
    >>> order = DeviceOrder.transposed_iota((4, 2), (1, 0))
    >>> order.array()
    array([0, 2, 4, 6, 1, 3, 5, 7])
    >>> order.digits
    ((2, 1), (4, 2))
    """

    count: int
    digits: Digits | None
    ids: Ints | None

    @staticmethod
    def iota(count: int) -> DeviceOrder:
        """Return the devices in ascending order."""
        return DeviceOrder(count, ((count, 1),) if count > 1 else (), None)

    @staticmethod
    def transposed_iota(sizes: Sequence[int], permutation: Sequence[int]) -> DeviceOrder:
        """Return the order of ``arange(prod(sizes)).reshape(sizes).transpose(permutation)``.

        Raises
        ------
        LayoutError
            A size is below 1, the number of devices exceeds int64, or `permutation` is not a permutation.
        """
        check_at_least(1, sizes, "sizes", "reshape")
        count = device_count_of(sizes, "reshape")
        if sorted(permutation) != list(range(len(sizes))):
            raise LayoutError(
                f"a transpose must name each of the {len(sizes)} dimensions once, from 0: {spelled(permutation)}",
                field="permutation",
            )
        strides = [*itertools.accumulate(reversed(sizes[1:]), operator.mul, initial=1)][::-1]
        return DeviceOrder(count, _shortest([(sizes[d], strides[d]) for d in permutation]), None)

    @staticmethod
    def listed(ids: Sequence[int]) -> DeviceOrder:
        """Return the order given by a list of devices.

        Raises
        ------
        LayoutError
            A device is missing, negative, or repeated.
        """
        ids = tuple(ids)
        seen: set[int] = set()
        for i, device in enumerate(ids):
            if device < 0:
                raise LayoutError(f"devices count from 0: {device} in {spelled(ids)}", field="devices", index=i)
            if device in seen:
                raise LayoutError(
                    f"each device may be named once: {device} appears twice in {spelled(ids)}", field="devices", index=i
                )
            if device >= len(ids):
                raise LayoutError(
                    f"{len(ids)} devices must be 0 to {len(ids) - 1}, each once: {device} in {spelled(ids)}",
                    field="devices",
                    index=i,
                )
            seen.add(device)
        return DeviceOrder(len(ids), None, ids)

    @property
    def is_identity(self) -> bool:
        """Whether the order is a counter that yields 0, 1, 2 and so on."""
        return self.digits is not None and len(self.digits) <= 1

    @property
    def reshape_dimensions(self) -> Ints:
        """The dimensions of the iota before its transpose."""
        by_stride = sorted(self.digits or (), key=lambda digit: -digit[1])
        return tuple(size for size, _ in by_stride) or (self.count,)

    @property
    def permutation(self) -> Ints:
        """The dimension of `reshape_dimensions` that corresponds to each digit."""
        digits = self.digits or ()
        by_stride = sorted(digits, key=lambda digit: -digit[1])
        return tuple(by_stride.index(digit) for digit in digits) or (0,)

    def array(self) -> NDArray[np.int64]:
        """Return the devices in order.

        Raises
        ------
        UnsupportedError
            The counter has more devices than any machine: a short text could otherwise use up all memory.
        """
        import numpy as np

        if self.ids is not None:
            return np.array(self.ids, np.int64)
        if self.count > MOST_COUNTED:
            raise UnsupportedError(f"{self.count} devices are too many to list: at most {MOST_COUNTED} are supported")
        return counted(self.digits or ())

    def counter(self) -> Digits | None:
        """Return the order as a counter, recovered from a list if possible; None if no counter yields this order."""
        return self.digits if self.ids is None else _recovered(self.ids)

    def transposed(self, sizes: Sequence[int], permutation: Sequence[int]) -> DeviceOrder:
        """Return the order after a reshape to `sizes` and a transpose."""
        kept = [d for d in permutation if sizes[d] > 1]
        if kept == sorted(kept):
            return self
        groups = None if self.digits is None else _split(self.digits, sizes)
        if groups is not None:
            return DeviceOrder(self.count, _shortest([digit for d in permutation for digit in groups[d]]), None)
        moved = self.array().reshape(sizes).transpose(permutation).ravel()
        return DeviceOrder(self.count, None, tuple(moved.tolist()))

    def sorted_within(self, length: int) -> DeviceOrder:
        """Return the order with each group of `length` consecutive devices sorted."""
        groups = None if self.digits is None else _split(self.digits, (self.count // length, length))
        if groups is not None:
            ordered = [*groups[0], *sorted(groups[1], key=lambda digit: -digit[1])]
            return DeviceOrder(self.count, _shortest(ordered), None)
        rows = self.array().reshape(-1, length)
        rows.sort(axis=1)
        return DeviceOrder(self.count, None, tuple(rows.ravel().tolist()))

    def same_order(self, other: DeviceOrder) -> bool:
        """Whether both orders are equal, regardless of their representation."""
        if self.count != other.count:
            return False
        if self.ids is not None and other.ids is not None:
            return self.ids == other.ids
        return self.counter() == other.counter()


def device_count_of(sizes: Sequence[int], field: str) -> int:
    """Return the product of sizes, all of which are at least 1.

    Raises
    ------
    LayoutError
        The product does not fit int64.

    Examples
    --------
    >>> device_count_of((4, 2), "dimensions")
    8
    """
    count = 1
    for size in sizes:
        count *= size
        # Check in the loop: the full product could have as many digits as the text, in quadratic time.
        if count > INT64_MAX:
            raise LayoutError(f"the devices must fit int64, and {spelled(sizes)} are more", field=field)
    return count


def counted(digits: Digits) -> NDArray[np.int64]:
    """Return the sequence of numbers that a counter yields.

    Examples
    --------
    >>> counted(((2, 1), (4, 2)))
    array([0, 2, 4, 6, 1, 3, 5, 7])
    """
    import numpy as np

    values = np.zeros(1, np.int64)
    for size, stride in digits:
        values = (values[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return values


def inverse(digits: Digits) -> Digits:
    """Return the counter that maps each device to its position in the order.

    Examples
    --------
    >>> inverse(((2, 1), (4, 2)))
    ((4, 1), (2, 4))
    """
    places = [math.prod(size for size, _ in digits[i + 1 :]) for i in range(len(digits))]
    by_stride = sorted(zip(digits, places, strict=True), key=lambda pair: -pair[0][1])
    return tuple((size, place) for (size, _), place in by_stride)


def _shortest(digits: Sequence[tuple[int, int]]) -> Digits:
    kept: list[tuple[int, int]] = []
    for size, stride in digits:
        if size == 1:
            continue
        if kept and kept[-1][1] == stride * size:
            kept[-1] = (kept[-1][0] * size, stride)
        else:
            kept.append((size, stride))
    return tuple(kept)


def _split(digits: Digits, sizes: Sequence[int]) -> list[list[tuple[int, int]]] | None:
    """Split the digits into one group per size; None if a size would split a digit unevenly."""
    groups: list[list[tuple[int, int]]] = [[] for _ in sizes]
    left = list(digits)
    for d in range(len(sizes) - 1, -1, -1):
        wanted = sizes[d]
        while wanted > 1:
            size, stride = left.pop()
            if wanted % size == 0:
                taken = size
            elif size % wanted == 0:
                taken = wanted
                left.append((size // wanted, stride * wanted))
            else:
                return None
            groups[d].insert(0, (taken, stride))
            wanted //= taken
    return groups


@lru_cache(maxsize=64)
def _recovered(ids: Ints) -> Digits | None:
    import numpy as np

    order = np.array(ids, np.int64)
    if ids[0] != 0:
        return None
    minor_first: list[tuple[int, int]] = []
    block, count = 1, len(ids)
    while block < count:
        heads = order[::block]
        stride = int(heads[1])
        steps = np.arange(len(heads), dtype=np.int64) * stride
        wrong = np.flatnonzero(heads != steps)
        size = len(heads) if not len(wrong) else int(wrong[0])
        while len(heads) % size:
            size -= 1
        if size < 2 or stride < 1:
            return None
        minor_first.append((size, stride))
        block *= size
    digits = _shortest(minor_first[::-1])
    return digits if np.array_equal(counted(digits), order) else None


#: Types of subgroup dimensions, in canonical order.
SUBGROUP_TYPES = ("manual", "unreduced", "replicated")

Assignment = tuple[str, tuple[int, ...], DeviceOrder | None, tuple[str, ...]]


def canonical_assignment(
    dimensions: Sequence[int], order: DeviceOrder, types: Sequence[str], of_mesh: bool = False
) -> Assignment:
    """Return kind, dimensions, order and subgroup types as XLA writes them.

    Subgroups of the same type are merged, ordered as manual, unreduced, replicated, and those of size 1 are dropped. If
    the array is not partitioned and all remaining subgroups have the same type, that type is the kind of the sharding.
    With an unreduced subgroup, XLA decides this before it drops size 1:
    ``{devices=[1,1,3]<=[3] last_tile_dims={replicated, unreduced}}`` stays
    ``{devices=[1,3]<=[3] last_tile_dims={unreduced}}`` and keeps its devices. A mesh keeps them anyway, and its text
    does not tell the role of axes of size 1.
    """
    rank = len(dimensions) - len(types)
    sizes = list(dimensions[:rank])
    permutation = list(range(rank))
    kept: list[str] = []
    for kind in SUBGROUP_TYPES:
        members = [rank + i for i, name in enumerate(types) if name == kind and dimensions[rank + i] > 1]
        if members:
            permutation += members
            sizes.append(math.prod(dimensions[d] for d in members))
            kept.append(kind)
    same = set(types) if "unreduced" in kept and not of_mesh else set(kept or types)
    if math.prod(dimensions[:rank]) == 1 and len(same) == 1:
        return same.pop(), (), None, ()
    permutation += [d for d in range(rank, len(dimensions)) if d not in permutation]
    order = order.transposed(dimensions, permutation)
    if kept[-1:] == ["replicated"]:
        order = order.sorted_within(sizes[-1])
    return "tiled", tuple(sizes), order, tuple(kept)


def checked_assignment(
    dimensions: tuple[int, ...], devices: Iterable[SupportsIndex] | DeviceOrder | None, types: tuple[str, ...]
) -> Assignment:
    """Validate a caller's assignment and return it in canonical form.

    Parameters
    ----------
    dimensions : tuple of int
        Number of parts along each dimension, then the sizes of the subgroups.
    devices : sequence of int, DeviceOrder, or None
        None for 0, 1, 2 and so on.
    types : tuple of str
        Types of the subgroups.

    Raises
    ------
    LayoutError
        The assignment is invalid.
    """
    if not dimensions:
        raise LayoutError("a tiled sharding must have at least one dimension", field="dimensions")
    check_at_least(1, dimensions, "every dimension", "dimensions")
    count = device_count_of(dimensions, "dimensions")
    for i, name in enumerate(types):
        if name not in SUBGROUP_TYPES:
            raise LayoutError(
                f"a subgroup must be manual, replicated or unreduced, got {name!r}", field="subgroup_types", index=i
            )
    if len(types) > len(dimensions):
        raise LayoutError(
            f"{len(types)} subgroups need as many dimensions, there are {len(dimensions)}", field="subgroup_types"
        )
    if isinstance(devices, DeviceOrder):
        order = devices
    elif devices is None:
        order = DeviceOrder.iota(count)
    else:
        order = DeviceOrder.listed(as_integers(devices, "devices"))
    if order.count != count:
        raise LayoutError(
            f"the dimensions {spelled(dimensions)} have {count} places, but there are {order.count} devices",
            field="devices",
        )
    return canonical_assignment(dimensions, order, types)
