"""Intake of signed statements of other peers: by gossip, or brought as a question that is only acknowledged.

Each is checked for its form, its signature and its author.  The component that receives it decides what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from protocol.agreement.contradictions import slot
from protocol.agreement.relay import RELAYED
from protocol.audit.accusations import AccusationOutcome
from protocol.audit.ejection import Ejections
from protocol.audit.evidence import Evidence, TwoStatements
from protocol.audit.witness import Witness
from protocol.events.events import Dropped
from protocol.membership.handshake import Handshake
from protocol.membership.liveness import Membership
from protocol.node.background import Background
from protocol.node.current_round import CurrentRound
from protocol.node.evaluator import Evaluator
from protocol.node.extensions import Extensions
from protocol.node.guard import Guard
from protocol.offload import Offload
from protocol.rollouts.events import Contrary
from protocol.rollouts.rollouts import Rollouts
from protocol.tasks.task_sets import TaskSets
from protocol.transport.interface import MALFORMED, Acceptance, Members, Offence, Session
from protocol.versions.weight_versions import WeightVersions
from protocol.wire.body import LARGE_BYTES, Body
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_GOSSIP_BYTES, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation, Commit, Extension, Ready, unpack
from protocol.wire.presence import Goodbye, Heartbeat
from protocol.wire.rollouts import Deal, Judgement, RolloutBatch
from protocol.wire.tasks import Amendment, TaskSet
from protocol.wire.versions import Version

# ------------------------------------------------------------------------------------------------------------------------
# The newest READY of each peer, heard by gossip: a round may begin here after others are ready for it.
#
# A READY is forgotten when its round is over.  Members have room of their own.  Strangers, of whom there may be any number,
# share as many places as two rounds have members.  A stranger that is alive takes the place of one that is not.


MAX_OF_MEMBERS = 2048
STRANGERS_PER_MEMBER = 2


@dataclass(frozen=True)
class _Heard:
    ready: Ready
    envelope: Envelope
    was_live: bool


class EarlyReadyBuffer:
    """Remembers READYs between rounds, and detects two different ones for one slot.

    members: tells members from strangers.  round_members: the most members that a round may have.
    """

    def __init__(self, members: Members, round_members: int) -> None:
        self._members, self._strangers_room = members, STRANGERS_PER_MEMBER * round_members
        self._round = 0
        self._of_members: dict[PeerId, _Heard] = {}
        self._of_strangers: dict[PeerId, _Heard] = {}

    def __len__(self) -> int:
        return len(self._of_members) + len(self._of_strangers)

    def add(self, sender: PeerId, ready: Ready, envelope: Envelope, *, is_live: bool) -> bool | TwoStatements:
        """Keep a READY; return True if it is news, or proof that its sender made two statements for one slot.

        is_live: whether we take the sender for alive.
        """
        if ready.round < self._round:
            return False
        known = self._of_members.get(sender) or self._of_strangers.get(sender)
        if known is not None and known.envelope.raw == envelope.raw:
            return False
        if known is not None and (ready.incarnation, ready.serial) <= (known.ready.incarnation, known.ready.serial):
            contradicts = slot(ready) == slot(known.ready) and ready != known.ready
            return TwoStatements(first=known.envelope.raw, second=envelope.raw) if contradicts else False
        return self._keep(sender, _Heard(ready, envelope, is_live))

    def _keep(self, sender: PeerId, heard: _Heard) -> bool:
        """Keep a READY if there is room; return True if there is."""
        if self._members.has_member(sender):
            self._of_strangers.pop(sender, None)
            if sender not in self._of_members and len(self._of_members) >= MAX_OF_MEMBERS:
                return False
            self._of_members[sender] = heard
            return True
        self._of_members.pop(sender, None)
        if sender not in self._of_strangers and len(self._of_strangers) >= self._strangers_room:
            dead = next((peer for peer, other in self._of_strangers.items() if not other.was_live), None)
            if dead is None or not heard.was_live:
                return False
            del self._of_strangers[dead]
        self._of_strangers[sender] = heard
        return True

    def begin(self, round: int, tip: Hash) -> list[tuple[PeerId, Ready, Envelope]]:
        """Return the READYs for the round that begins here on `tip`; forget those of earlier rounds, which are news no more.

        Strangers' READYs are kept only for this round: a peer that is ready says so again with each heartbeat.
        """
        self._round = round
        self._of_members = {peer: heard for peer, heard in self._of_members.items() if heard.ready.round >= round}
        self._of_strangers = {peer: heard for peer, heard in self._of_strangers.items() if heard.ready.base == tip}
        found = (*self._of_members.items(), *self._of_strangers.items())
        return [(peer, heard.ready, heard.envelope) for peer, heard in found if heard.ready.base == tip]


# ------------------------------------------------------------------------------------------------------------------------


GOSSIP_KINDS = (Heartbeat, Goodbye, Ready, Accusation, Version, RolloutBatch, Deal, Judgement, TaskSet, Amendment, Extension)
MAX_TOLD = 1024
"""Goodbyes remembered that did not come by gossip."""


class Statements:
    """Hands each statement to the component that it concerns.  background: looks into accusations and proofs of lies."""

    def __init__(
        self,
        session: Session,
        guard: Guard,
        offload: Offload,
        background: Background,
        membership: Membership,
        handshake: Handshake,
        ejections: Ejections,
        witness: Witness,
        evaluator: Evaluator,
        readys: EarlyReadyBuffer,
        versions: WeightVersions,
        rollouts: Rollouts | None,
        tasks: TaskSets | None,
        extensions: Extensions,
        current: CurrentRound,
    ) -> None:
        self._session, self._guard, self._offload, self._background = session, guard, offload, background
        self._membership, self._handshake, self._ejections = membership, handshake, ejections
        self._witness, self._evaluator, self._readys, self._round = witness, evaluator, readys, current
        self._versions, self._rollouts, self._tasks, self._extensions = versions, rollouts, tasks, extensions
        self._decoding = trio.Lock()
        """One large statement is decoded at a time."""
        self._told: dict[PeerId, None] = {}
        """Peers whose goodbye came to us directly, and is still to be handed on when it comes by gossip."""

    # -- by gossip ----------------------------------------------------------------------------------------------------

    def by_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """Take in a gossiped statement; return whether it is forwarded."""
        try:
            sender, body, envelope = unpack(data, self._session.run, max_bytes=MAX_GOSSIP_BYTES)
        except Malformed as error:
            self._session.emit(Dropped(forwarder, "gossip", str(error)))
            return Acceptance.REJECT
        if not isinstance(body, GOSSIP_KINDS):
            self._session.emit(Dropped(forwarder, "gossip", f"a {envelope.kind} does not travel by gossip"))
            return Acceptance.REJECT
        if sender == self._session.me or not self._background.is_open:
            return Acceptance.IGNORE  # a peer that has left, or is not here yet, judges no forwarder
        with self._guard.watch(sender, envelope.kind):
            if isinstance(body, Version):
                return self._versions.hear(forwarder, sender, body, envelope.raw)
            if isinstance(body, Amendment):  # the organiser's word counts by the manifest alone
                return self._tasks.hear(sender, body, envelope.raw) if self._tasks is not None else Acceptance.IGNORE
            if isinstance(body, Extension):
                return self._extensions.hear(sender, body, envelope.raw)
            if isinstance(body, Ready | Heartbeat):
                self._handshake.meet(sender, body)
            may_speak = self._handshake.may_speak(sender) and sender not in self._ejections
            if may_speak and isinstance(body, TaskSet):
                return self._tasks.hear(sender, body, envelope.raw) if self._tasks is not None else Acceptance.IGNORE
            if may_speak and self._is_news(forwarder, sender, body, envelope):
                return Acceptance.ACCEPT
        return Acceptance.IGNORE

    def _is_news(self, forwarder: PeerId, sender: PeerId, body: Body, envelope: Envelope) -> bool:
        if isinstance(body, Heartbeat):
            return self._on_heartbeat(forwarder, sender, body)
        if isinstance(body, Goodbye):
            told = sender in self._told
            self._told.pop(sender, None)
            return self._on_goodbye(sender, body) or told
        if isinstance(body, Accusation):
            return self._on_accusation(sender, body)
        if isinstance(body, Ready):
            return self._on_ready(sender, body, envelope)
        return self._on_rollouts(sender, body, envelope)

    def _on_heartbeat(self, forwarder: PeerId, sender: PeerId, beat: Heartbeat) -> bool:
        membership = self._membership
        was_live = membership.is_live(sender)
        fresh, events = membership.on_heartbeat(sender, beat, trio.current_time(), forwarder)
        if fresh:
            self._session.network.remember([a for a in beat.addresses if a.endswith(f"/p2p/{sender}")], claimed=True)
            if not was_live and membership.is_live(sender):
                self._round.peer_alive(sender)
        for event in events:
            self._session.emit(event)
        if fresh and beat.measured is not None:
            self._evaluator.on_claim(sender, beat.measured)
        return fresh

    def _on_goodbye(self, sender: PeerId, bye: Goodbye) -> bool:
        fresh, events = self._membership.on_goodbye(sender, bye)
        if fresh:
            self._round.peer_dead(sender)
        for event in events:
            self._session.emit(event)
        return fresh

    def _on_ready(self, sender: PeerId, ready: Ready, envelope: Envelope) -> bool:
        if not self._handshake.may_be_named(sender, ready):
            return False
        news = self._readys.add(sender, ready, envelope, is_live=self._membership.is_live(sender))
        if isinstance(news, TwoStatements):
            self._convict_all(sender, [news])
            return False
        if news:
            self._round.receive(sender, ready, envelope)
        return news

    def _on_rollouts(self, sender: PeerId, body: Body, envelope: Envelope) -> bool:
        """Take in a statement about rollouts; return True if it is news.  A run without rollouts has no such statements."""
        heard = self._rollouts.hear(sender, body, envelope) if self._rollouts is not None else False
        if isinstance(heard, Contrary):
            self._convict_all(sender, [TwoStatements(first=heard.first, second=heard.second)])
            return False
        return heard

    def _on_accusation(self, accuser: PeerId, accusation: Accusation) -> bool:
        heard = self._ejections.hear(accuser, accusation)
        if heard is AccusationOutcome.NEW:
            self._background.start(self._look_into, accuser, accusation)
        return heard is not AccusationOutcome.UNWANTED

    # -- brought to us alone ------------------------------------------------------------------------------------------

    async def about_the_round(self, bringer: PeerId, data: bytes) -> None:
        """Take in a statement about the round; raises `Offence`."""
        try:
            if len(data) > LARGE_BYTES:
                async with self._decoding:
                    sender, body, envelope = await self._offload(unpack, data, self._session.run)
            else:
                sender, body, envelope = unpack(data, self._session.run)
        except Malformed as error:
            self._session.emit(Dropped(bringer, "statement", str(error)))
            raise Offence(MALFORMED) from error
        if sender != bringer and not isinstance(body, (Commit, *RELAYED)):
            raise Offence("a statement of somebody else")
        self._convict_all(sender, self._witness.hear(sender, body, envelope))
        self._round.receive(sender, body, envelope, by=bringer)

    async def goodbye(self, leaver: PeerId, data: bytes) -> None:
        """Take in a goodbye that the leaver tells its neighbours itself; raises `Offence`."""
        try:
            sender, body, _ = unpack(data, self._session.run, max_bytes=MAX_GOSSIP_BYTES)
        except Malformed as error:
            raise Offence(MALFORMED) from error
        if sender != leaver or not isinstance(body, Goodbye):
            raise Offence("no goodbye of its own")
        if self._background.is_open and self._on_goodbye(leaver, body):
            if len(self._told) >= MAX_TOLD:
                self._told.pop(next(iter(self._told)))
            self._told[leaver] = None

    # -- lies ---------------------------------------------------------------------------------------------------------

    async def _look_into(self, accuser: PeerId, accusation: Accusation) -> None:
        with self._guard.watch(accuser, "accusation"):
            verdict = await self._ejections.look_into(accusation)
            if verdict is not None:
                self._round.on_verdict(verdict)

    def _convict_all(self, sender: PeerId, lies: Sequence[Evidence]) -> None:
        for lie in lies:
            self._background.start(self._convict, sender, lie)

    async def _convict(self, sender: PeerId, lie: Evidence) -> None:
        with self._guard.watch(sender, "contradiction"):
            verdict = await self._ejections.convict(lie)
            if verdict is not None:
                self._round.on_verdict(verdict)
