"""The rounds of a node, one after another: each begins with the votes on disk and is current while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from protocol.agreement.patience import Patience
from protocol.agreement.ratification import has_ratified
from protocol.audit.ejection import Ejections
from protocol.chain.electorate import tolerated
from protocol.chain.replica import Replica
from protocol.events.events import Notice
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.node.contributor import Contributor
from protocol.node.current_round import CurrentRound, EarlyReadyBuffer
from protocol.node.evaluator import Evaluator
from protocol.node.round_runner import Outcome, PendingDeliveries, RoundRunner
from protocol.offload import Offload
from protocol.sync.catch_up import CatchUp
from protocol.transport.handlers import Guard
from protocol.transport.interface import Session
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ENVELOPE_BYTES
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, VoterState

ABSTENTIONS = 2
"""Rounds that must be committed before a peer with a copied or restored data directory votes."""
MAX_VOTER_STATE_BYTES = 3 * MAX_ENVELOPE_BYTES
"""Size limit of a `VoterState`: two locks, each as large as a motion."""


class Rounds:
    """The parts that the rounds of one node share.

    is_copy: the data directory was copied or put back, so statements that bind our votes may be missing in it.
    amendment: as in `RoundRunner`.
    """

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        offload: Offload,
        membership: Membership,
        activity: Activity,
        catch_up: CatchUp,
        ejections: Ejections,
        contributor: Contributor,
        evaluator: Evaluator,
        readys: EarlyReadyBuffer,
        current: CurrentRound,
        *,
        is_copy: bool,
        amendment: Callable[[], bytes | None],
    ) -> None:
        self._session, self._guard, self._replica, self._offload = session, guard, replica, offload
        self._membership, self._activity, self._catch_up = membership, activity, catch_up
        self._ejections, self._contributor, self._evaluator = ejections, contributor, evaluator
        self._readys, self._current, self._amendment = readys, current, amendment
        self._patience = Patience()
        self._abstentions = ABSTENTIONS if is_copy else 0

    async def run_next(self, *, state_verified: bool, deliveries: PendingDeliveries) -> Outcome:
        """Run the round on our tip and return its outcome.  Raises `StoreFull`.

        state_verified: the state was just rebuilt from certified data.  deliveries: deliveries that outlive the round.
        """
        base = self._replica.base
        raw = await self._offload(self._replica.store.votes.load, base.round, base.tip)
        kept = read_voter_state(raw)
        lost = kept is None and await self._offload(self._replica.store.votes.has_lost, base.round, base.tip)
        if lost:
            self._session.emit(Notice("warning", f"what we voted in round {base.round} cannot be read: no vote in it"))
        runner = RoundRunner(
            self._session,
            self._guard,
            self._replica,
            base,
            self._offload,
            self._membership,
            self._activity,
            self._catch_up,
            self._ejections,
            self._contributor,
            kept=None if has_ratified(kept) else kept,
            abstains=lost or self._abstentions > 0 or has_ratified(kept),
            patience=self._patience,
            state_verified=state_verified,
            deliveries=deliveries,
            amendment=self._amendment,
        )
        with self._current.open(runner):
            for peer, ready, envelope in self._readys.begin(base.round, base.tip):
                runner.inbox.receive(peer, ready, envelope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._evaluator.during_round, runner.work.training)
                outcome = await runner.run()
                nursery.cancel_scope.cancel()
        if isinstance(outcome, Commit):
            await self._note_commit(base.electors, base.round + 1)
        return outcome

    async def _note_commit(self, electors: Sequence[PeerId], rounds: int) -> None:
        """Count a committed round towards the end of our abstention.

        Electors that go on without our vote leave behind any statement that we made in a life unknown to our disk.  A round
        that they left long ago, and whose record a peer shows us, does not count.
        """
        beats = [known.heartbeat for peer in electors if (known := self._membership.get(peer)) is not None]
        is_old = sum(beat.round > rounds for beat in beats) > tolerated(len(electors))
        if self._abstentions and not is_old:
            if self._abstentions == 1:
                await self._offload(self._replica.store.votes.set_complete_from, rounds)
            self._abstentions -= 1
            if not self._abstentions:
                self._session.emit(Notice("info", f"votes again, from round {rounds} on"))

    async def hand_over(self, deliveries: PendingDeliveries) -> None:
        """Pass on statements that only we may know, before a goodbye, and wait until none of our deliveries is under way."""
        if self._current.runner is not None:
            self._current.runner.hand_over(deliveries.nursery)
        await deliveries.delivered()


def read_voter_state(raw: bytes | None) -> VoterState | None:
    """Return the stored votes that bind us; None if there are none, or if they are unreadable."""
    if raw is None:
        return None
    try:
        return decode_body(VoterState, raw, max_bytes=MAX_VOTER_STATE_BYTES)
    except Malformed:
        return None
