"""Heartbeats and goodbyes: their sender, and the failure detector that processes other peers' heartbeats and goodbyes.

We send a heartbeat every few seconds, and soon after a change for which other peers wait.  There is always a pause after the
last heartbeat: every peer reads each heartbeat, and a peer that greets us a hundred times must not make us send a hundred
heartbeats to all peers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from protocol.bounds import BoundedDict
from protocol.chain.history import History
from protocol.events.events import Event, PeerGone, PeerSuspected
from protocol.events.status import SwarmPeer, WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.liveness import Liveness, Membership, Neighbour
from protocol.run.settings import NodeSettings
from protocol.team import team_named
from protocol.trainer_link import Progress
from protocol.transport.handlers import Guard, PeerMoment, Statement, at, hears, is_told
from protocol.transport.interface import Acceptance, NetworkError, Offence, Session
from protocol.wire.envelope import MAX_GOSSIP_BYTES
from protocol.wire.identity import PeerId
from protocol.wire.presence import Goodbye, Heartbeat, Phase

# ------------------------------------------------------------------------------------------------------------------------
# Training speed of this peer: the last known rate, kept from round to round, and an estimate of the time left.


class Pace:
    """Speed of this peer in tokens per second.

    tokens_per_s: the speed of training; 0 before the first inner step since the start.  tokens_per_step: tokens of one inner
    step.  generating: returns the tokens per second of a rollout peer, which does not train.
    """

    def __init__(self, tokens_per_step: int, generating: Callable[[], float] = lambda: 0.0) -> None:
        self._tokens_per_step, self._generating = tokens_per_step, generating
        self.tokens_per_s = 0.0

    @property
    def all_tokens_per_s(self) -> float:
        """Tokens per second, trained and generated."""
        return self.tokens_per_s + self._generating()

    def observe(self, progress: Progress) -> None:
        """Record the speed of an inner step."""
        self.tokens_per_s = progress.tokens_per_s

    def left_s(self, steps: int) -> float | None:
        """Return the estimated time (s) for `steps` more inner steps; None while no rate is known."""
        return max(0, steps) * self._tokens_per_step / self.tokens_per_s if self.tokens_per_s > 0 else None


# ------------------------------------------------------------------------------------------------------------------------


SOONEST = 0.1
"""Shortest pause between two heartbeats, as a fraction of the usual interval."""
GOODBYE_S = 2.0
"""Timeout (s) of the goodbye to all peers together; a peer that does not confirm it will miss our heartbeats instead."""


@dataclass
class RoundProgress:
    """Progress of our training in a round.

    steps: number of inner steps done.  loss: mean loss so far (nats per token).  ready_raw: our READY as sent; empty before.
    """

    steps: int = 0
    loss: float = 0.0
    ready_raw: bytes = b""


class Heartbeats:
    """Sender of our heartbeats and goodbye.  progress: returns our progress in the running round; None between rounds."""

    def __init__(
        self,
        session: Session,
        settings: NodeSettings,
        history: History,
        membership: Membership,
        pace: Pace,
        activity: Activity,
        progress: Callable[[], RoundProgress | None],
    ) -> None:
        self._session, self._settings, self._history = session, settings, history
        self._membership, self._pace, self._activity, self._progress = membership, pace, activity, progress
        self._seq = 0

    async def run(self) -> None:
        """Publish heartbeats until cancelled, and our READY with each of them, because gossip may lose it."""
        while True:
            await self._session.publish(self._heartbeat())
            if (progress := self._progress()) is not None and progress.ready_raw:
                await self._session.network.publish(progress.ready_raw)
            beat_s = self._membership.beat_s
            await trio.sleep(SOONEST * beat_s)
            await self._activity.until_urgent((1 - SOONEST) * beat_s)

    async def say_goodbye(self) -> int:
        """Say goodbye to all peers by gossip, and to connected peers also by request; return the number of confirmations.

        The requests are needed because the connections close next, which would lose gossip that is still queued.
        """
        network = self._session.network
        raw = self._session.seal(Goodbye(incarnation=self._settings.incarnation, seq=self._seq + 1)).raw
        heard: list[PeerId] = []

        async def tell(peer: PeerId) -> None:
            with suppress(NetworkError):
                await network.request(peer, "goodbye", raw, timeout_s=GOODBYE_S)
                heard.append(peer)

        with trio.move_on_after(GOODBYE_S):
            await network.publish(raw)
            async with trio.open_nursery() as nursery:
                for peer in network.connected():
                    nursery.start_soon(tell, peer)
        return len(heard)

    @property
    def tokens_per_s(self) -> float:
        """Last known rate, because a round that has just begun has no rate of its own; 0 while paused."""
        return 0.0 if self._activity.phase is Phase.PAUSED else self._pace.all_tokens_per_s

    def _heartbeat(self) -> Heartbeat:
        settings, history, activity = self._settings, self._history, self._activity
        bandwidth, progress = self._session.network.bandwidth(), self._progress() or RoundProgress()
        rests = activity.phase is Phase.PAUSED  # the reason for a pause, and the user's schedule, are private
        self._seq += 1
        return Heartbeat(
            incarnation=settings.incarnation,
            seq=self._seq,
            name=settings.name[:40],
            role=settings.role,
            phase=activity.phase,
            why_idle=WhyIdle.PAUSED if rests else activity.why,
            round=history.length,
            tip=history.tip,
            steps=progress.steps,
            loss=progress.loss,
            tokens_per_s=self.tokens_per_s,
            up_bytes_per_s=bandwidth.up_bytes_per_s,
            down_bytes_per_s=bandwidth.down_bytes_per_s,
            addresses=list(self._session.network.addresses())[:8],
            version=settings.version[:40],
            team=settings.team,
            was_away=activity.was_away,
            bound=activity.bound,
            measured=activity.measured,
            admission=b"" if history.has_member(self._session.me) else settings.admission,
            aside=list(activity.aside),
        )

    def neighbours(self, counted: Callable[[PeerId], float | None]) -> list[SwarmPeer]:
        """Return the other peers for `peer status`, with unproven peers only if they are members.

        counted: returns the tokens a second for which a member got credit; None if they are not known.
        """
        return [
            self._neighbour(peer, known, counted(peer))
            for peer, known in sorted(self._membership, key=lambda item: item[0])
            if known.liveness is not Liveness.UNPROVEN or self._membership.has_member(peer)
        ]

    def _neighbour(self, peer: PeerId, known: Neighbour, counted: float | None) -> SwarmPeer:
        now, beat, network = trio.current_time(), known.heartbeat, self._session.network
        measured = network.measured_link(peer)
        return SwarmPeer(
            peer=peer,
            name=beat.name,
            role=beat.role.value,
            phase=beat.phase.value,
            round=beat.round,
            steps=beat.steps,
            tokens_per_s=beat.tokens_per_s,
            liveness=known.liveness.value,
            heard_s=now - known.heard,
            version=beat.version,
            team=team_named(beat.team),
            addresses=list(beat.addresses),
            link=network.link(peer),
            reach=measured.reach,
            round_trip_s=measured.round_trip_s,
            up_bytes=measured.up_bytes,
            down_bytes=measured.down_bytes,
            line_up_bytes_per_s=beat.up_bytes_per_s,
            line_down_bytes_per_s=beat.down_bytes_per_s,
            known_s=now - known.since,
            counted_tokens_per_s=counted,
        )


# ------------------------------------------------------------------------------------------------------------------------


MAX_TOLD = 1024
"""Limit on the goodbyes remembered that did not come by gossip."""


class LivenessObserver(Protocol):
    """Observer of peers that die or come back, such as the running round."""

    def peer_dead(self, peer: PeerId) -> None:
        """Note that a peer has left."""
        ...

    def peer_suspected(self, peer: PeerId) -> None:
        """Note that a peer is silent, or that its connection broke."""
        ...

    def peer_alive(self, peer: PeerId, *, restarted: bool) -> None:
        """Note that a peer is heard again.  restarted: True if its process has been started again."""
        ...


class FailureDetector:
    """Failure detector of one node, which judges heartbeats, goodbyes and silence, and tells `observer` and the user."""

    def __init__(self, session: Session, guard: Guard, membership: Membership, observer: LivenessObserver) -> None:
        self._session, self._guard, self._membership, self._observer = session, guard, membership, observer
        self._told = BoundedDict[PeerId, None](MAX_TOLD)
        """Peers that sent their goodbye to us directly; we still forward it when it comes by gossip."""

    @hears(Heartbeat)
    def hear_heartbeat(self, said: Statement[Heartbeat]) -> Acceptance:
        """Process a heartbeat, and remember the addresses in it."""
        sender, beat, membership = said.sender, said.body, self._membership
        was_live, known = membership.is_live(sender), membership.get(sender)
        fresh, events = membership.on_heartbeat(sender, beat, trio.current_time(), said.by)
        if fresh:
            self._session.network.remember([a for a in beat.addresses if a.endswith(f"/p2p/{sender}")], claimed=True)
            if not was_live and membership.is_live(sender):
                restarted = known is None or known.heartbeat.incarnation < beat.incarnation
                self._observer.peer_alive(sender, restarted=restarted)
        self._emit(events)
        return Acceptance.of_news(fresh)

    @hears(Goodbye)
    def hear_goodbye(self, said: Statement[Goodbye]) -> Acceptance:
        """Process a goodbye by gossip; forward it even if it came to us directly before, because our neighbours need it."""
        was_told = said.sender in self._told
        self._told.pop(said.sender, None)
        return Acceptance.of_news(self._on_goodbye(said) or was_told)

    @is_told("goodbye", Goodbye, max_bytes=MAX_GOSSIP_BYTES)
    async def told_goodbye(self, said: Statement[Goodbye]) -> None:
        """Process a goodbye that the leaving peer sends to us directly; the peer waits for the answer."""
        if said.sender != said.by:
            raise Offence("a goodbye that another peer signed")
        if self._guard.is_open and self._on_goodbye(said):
            self._told[said.sender] = None

    def _on_goodbye(self, said: Statement[Goodbye]) -> bool:
        fresh, events = self._membership.on_goodbye(said.sender, said.body)
        if fresh:
            self._observer.peer_dead(said.sender)
        self._emit(events)
        return fresh

    @at(PeerMoment.CONNECTED)
    def on_connected(self, peer: PeerId) -> None:
        """Note that a peer is alive, because it has just connected."""
        for event in self._membership.on_connected(peer, trio.current_time()):
            self._session.emit(event)
            self._observer.peer_alive(peer, restarted=True)

    @at(PeerMoment.HEARD)
    def on_message(self, peer: PeerId) -> None:
        """Note that a peer is alive, because a message of any kind came from it over its connection."""
        for event in self._membership.on_message(peer, trio.current_time()):
            self._session.emit(event)
            self._observer.peer_alive(peer, restarted=False)

    @at(PeerMoment.DISCONNECTED)
    def on_disconnected(self, peer: PeerId) -> None:
        """Suspect a peer, because its last connection broke."""
        for event in self._membership.on_disconnected(peer, trio.current_time()):
            self._session.emit(event)
            self._observer.peer_suspected(peer)

    def judge_silence(self, now: float, since: float) -> None:
        """Suspect peers that are silent, and give up peers that have been silent for longer.

        since: trio time of the last call.  While our own address is gone and we are reconnecting, the time does not count as
        silence.
        """
        if self._session.network.is_moving():
            self._membership.excuse(now - since, now)
        events = self._membership.tick(now)
        self._emit(events)
        for event in events:
            if isinstance(event, PeerSuspected | PeerGone):
                self._observer.peer_suspected(PeerId(event.peer))

    def silence_of_members(self, now: float) -> float:
        """Return the seconds since any member was heard; 0 if we know no other member that has not left."""
        members = (known for peer, known in self._membership if self._membership.has_member(peer))
        return now - max((known.heard for known in members if known.liveness is not Liveness.LEFT), default=now)

    def _emit(self, events: Sequence[Event]) -> None:
        for event in events:
            self._session.emit(event)
