"""Waiting for other peers: before the first round until there are enough, after the last one until all have our chain."""

from __future__ import annotations

import trio

from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership, beat_interval_s
from protocol.network.session import Session
from protocol.run.settings import NodeSettings
from protocol.state.replica import Replica
from protocol.sync.claims import Claims
from protocol.wire.identity import PeerId
from protocol.wire.presence import Phase, Role, WhyIdle

TICK_S = 0.25
LISTEN_S = 5.0
"""How long a starting peer listens for the swarm before it takes its own tip for the newest."""
HEAR_S = 12.0
"""How long a founder waits for the first heartbeat of those it is connected to."""
LINGER_S = 20.0
"""How long a peer that is done stays for those that are not."""


class Gathering:
    """Looks at which peers are here, and shows what is missing."""

    def __init__(
        self,
        session: Session,
        replica: Replica,
        settings: NodeSettings,
        membership: Membership,
        claims: Claims,
        activity: Activity,
    ) -> None:
        self._session, self._replica, self._settings = session, replica, settings
        self._membership, self._claims, self._activity = membership, claims, activity

    async def listen(self) -> None:
        """Hear the swarm first: what we hold may be old.  We have listened since the start, whatever else we did."""
        self._activity.show(Phase.STARTING, WhyIdle.STARTING, "listening for other peers of the run")
        settle_s = TICK_S * 2
        with trio.move_on_at(max(self._membership.started + LISTEN_S, trio.current_time() + settle_s)):
            while not self._membership.live_peers():
                await trio.sleep(TICK_S)
            await trio.sleep(settle_s)

    async def may_begin(self) -> bool:
        """Whether to begin a round: not before the record that an invitation names; at genesis not before there are enough
        peers, nor alone when an invitation named a peer.

        Waits a moment before it says no.
        """
        if not self._is_anchored():
            self._show(
                WhyIdle.CONNECTING,
                "waiting for a peer that has the record which the invitation names; "
                "if none comes, ask for a new invitation, or join with the run's ID",
            )
            await trio.sleep(TICK_S)
            return False
        least = self._replica.rounds.min_members
        live = self._membership.live_peers()
        here = 1 + sum(self._is_trainer(peer) for peer in live)
        alone = self._settings.wait_for_contact and not live
        unheard = self._unheard()
        if self._replica.history.length > 0 or (here >= least and not alone and not unheard):
            return True
        if unheard:
            those = "a peer, waiting to hear from it" if unheard == 1 else f"{unheard} peers, waiting to hear from them"
            self._show(WhyIdle.STARTING, f"connected to {those}")
        elif alone:
            self._show(WhyIdle.CONNECTING, "no peer of the invitation answers yet")
        else:
            self._show(WhyIdle.WAITING_FOR_PEERS, f"waiting for more peers ({here} of {least})")
        await trio.sleep(TICK_S)
        return False

    def _is_anchored(self) -> bool:
        """Whether our chain goes through the record that the invitation names, if it names one."""
        anchor = self._settings.anchor
        return anchor is None or anchor.holds(self._replica.history)

    def _show(self, why: WhyIdle, text: str) -> None:
        self._activity.show(Phase.STARTING, why, text)

    def _unheard(self) -> int:
        """How many peers are connected whose first heartbeat is not here: they may be far ahead."""
        if trio.current_time() - self._membership.started > HEAR_S:
            return 0
        return sum(self._membership.get(peer) is None for peer in self._session.network.connected())

    def _is_trainer(self, peer: PeerId) -> bool:
        known = self._membership.get(peer)
        return known is not None and known.heartbeat.role is Role.TRAINER

    async def linger(self) -> None:
        """Stay until all peers here have what we have, `LINGER_S` at most."""
        self._activity.show(Phase.SEEDING, WhyIdle.BUSY, "done; staying for those who are not")
        history, rounds_of = self._replica.history, self._claims.rounds_of
        with trio.move_on_after(LINGER_S):
            while any(rounds_of(peer) < history.length for peer in self._membership.live_peers()):
                await trio.sleep(TICK_S)
            await trio.sleep(beat_interval_s(1) + TICK_S)
