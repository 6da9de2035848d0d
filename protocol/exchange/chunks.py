"""The chunks that a member has to give: the parts of its own contribution, and the results it holds."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.layout import Layout
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash, tree_proofs
from protocol.wire.identity import PeerId
from protocol.wire.messages import Plan, Provenance


class OwnParts:
    """Our contribution, cut into one part a chunk.

    contribution: codec bytes.  leaves: the hash of each part; their tree root is what our READY commits to.
    """

    def __init__(self, contribution: memoryview, leaves: Sequence[Hash], layout: Layout) -> None:
        self._contribution, self._layout = contribution, layout
        self._proofs = tree_proofs(leaves)

    def __getitem__(self, chunk: int) -> memoryview:
        """The codec bytes of a part."""
        return self._contribution[self._layout[chunk].encoded]

    def proof(self, chunk: int) -> list[bytes]:
        """The tree proof of a part."""
        return [*self._proofs[chunk]]


class Results:
    """The averages that we hold, each at its place in the result buffer, with the statement of the owner that signed it.

    buffer: writable, as long as a contribution.  After `release` it belongs to the caller and is not touched any more.
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
        """The codec bytes of an average."""
        return self._buffer[self._layout[chunk].encoded]

    def put(self, chunk: int, average: memoryview, statement: Envelope) -> None:
        """Copy an average to its place."""
        self._buffer[self._layout[chunk].encoded] = average
        self.statements[chunk] = statement

    def has(self, chunk: int) -> bool:
        """Whether the average of this chunk can be read and sent."""
        return not self.released and chunk in self.statements

    def release(self) -> None:
        """Leave the buffer to somebody else for good."""
        self.released = True

    def provenance(self, plan: Plan) -> Provenance:
        """The signer and the signature of each chunk, once all are here."""
        members = [PeerId(member.peer) for member in plan.members]
        statements = [self.statements[chunk] for chunk in range(len(plan.owners))]
        return Provenance(
            owners=plan.owners,
            signers=bytes(members.index(each.sender) for each in statements),
            signatures=[each.signature for each in statements],
        )
