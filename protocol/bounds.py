"""Bounds on what others can cost us: waits that grow with each failure, and memories of a limited size.

The users of these classes name the limits and state their purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from math import inf
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Backoff:
    """Pauses after failures: the first is `first_s` long, each further one twice as long, up to `longest_s`.

    until: the time at which the last pause ends, on the clock of `failed`; -inf before the first failure.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._next_s, self.until = first_s, -inf

    @property
    def next_s(self) -> float:
        """Length of the next pause."""
        return self._next_s

    def failed(self, now: float = 0.0) -> float:
        """Begin the next pause at the time `now`; return its length (s)."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        self.until = now + pause_s
        return pause_s

    def reset(self) -> None:
        """End the pause, and let the next one be the first again."""
        self._next_s, self.until = self._first_s, -inf


class BoundedDict(MutableMapping[K, V]):
    """Dict of at most `most` entries; one more evicts the oldest.

    An entry that is set again keeps its age, as in every dict; `renew` sets it as the newest.

    gives_way: returns True for a key and a value that are evicted before all others, the oldest of them first.  So a crowd
    of strangers evicts strangers alone.
    """

    def __init__(self, most: int, gives_way: Callable[[K, V], bool] | None = None) -> None:
        self._most, self._gives_way = most, gives_way
        self._entries: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        if len(self._entries) > self._most:
            del self._entries[self._victim()]

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, the oldest first."""
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def renew(self, key: K, value: V) -> None:
        """Set an entry as the newest."""
        self._entries.pop(key, None)
        self[key] = value

    def _victim(self) -> K:
        oldest = next(iter(self._entries))
        if self._gives_way is None:
            return oldest
        return next((key for key, value in self._entries.items() if self._gives_way(key, value)), oldest)


class Backoffs(BoundedDict[K, Backoff]):
    """Backoffs of the `most` keys that failed last."""

    def __init__(self, first_s: float, longest_s: float, most: int) -> None:
        super().__init__(most)
        self._lengths_s = first_s, longest_s

    def is_over(self, key: K, now: float) -> bool:
        """Return True if `key` does not have to wait at the time `now`."""
        backoff = self.get(key)
        return backoff is None or now >= backoff.until

    def failed(self, key: K, now: float) -> None:
        """Let `key` wait from `now` on, for twice as long as the last time."""
        backoff = self.get(key) or Backoff(*self._lengths_s)
        backoff.failed(now)
        self.renew(key, backoff)
