"""Memory for chunks that arrive or are averaged, reused and limited for each sender."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kernels.layout import Layout, Layouts
from protocol.disk import let_go
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash, tree_proofs
from protocol.wire.identity import PeerId
from protocol.wire.messages import Plan, Provenance

# ------------------------------------------------------------------------------------------------------------------------
# Chunks that a member can send: the parts of its own contribution, and the results that it holds.


class OwnParts:
    """Our contribution, cut into one part for each chunk.

    contribution: encoded chunks.  leaves: the hash of each part; the root of the tree over them is the commitment in our
    READY.  layouts: the layouts of the round's contributions and results.
    """

    def __init__(self, contribution: memoryview, leaves: Sequence[Hash], layouts: Layouts) -> None:
        self.layouts = layouts
        self._contribution = contribution
        self._proofs = tree_proofs(leaves)

    def __getitem__(self, chunk: int) -> memoryview:
        """Return the codec bytes of a part."""
        return self._contribution[self.layouts.contribution[chunk].encoded]

    def proof(self, chunk: int) -> list[bytes]:
        """Return the tree proof of a part."""
        return [*self._proofs[chunk]]


class AverageBuffer:
    """Buffer of the averages that we hold, each at its place, with the statement of the owner that signed it.

    buffer: a writable buffer, as long as all averages together.  After `release` the buffer belongs to the caller and is no
    longer read or written here.
    """

    def __init__(self, buffer: memoryview, layout: Layout) -> None:
        self.released = False
        self.statements: dict[int, Envelope] = {}
        self._buffer, self._layout = buffer, layout

    @property
    def buffer(self) -> memoryview | None:
        """The result buffer; None once it is released."""
        return None if self.released else self._buffer

    def __getitem__(self, chunk: int) -> memoryview:
        """Return the codec bytes of an average."""
        return self._buffer[self._layout[chunk].encoded]

    def put(self, chunk: int, average: memoryview, statement: Envelope) -> None:
        """Copy an average to its place."""
        self._buffer[self._layout[chunk].encoded] = average
        let_go(self[chunk])
        self.statements[chunk] = statement

    def has(self, chunk: int) -> bool:
        """Return True if the average of this chunk can be read and sent."""
        return not self.released and chunk in self.statements

    def release(self) -> None:
        """Leave the buffer to the caller permanently."""
        self.released = True

    def provenance(self, plan: Plan) -> Provenance:
        """Return the signer and the signature of each chunk; all averages must have arrived."""
        members = [PeerId(member.peer) for member in plan.members]
        statements = [self.statements[chunk] for chunk in range(len(plan.owners))]
        return Provenance(
            owners=plan.owners,
            signers=bytes(members.index(each.sender) for each in statements),
            signatures=[each.signature for each in statements],
        )


# ------------------------------------------------------------------------------------------------------------------------


PART_BUFFERS = 64
"""Limit on the parts of other members that wait for their chunk's average, and on the spare buffers of each size."""


def share_of_buffers(senders: int) -> int:
    """Return the number of a receiver's buffers that each of its senders may fill at a time."""
    return max(1, PART_BUFFERS // max(1, senders))


class BufferPool:
    """Pool of reusable chunk buffers, because allocating memory costs as much as filling it."""

    def __init__(self) -> None:
        self._spare: dict[int, list[memoryview]] = {}

    def take(self, size: int) -> memoryview:
        """Return a writable buffer of `size` bytes with undefined content."""
        spare = self._spare.get(size)
        return spare.pop() if spare else memoryview(bytearray(size))

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back, which must not be read or written afterwards."""
        spare = self._spare.setdefault(len(buffer), [])
        if len(spare) < PART_BUFFERS:
            spare.append(buffer)


class WaitingParts:
    """Parts of other members that wait for their chunk's average, by chunk and sender.

    The `PART_BUFFERS` buffers are shared equally among the senders; a sender that has used up its share waits.
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
        """Return True if `peer` is one of the senders."""
        return peer in self._arriving

    async def reserve(self, peer: PeerId) -> None:
        """Wait until `peer` has a free buffer in its share, and count one part as arriving."""
        self._held[peer] += 1
        try:
            while self._arriving[peer] + sum(sender == peer for _, sender in self._parts) >= self._share:
                await self._room.wait()
        finally:
            self._held[peer] -= 1
        self._arriving[peer] += 1

    def held(self) -> list[PeerId]:
        """Return the senders that wait for a buffer."""
        return [peer for peer, pushes in self._held.items() if pushes]

    def arrived(self, peer: PeerId) -> None:
        """Release the reservation of a part that is complete or broke off."""
        self._arriving[peer] -= 1
        self.wake_senders()

    def put(self, chunk: int, peer: PeerId, part: memoryview) -> None:
        """Keep a verified part until its chunk is dropped."""
        self._parts[chunk, peer] = part

    def drop(self, chunk: int) -> None:
        """Free the buffers of this chunk's parts, which are no longer needed."""
        for key in [key for key in self._parts if key[0] == chunk]:
            self._pool.give(self._parts.pop(key))
        self.wake_senders()

    def wake_senders(self) -> None:
        """Let senders that wait for a buffer check again."""
        self._room.set()
        self._room = trio.Event()


class ExchangeBuffers:
    """Memory of one exchange: our own parts, waiting parts of other members, and the averages.

    result: writable buffer for the averages.  senders: the other members.
    """

    def __init__(self, own: OwnParts, result: memoryview, senders: Sequence[PeerId]) -> None:
        self.own, self.results, self.pool = own, AverageBuffer(result, own.layouts.result), BufferPool()
        self.parts = WaitingParts(senders, self.pool)
