"""The entrance of a node on a table, with its real parts: Ann and Bob say and ask what they like."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from protocol.audit.ejection import Ejections
from protocol.audit.evidence import TwoStatements
from protocol.blobs.swarm import Swarm
from protocol.chain.replica import ReplicaShelf, Serving
from protocol.events.events import Event
from protocol.membership.activity import Activity
from protocol.membership.handshake import Handshake
from protocol.membership.heartbeats import FailureDetector
from protocol.membership.liveness import Membership
from protocol.node.commands import Extensions
from protocol.node.evaluator import Evaluator
from protocol.node.receipts import ReceiptAudits
from protocol.node.round_parts import RoundPeers
from protocol.node.rounds import Rounds
from protocol.node.router import MessageRouter
from protocol.run.manifest import SignedManifest
from protocol.run.settings import NodeSettings
from protocol.transport.handlers import Guard
from protocol.transport.interface import Acceptance
from protocol.wire.envelope import Body
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Ready, pack
from protocol.wire.presence import Role
from tests.protocol.chains import a_replica
from tests.protocol.peers import ME, TableNetwork, a_first_ready, a_session, at_once


class StageNetwork(TableNetwork):
    """welcomed: the peers that have greeted us, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.welcomed: list[PeerId] = []

    def welcome(self, peer: PeerId) -> None:
        self.welcomed.append(peer)

    def remember(self, addresses: Sequence[str], *, claimed: bool = False) -> None:
        pass


class Stage:
    """A peer that has just begun: no round runs."""

    def __init__(self, folder: Path, signed: SignedManifest) -> None:
        self.run, self.events, self.network = signed.run, list[Event](), StageNetwork()
        self.replica = replica = a_replica(signed, folder)
        session, history = a_session(self.run, self.network, self.events), replica.history
        guard, activity = Guard(session), Activity(self.events.append)
        settings = NodeSettings("me", Role.TRAINER, "0", 1)
        self.guard, self.membership = guard, Membership(ME.peer_id, 0.0, history)
        handshake = Handshake(session, signed.manifest, settings, history, activity)
        swarm = Swarm(session, self.membership, ReplicaShelf(replica).find, at_once)
        self.ejections = Ejections(session, guard, replica, self.membership, at_once)
        peers, nothing = RoundPeers(session, guard, handshake, self.membership, self.ejections, activity), cast("Any", None)
        audits = ReceiptAudits(session, guard, replica, self.membership, activity, at_once, None)
        rounds = Rounds(peers, replica, at_once, nothing, nothing, nothing, audits)
        self.extensions = Extensions(session, guard, replica, at_once)
        self.router = MessageRouter(session, guard, at_once, handshake, self.ejections, self.membership)
        self.router.add(
            handshake,
            swarm,
            FailureDetector(session, guard, self.membership, rounds),
            rounds,
            self.ejections,
            Evaluator(session, replica, self.membership, None, activity),
            Serving(replica, at_once),
            audits,
            self.extensions,
        )

    def said(self, author: Identity, body: Body) -> bytes:
        """A statement of `author` in this run."""
        return pack(author, self.run, body).raw

    def gossip(self, author: Identity, body: Body) -> Acceptance:
        """As when `author` gossips this to us itself."""
        return self.router.on_gossip(author.peer_id, self.said(author, body))

    def ready(self, **changes: Any) -> Ready:
        """A READY for the first round."""
        return a_first_ready(**{"base": self.replica.history.tip, **changes})

    def proof(self, liar: Identity) -> TwoStatements:
        """That `liar` signed two READYs for one slot."""
        return TwoStatements(first=self.said(liar, self.ready()), second=self.said(liar, self.ready(tokens=16)))


@asynccontextmanager
async def a_stage(folder: Path, signed: SignedManifest) -> AsyncIterator[Stage]:
    """A stage that is open, in virtual time."""
    stage = Stage(folder, signed)
    try:
        async with stage.router.open() as nursery:
            yield stage
            nursery.cancel_scope.cancel()
    finally:
        stage.replica.state.close()
