"""Divide a region of shared memory into blocks: free ranges by size, merged when they touch."""

from collections.abc import Iterator
from itertools import islice

# Each power of two has this many classes, so ranges of one class differ by less than a sixteenth.
_CLASSES_BITS = 4
# Ranges of the request's own class that are looked at when no larger one exists.
_MAX_LOOKS = 64


class FreeRanges:
    """The free ranges of a region. No two of them touch. Used by one thread.

    Two-level segregated fit (Masmano et al., 2004): taking and giving back take constant time. The latest range of a
    class is taken first, because its pages are mapped and still in the CPU's caches.

    A range of `size + size / 16` is always found. So if a size does not fit, less than `(blocks in use + 1) * 17/16 *
    size` is free.
    """

    def __init__(self, size: int) -> None:
        """Start with one free range from 0 to `size`. All sizes are 16 or more."""
        self.size = size
        self.free = 0
        self._sizes: dict[int, int] = {}  # start -> size
        self._starts: dict[int, int] = {}  # end -> start
        # The starts of each class, by time of their return.
        self._classes: list[dict[int, None]] = [{} for _ in range(_class_of(size) + 1)]
        self._filled = 0  # one bit per class that has ranges
        self._add(0, size)

    def take(self, size: int) -> int | None:
        """Take a block from the low end of a range. Returns its start; None if no range is large enough."""
        start = self._find(size) if size <= self.free else None
        if start is None:
            return None
        found = self._remove(start)
        if found > size:
            self._add(start + size, found - size)
        return start

    def give_back(self, start: int, size: int) -> None:
        """Add a block that was taken, merged with the free ranges before and after it."""
        before = self._starts.get(start)
        if before is not None:
            size += self._remove(before)
            start = before
        if start + size in self._sizes:
            size += self._remove(start + size)
        self._add(start, size)

    def ranges(self) -> list[tuple[int, int]]:
        """List start and size of each free range, highest start first."""
        return sorted(self._sizes.items(), reverse=True)

    def _find(self, size: int) -> int | None:
        own_class = _class_of(size)
        own = self._classes[own_class]
        latest = next(reversed(own), None)
        if latest is not None and self._sizes[latest] >= size:
            return latest
        larger = self._filled >> (own_class + 1)
        if larger:
            lowest = own_class + (larger & -larger).bit_length()
            return next(reversed(self._classes[lowest]))
        return next(self._fitting(own, size), None)

    def _fitting(self, own: dict[int, None], size: int) -> Iterator[int]:
        return (start for start in islice(reversed(own), _MAX_LOOKS) if self._sizes[start] >= size)

    def _add(self, start: int, size: int) -> None:
        size_class = _class_of(size)
        self._sizes[start] = size
        self._starts[start + size] = start
        self._classes[size_class][start] = None
        self._filled |= 1 << size_class
        self.free += size

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[start + size]
        size_class = _class_of(size)
        members = self._classes[size_class]
        del members[start]
        if not members:
            self._filled ^= 1 << size_class
        self.free -= size
        return size


def _class_of(size: int) -> int:
    """Number the classes by size: a range of a higher class is larger."""
    halvings = size.bit_length() - 1 - _CLASSES_BITS
    return (halvings << _CLASSES_BITS) + (size >> halvings)
