"""What passes know of kernels: their names, what each is compiled for, and how much scratch memory it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol


class PassOrDraft(Protocol):
    """What decides which machine code a pass needs; see `fastindex.moving.passes.Pass`."""

    @property
    def kernel(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def ways(self) -> int: ...
    @property
    def geometry(self) -> Any: ...


def once(one: PassOrDraft) -> tuple[int, int]:
    """Return the same for all passes: the kernel takes any width."""
    return 1, 0


def by_width(one: PassOrDraft) -> tuple[int, int]:
    """Return the width of a pass."""
    return one.width, 0


def by_width_and_ways(one: PassOrDraft) -> tuple[int, int]:
    """Return the width and the ways of a pass."""
    return one.width, one.ways


class PassKernel(NamedTuple):
    """A kernel of passes.

    Attributes
    ----------
    name : str
        `Pass.kernel` of the passes that it runs.
    loops : tuple of dispatchers
        By variant; the last one also serves all higher variants.
    key : callable
        Takes a pass; returns the width and the variant that its machine code is compiled for.
    compiled_at_first : callable
        Takes the bytes of a vector; returns the widths and variants that `fastindex warmup` compiles.
    scratch_bytes : int
        Of scratch memory that it needs, at most `MOST_SCRATCH_BYTES`.
    reads_ahead : bool
        Whether it reads one part of a task while it writes the part before it, from one task to the next.
    """

    name: str
    loops: tuple[Any, ...]
    key: Callable[[PassOrDraft], tuple[int, int]] = once
    compiled_at_first: Callable[[int], Iterable[tuple[int, int]]] = lambda _: ((1, 0),)
    scratch_bytes: int = 0
    reads_ahead: bool = False
