"""Numbers that are joined into groups: a union-find structure."""

from __future__ import annotations

from array import array


class Joined:
    """Groups of numbers, of which the first represents each.

    Examples
    --------
    >>> joined = Joined()
    >>> for _ in range(5):
    ...     _ = joined.add()
    >>> joined.join(3, 4)
    >>> joined.join(4, 1)
    >>> joined.find(4), joined.representatives()
    (1, array('i', [0, 1, 2, 1, 1]))
    """

    def __init__(self) -> None:
        self._parent = array("i")

    def add(self) -> int:
        """Add the next number, as a group."""
        number = len(self._parent)
        self._parent.append(number)
        return number

    def find(self, number: int) -> int:
        """Return the representative of a number's group."""
        parent = self._parent
        while (above := parent[number]) != number:
            parent[number] = number = parent[above]
        return number

    def join(self, first: int, second: int) -> None:
        """Join the groups of two numbers."""
        a, b = self.find(first), self.find(second)
        self._parent[max(a, b)] = min(a, b)

    def representatives(self) -> array[int]:
        """Return the representative of each number; it changes if groups are joined later."""
        parent = self._parent
        for number, above in enumerate(parent):
            # Those of smaller numbers are final.
            parent[number] = parent[above]
        return parent
