"""Speed of the lines to other peers, measured when the person asks.

Down: a few peers, one after the other, send some chunks of a past round's result, which they share anyway.  Up: the rate
that our pushes of the last rounds reached; no peer has to receive data for a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.blobs.blob import Blob
from protocol.blobs.sampling import Sampled
from protocol.blobs.swarm import Swarm
from protocol.chain.replica import Replica
from protocol.membership.liveness import Membership
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

MOST_PEERS = 3
ROUNDS_AGO = 2
"""Age in rounds of the result that is sampled: peers need the newest one urgently, but not the one before."""


class NotNow(Exception):
    """Nothing can be measured now; the text says why."""


@dataclass(frozen=True)
class ProbedLines:
    """Measured lines.  peers: name and sample of each peer that was asked.

    up_bytes_per_s: rate that our pushes reached, within our cap; the cap while no rate is known; 0 if neither is known.
    """

    peers: list[tuple[str, Sampled]]
    up_bytes_per_s: float


class LineProbe:
    """Line measurements of one node."""

    def __init__(self, session: Session, replica: Replica, membership: Membership, swarm: Swarm) -> None:
        self._session, self._replica, self._membership, self._swarm = session, replica, membership, swarm
        self._measuring = False

    async def measure(self) -> ProbedLines:
        """Measure the lines, one measurement at a time.  Raises `NotNow`."""
        if self._measuring:
            raise NotNow("the lines are being measured already; ask again in a few seconds")
        self._measuring = True
        try:
            blob, network = self._known_blob(), self._session.network
            found = [(self._membership.name(peer), await self._swarm.sample(blob, peer)) for peer in self._asked()]
            return ProbedLines(found, network.bandwidth().up_bytes_per_s)
        finally:
            self._measuring = False

    def _asked(self) -> list[PeerId]:
        connected = set(self._session.network.connected())
        peers = [peer for peer in self._membership.live_peers() if peer in connected][:MOST_PEERS]
        if not peers:
            raise NotNow("no other peer of the run is connected; wait for one")
        return peers

    def _known_blob(self) -> Blob:
        history = self._replica.history
        if history.length < ROUNDS_AGO:
            raise NotNow(f"the run has {history.length} rounds; lines can be measured after {ROUNDS_AGO} of them")
        commit = history.commit_at(history.length - ROUNDS_AGO)
        sizes = tuple(span.size for span in self._replica.layout)
        return Blob(Hash(commit.record.result_root), tuple(Hash(entry.hash) for entry in commit.index), sizes)
