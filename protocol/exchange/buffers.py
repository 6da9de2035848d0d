"""Memory for chunks that arrive or are averaged: reused, and limited by sender."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from protocol.wire.identity import PeerId

PART_BUFFERS = 64
"""Parts of other members that may wait for their chunk's average, and spare buffers kept of each size."""


def share_of_buffers(senders: int) -> int:
    """How many of a receiver's buffers each of its senders may fill at a time."""
    return max(1, PART_BUFFERS // max(1, senders))


class BufferPool:
    """Buffers of a chunk's size, used again: to allocate fresh memory costs as much as to fill it."""

    def __init__(self) -> None:
        self._spare: dict[int, list[memoryview]] = {}

    def take(self, size: int) -> memoryview:
        """A writable buffer of `size` bytes; what is in it is undefined."""
        spare = self._spare.get(size)
        return spare.pop() if spare else memoryview(bytearray(size))

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back.  Nothing may read or write it afterwards."""
        spare = self._spare.setdefault(len(buffer), [])
        if len(spare) < PART_BUFFERS:
            spare.append(buffer)


class WaitingParts:
    """Parts of other members that wait for their chunk's average, by chunk and sender.

    `PART_BUFFERS` in all are shared equally among the senders; a sender that has used up its share waits.
    """

    def __init__(self, senders: Sequence[PeerId], pool: BufferPool) -> None:
        self._pool = pool
        self._parts: dict[tuple[int, PeerId], memoryview] = {}
        self._arriving = dict.fromkeys(senders, 0)
        self._share = share_of_buffers(len(senders))
        self._held = dict.fromkeys(senders, 0)
        self._room = trio.Event()

    def __contains__(self, key: tuple[int, PeerId]) -> bool:
        return key in self._parts

    def __getitem__(self, key: tuple[int, PeerId]) -> memoryview:
        return self._parts[key]

    def takes_from(self, peer: PeerId) -> bool:
        """Whether `peer` is one of the senders."""
        return peer in self._arriving

    async def reserve(self, peer: PeerId) -> None:
        """Wait until `peer` has a buffer left of its share, and count one as arriving."""
        self._held[peer] += 1
        try:
            while self._arriving[peer] + sum(sender == peer for _, sender in self._parts) >= self._share:
                await self._room.wait()
        finally:
            self._held[peer] -= 1
        self._arriving[peer] += 1

    def held(self) -> list[PeerId]:
        """The senders that wait for room."""
        return [peer for peer, pushes in self._held.items() if pushes]

    def arrived(self, peer: PeerId) -> None:
        """A part that `reserve` counted is complete, or broke off."""
        self._arriving[peer] -= 1
        self.wake_senders()

    def put(self, chunk: int, peer: PeerId, part: memoryview) -> None:
        """Keep a verified part until its chunk is dropped."""
        self._parts[chunk, peer] = part

    def drop(self, chunk: int) -> None:
        """Free the buffers of this chunk's parts: nothing reads them any more."""
        for key in [key for key in self._parts if key[0] == chunk]:
            self._pool.give(self._parts.pop(key))
        self.wake_senders()

    def wake_senders(self) -> None:
        """Let those who wait for room look again."""
        self._room.set()
        self._room = trio.Event()
