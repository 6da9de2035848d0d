"""Keeping the outer state at the end of the record chain: by commits, checkpoints, catching up and repair.

restore from disk -> catch up with the swarm -> (commit -> apply -> now and again a checkpoint) -> …
"""

from __future__ import annotations

import trio

from protocol.events import CheckpointWritten, Desynced, Notice, RoundCommitted
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.state.replica import Replica
from protocol.sync.catch_up import CatchUp, WrongState
from protocol.sync.following import Following
from protocol.trainer_link import StateMark, TrainerDied, TrainerGaveUp
from protocol.wire.hashes import Hash
from protocol.wire.messages import Commit, Phase, WhyIdle

CATCH_UP_RETRY_S = 1.0


class StateKeeper:
    """Changes the state of `replica`; nobody else does."""

    def __init__(
        self,
        session: Session,
        replica: Replica,
        offload: Offload,
        membership: Membership,
        activity: Activity,
        catch_up: CatchUp,
        following: Following,
    ) -> None:
        self._session, self._replica, self._offload = session, replica, offload
        self._membership, self._activity = membership, activity
        self._catch_up, self._following = catch_up, following
        self._changing = trio.Lock()
        """Held while the state changes, or must not."""
        self._digest = b""
        self._verified_tip = b""

    @property
    def mark(self) -> StateMark:
        """How far the outer state is, and its digest (empty until it is known)."""
        return StateMark(self._replica.state.rounds, Hash(self._digest))

    @property
    def is_verified(self) -> bool:
        """Whether the state at our tip was just made anew from certified data."""
        return self._verified_tip == self._replica.history.tip

    async def restore(self) -> None:
        """The newest state that the disk gives.  Never returns when there is no trainer any more."""
        while True:
            try:
                await self._catch_up.restore()
                break
            except TrainerGaveUp as end:
                self._activity.show(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"no trainer any more: {end}"[:200])
                await trio.sleep_forever()  # whoever started the trainer ends this peer, with the reason
            except TrainerDied as death:
                self._activity.show(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"the trainer stopped: {death}"[:200])
            except WrongState:
                break  # the disk's replay is not the chain's; whatever is missing comes from the others
        await self._take_digest()

    async def reach_tip(self) -> None:
        """Follow peers that are ahead of us, and bring the state to the end of the chain."""
        history, state = self._replica.history, self._replica.state
        seen, begun = (-1, -1), trio.current_time()
        while (
            self._following.has_news() or state.rounds < history.length or (history.length == 0 and self._following.hopes())
        ):
            if seen == (history.length, state.rounds):
                await trio.sleep(CATCH_UP_RETRY_S)  # that led nowhere; a swarm that is fast is run after without a rest
            seen = history.length, state.rounds
            self._activity.show(Phase.SYNCING, WhyIdle.FETCHING_STATE, "catching up with the swarm")
            async with self._changing:
                await self._following.go_back()
                await self._following.follow()
                try:
                    await self._catch_up.replay(self._membership.live_peers())
                except (WrongState, TrainerDied) as error:
                    self._session.emit(Notice("warning", f"catching up again: {error}"))
                    await self.restore()
                await self._take_digest()
                await self._following.give_up_what_is_lost(begun)

    async def advance(self, commit: Commit) -> bool:
        """The record to disk, then its result into the state.  Whether a checkpoint is due.  Raises `StoreFull`."""
        record, history = commit.record, self._replica.history
        self._activity.show(Phase.APPLYING, WhyIdle.COMMITTING, f"applying round {record.round}")
        async with self._changing:
            await self._offload(history.append, commit)
            self._activity.was_away = False
            self._session.emit(
                RoundCommitted(
                    record.round,
                    history.tip.hex(),
                    [m.peer for m in record.members],
                    sum(m.tokens for m in record.members),
                    record.loss,
                    any(m.peer == self._session.me for m in record.members),
                )
            )
            result = await self._offload(self._catch_up.stored_result, commit)
            if result is None:
                return False  # it was altered since we voted for it: the others have it
            try:
                await self._catch_up.apply(commit, result)
            except WrongState:
                return False
            await self._take_digest()
        return history.length % self._replica.manifest.checkpoint_interval == 0

    async def checkpoint(self) -> None:
        """Write the state while the trainer computes: nobody changes it before the next commit.  Raises `StoreFull`."""
        state, store = self._replica.state, self._replica.store
        async with self._changing:
            rounds = state.rounds
            leaves = await self._offload(state.leaves)
            await self._offload(store.checkpoints.write, rounds, leaves, state.view)
            await self._offload(store.prune)
        self._session.emit(CheckpointWritten(rounds, state.size_bytes))

    async def repair(self, right: Hash) -> None:
        """Our digest is not the round's, `right`: from the disk again; and if that gives the same, from the others."""
        before = self._digest
        self._session.emit(Desynced(self._replica.history.length, before.hex(), right.hex()))
        async with self._changing:
            await self.restore()
            if self._digest == before:
                await self._catch_up.fetch_newest_checkpoint(self._membership.live_peers(), at_least=0)
        self._verified_tip = self._replica.history.tip

    async def _take_digest(self) -> None:
        self._digest = await self._offload(self._replica.state.digest)
