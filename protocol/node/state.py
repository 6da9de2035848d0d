"""The outer state at the end of the record chain: commits, checkpoints, moves to other branches, and repair.

restore from disk -> catch up with the swarm -> (commit -> apply -> sometimes a checkpoint) -> …
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from protocol.chain.electorate import FEWEST_SEATED
from protocol.chain.history import Branch
from protocol.chain.replica import Replica
from protocol.chain.results import CheckpointName
from protocol.disk import StateLost
from protocol.events.events import CheckpointWritten, Desynced, Notice, RoundCommitted, RoundsConfirmed
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.offload import Offload
from protocol.sync.catch_up import CatchUp, WrongState
from protocol.sync.following import Following, Move
from protocol.sync.remote_chains import Claims
from protocol.trainer_link import StateMark, TrainerDied, TrainerGaveUp, TrainerLink
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit
from protocol.wire.presence import Phase

# ------------------------------------------------------------------------------------------------------------------------
# Exponential backoff for rechecks of our own state that other peers cause: after each recheck that confirmed our state, the
# distance to the next recheck doubles (in rounds).


FIRST_DISTANCE = 16
MAX_DISTANCE = 4096
"""Largest number of rounds between two rechecks."""


class StateRecheckBackoff:
    """Backoff for rechecks of our own state, in rounds of our chain."""

    def __init__(self) -> None:
        self._next, self._distance = 0, FIRST_DISTANCE

    def are_due(self, rounds: int) -> bool:
        """Return True if a recheck of our state is allowed now."""
        return rounds >= self._next

    def had(self, rounds: int, *, ours_was_right: bool) -> None:
        """Note a recheck after `rounds` rounds; no further recheck is allowed on this tip."""
        if ours_was_right:
            self._next = rounds + self._distance
            self._distance = min(self._distance * 2, MAX_DISTANCE)
        else:
            self._next, self._distance = rounds + 1, FIRST_DISTANCE


# ------------------------------------------------------------------------------------------------------------------------


T = TypeVar("T")
TICK_S = 0.1
RETRY_S = 1.0
SHOW_START_S = 0.5
LONE_S = 5.0
"""Longest time that a peer that knows no other peer of the run looks for lost results (s)."""


def start_of(trainer: TrainerLink) -> tuple[WhyIdle, str] | None:
    """Return the reason why a trainer has not started, and a sentence; None if it has started."""
    if trainer.pid is not None:
        return None
    if trainer.ended:
        return WhyIdle.TRAINER_RESTARTING, trainer.ended[:200]
    return WhyIdle.STARTING, "the trainer starts and reads the model"


async def show_start(trainer: TrainerLink, activity: Activity, phase: Phase, then: tuple[WhyIdle, str]) -> None:
    """Wait until the trainer has started, and show the reason meanwhile; then show `then`."""
    while (why := start_of(trainer)) is not None:
        activity.show(phase, *why)
        await trio.sleep(SHOW_START_S)
    activity.show(phase, *then)


async def shown_while_it_starts(
    trainer: TrainerLink,
    activity: Activity,
    work: Callable[[], Awaitable[T]],
    phase: Phase = Phase.SYNCING,
    then: tuple[WhyIdle, str] = (WhyIdle.STARTING, "the trainer computes the first weights"),
) -> T:
    """Await `work` of the trainer and return its result; show meanwhile why the trainer has not started."""
    done: list[T] = []
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(show_start, trainer, activity, phase, then)
        try:
            done.append(await work())
        except Exception as error:  # noqa: BLE001 - raised below, outside the nursery, which would wrap it
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return done[0]


LOST = (
    "{missing} damaged or missing in {folder}, nobody else took part in the run, no other peer is here, and this peer's "
    "votes bind it to the lost records; restore a copy of that folder, or, if nobody follows the run, remove it to begin "
    "the run again"
)


class StateKeeper:
    """Owner of changes to the chain and the state of `replica`."""

    def __init__(
        self,
        session: Session,
        replica: Replica,
        offload: Offload,
        activity: Activity,
        catch_up: CatchUp,
        following: Following,
        claims: Claims,
    ) -> None:
        self._session, self._replica, self._offload, self._activity = session, replica, offload, activity
        self._catch_up, self._following, self._claims = catch_up, following, claims
        self.changing = trio.Lock()
        """Lock to hold while the chain or the state changes, or must not change."""
        self._digest = b""
        self._second_thoughts = StateRecheckBackoff()

    @property
    def mark(self) -> StateMark:
        """Rounds and digest of the outer state; the digest is empty until it is known."""
        return StateMark(self._replica.state.rounds, Hash(self._digest))

    @property
    def is_verified(self) -> bool:
        """True while peers with another state cannot make us recheck our own."""
        return not self._second_thoughts.are_due(self._replica.history.length)

    @property
    def is_at_rest(self) -> bool:
        """True if the state has reached our tip and no move to another branch is ready."""
        return self._following.move is None and self._replica.state.rounds == self._replica.history.length

    @property
    def has_checkpoint(self) -> bool:
        """True if the state of our tip is on disk as a checkpoint."""
        history = self._replica.history
        return self._replica.store.checkpoints.has(CheckpointName(history.length, history.tip))

    # -- from the disk ------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load other branches than our chain from disk; called before claims are checked."""
        await self._following.load()

    async def restore(self) -> None:
        """Restore the newest state that our disk allows.  Never returns if the trainer gave up."""
        while True:
            try:
                await self._catch_up.restore()
                break
            except TrainerGaveUp as end:
                self._activity.show(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"the trainer gave up: {end}"[:200])
                await trio.sleep_forever()  # the code that starts the trainer ends this peer, with the reason
            except TrainerDied as death:
                self._activity.show(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"the trainer stopped: {death}"[:200])
            except WrongState:
                break  # the replay from disk contradicts the chain; other peers have the right results
        await self._take_digest()

    async def _take_digest(self) -> None:
        self._digest = await self._offload(self._replica.state.digest)
        self._catch_up.fetcher.offer_genesis()

    # -- between rounds -----------------------------------------------------------------------------------------------

    async def reach_tip(self) -> None:
        """Make the moves that are ready, replace data lost on our disk, and wait for branches that other peers soon show."""
        history, begun, mending_since = self._replica.history, trio.current_time(), trio.current_time()
        while True:
            move = self._following.move
            if move is not None:
                self._show_catching_up()
                await self._make(move)
                begun = mending_since = trio.current_time()
            elif history.length == 0 and self._replica.manifest.genesis not in (None, self._digest):
                await self._begin()
            elif self._replica.state.rounds < history.length:
                await self._mend(trio.current_time() - mending_since)
            elif self._following.is_promising(trio.current_time() - begun, was_away=self._activity.was_away):
                self._show_catching_up()
                await trio.sleep(TICK_S)
            else:
                return

    async def _begin(self) -> None:
        """Fetch the state before the first round from the known peers; wait a moment if no peer has it."""
        self._activity.show(Phase.SYNCING, WhyIdle.FETCHING_STATE, "waiting for a peer that has the run's initial weights")
        async with self.changing:
            has_begun = await self._catch_up.begin(self._claims.sources())
            await self._take_digest()
        if not has_begun:
            await trio.sleep(RETRY_S)

    def _show_catching_up(self) -> None:
        self._activity.show(Phase.SYNCING, WhyIdle.FETCHING_STATE, "catching up with the swarm")

    def _show_mending(self, holders: Sequence[PeerId], limit_s: float) -> None:
        asked = self._claims.sources()
        if asked:
            whom = f"asking {self._claims.names(asked)}"
        elif holders:
            whom = f"waiting for {self._claims.names(holders)}, which may have the missing results"
        elif self._session.network.known_addresses():
            whom = "looking for peers of the run at addresses from an earlier start"
        else:
            whom = "no other peer of the run is known"
        text = f"{self._missing()} damaged or missing on this disk; {whom}; this peer gives up after {limit_s:.0f} s"
        self._activity.show(Phase.SYNCING, WhyIdle.FETCHING_STATE, text)

    def _missing(self) -> str:
        first, last = self._replica.state.rounds, self._replica.history.length - 1
        return f"the result of round {first} is" if first == last else f"the results of rounds {first} to {last} are"

    def _is_bound(self) -> bool:
        """Return True if our votes bind us to the record that stands on our state's tip.  Blocking."""
        history, rounds, votes = self._replica.history, self._replica.state.rounds, self._replica.store.votes
        tip, record = history.tip_at(rounds), history.tip_at(rounds + 1)
        return votes.confirmed_on(rounds, tip) is not None or votes.is_locked_on(rounds, tip, record)

    async def _make(self, move: Move) -> None:
        """Move to another branch, or further along our own; restore our own state if the move fails."""
        async with self.changing:
            if self._following.move != move:
                return
            taken = False
            try:
                taken = await self._following.take(move)
            except (WrongState, TrainerDied) as error:
                self._session.emit(Notice("warning", f"staying with our own records: {error}"))
            if not taken:
                await self.restore()
            await self._take_digest()

    async def _mend(self, waited_s: float) -> None:
        """Bring our state up to our records: a process died before it had applied them, or our disk lost some results.

        We fetch missing results from other peers.  If no peer has them within the eviction time, we go back to our last
        state.  The records beyond that state are kept as a branch; we follow it like any other once we can get its state.

        A peer that knows no other peer gives up sooner.  If its votes bind it to a record whose result only it had, it
        could make no other record there: raises `StateLost`.
        """
        history, catch_up = self._replica.history, self._catch_up
        holders = self._claims.may_hold(self._session.me)
        is_alone = not holders and not self._session.network.known_addresses()
        limit_s = min(LONE_S, self._replica.rounds.eviction_s) if is_alone else self._replica.rounds.eviction_s
        self._show_mending(holders, limit_s)
        async with self.changing:
            try:
                await catch_up.fetcher.bring(history, catch_up.present(history.length), self._claims.sources())
                await catch_up.replay()
            except WrongState:
                await self._from_others()
            if self._replica.state.rounds == history.length:
                return await self._take_digest()
            if waited_s > limit_s:
                if not holders and await self._offload(self._is_bound):
                    raise StateLost(LOST.format(missing=self._missing(), folder=self._replica.store.root))
                branch = Branch(history, self._replica.store.branches, "", self._replica.state.rounds)
                await self._following.take(Move(branch, branch.length, self._session.me, history.tip))
                await self._take_digest()
                return None
        await trio.sleep(RETRY_S)
        return None

    async def _from_others(self) -> None:
        """Rebuild a state that contradicts the certified records, first from our disk, then from a certified checkpoint."""
        await self.restore()
        history, state = self._replica.history, self._replica.state
        if state.rounds < history.length:
            await self._catch_up.fetcher.fetch_newest_checkpoint(history, self._claims.sources(), at_least=state.rounds)
            await self.restore()

    # -- rounds -------------------------------------------------------------------------------------------------------

    async def advance(self, commit: Commit) -> bool:
        """Write a record to disk and apply its result; return True if a checkpoint is due.  Raises `StoreFull`."""
        record, history = commit.record, self._replica.history
        self._activity.show(Phase.APPLYING, WhyIdle.COMMITTING, "the result goes into the state")
        async with self.changing:
            provisional = history.length - history.final
            (await self._offload(history.written, commit))()
            self._activity.note_present()
            self._session.emit(
                RoundCommitted(
                    record.round,
                    history.tip.hex(),
                    [m.peer for m in record.members],
                    sum(m.tokens for m in record.members),
                    record.loss,
                    any(m.peer == self._session.me for m in record.members),
                    self._replica.named_losses(record),
                    record.fragment,
                    self._replica.manifest.fragments,
                    history.roster.progress.tokens,
                )
            )
            if provisional and history.final == history.length:
                self._session.emit(RoundsConfirmed(provisional, history.final))
            await self._catch_up.tell_rollouts(record.round)
            result = await self._offload(self._catch_up.stored_result, commit)
            if result is None:
                return False  # the result on disk was altered since we voted for it; other peers have it
            try:
                self._digest = await self._catch_up.apply(commit, result)
            except WrongState:
                return False
            self._catch_up.fetcher.offer_genesis()
        return history.length % self._replica.manifest.checkpoint_interval == 0

    async def checkpoint(self) -> None:
        """Write the state, which does not change before the next commit, while the trainer computes.  Raises `StoreFull`."""
        state, store, history = self._replica.state, self._replica.store, self._replica.history
        async with self.changing:
            rounds = state.rounds
            leaves = await self._offload(state.leaves)
            await self._offload(self._replica.make_room)
            await self._offload(store.checkpoints.write, CheckpointName(rounds, history.tip_at(rounds)), leaves, state.view)
            await self._offload(self._replica.prune)
        self._session.emit(CheckpointWritten(rounds, state.size_bytes))

    # -- repair -------------------------------------------------------------------------------------------------------

    async def repair(self, right: Hash) -> None:
        """Rebuild our state from our own disk, because electors have the state `right`, which differs from ours.

        If the rebuilt state is the same, and at least four electors exist, so that a quorum is against us, fetch the state
        from other peers.
        """
        history, before = self._replica.history, self._digest
        self._session.emit(Desynced(history.length, before.hex(), right.hex()))
        async with self.changing:
            await self.restore()
            if self._digest == before and len(history.roster.electorate.electors) >= FEWEST_SEATED:
                await self._catch_up.fetcher.fetch_newest_checkpoint(history, self._claims.sources(), at_least=0)
                await self.restore()
        self._second_thoughts.had(history.length, ours_was_right=self._digest == before)
