"""The life of a node: restore from disk, listen, catch up with the swarm, run one round after another, linger, leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from protocol.chain.base import RoundSettings
from protocol.chain.history import History
from protocol.chain.progress import RunPace, RunProgress
from protocol.chain.replica import Replica
from protocol.events.events import Notice, NoticeCode
from protocol.events.status import WhyIdle
from protocol.formatting import amount, many
from protocol.membership.activity import Activity
from protocol.membership.heartbeats import FailureDetector
from protocol.membership.liveness import BEAT_S, Membership, beat_interval_s
from protocol.node.commands import Extensions
from protocol.node.copies import CopyCensus
from protocol.node.evaluator import Evaluator
from protocol.node.rounds import Behind, Rounds, RunningRound, StateDisagreement
from protocol.node.router import MessageRouter
from protocol.node.state import StateKeeper
from protocol.rollouts.rollouts import Rollouts
from protocol.run.sections import Unit
from protocol.run.settings import NodeSettings
from protocol.sync.fetchers import RunFiles
from protocol.sync.following import Following
from protocol.sync.remote_chains import Claims
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit
from protocol.wire.presence import Phase, Role

# ------------------------------------------------------------------------------------------------------------------------
# The clock of a node.  It judges the silence of peers, starts checks of claims, and ends a round for a better branch.


TICK_S = 0.25
SYNC_AFTER_S = 3.0
"""Seconds that a peer may be ahead of us before we fetch the records instead of waiting for the commit message."""
UNHEARD_S = 2 * BEAT_S
"""Time (s) that others may have heard nothing of us before this process stopped."""
LAG_S = 0.5
"""Limit instead of `SYNC_AFTER_S` if we take part in no exchange, so that no commit message is on its way to us (s)."""


class LivenessTicker:
    """Ticker with four ticks a second.  boot_clock: a clock that keeps running while the computer is suspended."""

    def __init__(
        self,
        settings: RoundSettings,
        detector: FailureDetector,
        activity: Activity,
        following: Following,
        rounds: Rounds,
        boot_clock: Callable[[], float],
    ) -> None:
        self._settings, self._detector, self._activity, self._boot_clock = settings, detector, activity, boot_clock
        self._following, self._rounds = following, rounds
        self._ahead: tuple[RunningRound | None, float] | None = None
        """(Round in which we first saw a peer ahead of us, time of that event)."""

    async def run(self) -> None:
        """Tick until cancelled."""
        async with trio.open_nursery() as nursery:
            await self._tick(nursery)

    async def _tick(self, nursery: trio.Nursery) -> None:
        last, last_boot = trio.current_time(), self._boot_clock()
        absence_s, is_cut_off = max(self._settings.eviction_s - UNHEARD_S, self._settings.eviction_s / 2), False
        while True:
            now, boot = trio.current_time(), self._boot_clock()
            self._detector.judge_silence(now, last)
            was_cut_off, is_cut_off = is_cut_off, self._detector.silence_of_members(now) >= absence_s
            if max(now - last, boot - last_boot) >= absence_s:
                self._come_back()
            elif was_cut_off and not is_cut_off:
                self._activity.note_away(slept=False)
            last, last_boot = now, boot
            self._follow(now, nursery)
            await trio.sleep(TICK_S)

    def _come_back(self) -> None:
        """Give up the running round: the others may have counted us as absent and made records meanwhile."""
        self._activity.note_away(slept=True)
        running = self._rounds.running
        if running is not None and not running.deciding:
            running.end(Behind())

    def _follow(self, now: float, nursery: trio.Nursery) -> None:
        """Check claims while the round runs.  The round ends only once another branch is verified and we have its state."""
        running, following = self._rounds.running, self._following
        if running is not None and running.deciding:
            self._ahead = None
        elif following.move is not None:
            if running is not None:
                running.end(Behind())
        elif self._is_due(running, now):
            for known in (True, False):
                wanted = following.has_claims(known=known) or (known and following.wants_back())
                if wanted and not following.is_looking(known=known):
                    nursery.start_soon(partial(following.look, known=known))

    def _is_due(self, running: RunningRound | None, now: float) -> bool:
        """Return True if a true claim's commit message would have arrived; between rounds, no message is on its way."""
        following = self._following
        if running is None or following.wants_back():
            return True
        if not following.has_claims():
            self._ahead = None
            return False
        if self._ahead is None or self._ahead[0] is not running:
            self._ahead = running, now
        return now - self._ahead[1] > (SYNC_AFTER_S if running.exchanges.any else LAG_S)


# ------------------------------------------------------------------------------------------------------------------------
# Waiting for other peers: before the first round until there are enough, after the last round until all have our chain.


LISTEN_S = 5.0
"""Seconds that a starting peer listens for the swarm before it assumes that its own tip is the newest."""
RETURN_S = 30.0
"""Longest time that a peer that was away waits to hear members with most of the recent work (s)."""
HEAR_S = 12.0
"""Longest time that a founder waits for the first heartbeats of connected peers (s)."""
LINGER_S = 20.0
"""Longest time that a finished peer stays online for the other peers (s)."""


class StartupBarrier:
    """Barrier that waits for other peers before and after the rounds, and shows the user the reason."""

    def __init__(
        self,
        session: Session,
        replica: Replica,
        settings: NodeSettings,
        membership: Membership,
        claims: Claims,
        activity: Activity,
        files: RunFiles,
    ) -> None:
        self._session, self._replica, self._settings = session, replica, settings
        self._membership, self._claims, self._activity, self._files = membership, claims, activity, files

    def begin(self) -> None:
        """Show that the peer starts."""
        self._show(WhyIdle.STARTING, "reading the records from disk")

    async def fetch_files(self) -> None:
        """Wait until we have the run's files."""
        if not self._files.are_here:
            await self._files.until_here(partial(self._activity.show, Phase.SYNCING, WhyIdle.FETCHING_STATE))
        self._activity.show(Phase.SYNCING, WhyIdle.STARTING, "reading the state from disk")

    async def listen(self) -> None:
        """Listen to the swarm before the first round, because our records may be old.  The time since the start counts."""
        self._activity.show(Phase.STARTING, WhyIdle.STARTING, "listening for other peers of the run")
        settle_s = TICK_S * 2
        with trio.move_on_at(max(self._membership.started + LISTEN_S, trio.current_time() + settle_s)):
            while not self._membership.live_peers():
                await trio.sleep(TICK_S)
            await trio.sleep(settle_s)

    async def may_begin(self) -> bool:
        """Return True if a round may begin; wait a moment before returning False.

        Our chain must have the record that an invitation names.  A peer that was away first hears from the members of the
        last records, for at most `RETURN_S`: it follows what they did before it votes.  At genesis, further conditions hold:
        no peer claims that the run has begun, there are enough trainers, every connected peer has sent a heartbeat (we wait
        at most `HEAR_S` for it), and we are not alone if an invitation named a peer.
        """
        if self._settings.anchor is not None and not self._settings.anchor.holds(self._replica.history):
            self._show(
                WhyIdle.CONNECTING,
                "waiting for a peer that has the record which the invitation names; "
                "if none comes, ask for a new invitation, or join with the run's ID",
            )
            await trio.sleep(TICK_S)
            return False
        if unheard_of := self._unheard_members():
            names = ", ".join(self._membership.name(peer) for peer in unheard_of[:4])
            self._show(WhyIdle.CONNECTING, f"back after an absence; waiting to hear from {names}"[:200])
            await trio.sleep(TICK_S)
            return False
        if self._replica.history.length == 0 and (ahead := self._claims.who_has_begun()):
            names = ", ".join(self._membership.name(peer) for peer in ahead[:4])
            self._show(WhyIdle.FETCHING_STATE, f"the run has begun; waiting for its records from {names}"[:200])
            await trio.sleep(TICK_S)
            return False
        least = self._replica.rounds.min_members
        live = self._membership.live_peers()
        here = 1 + sum(
            known.heartbeat.role is Role.TRAINER for peer in live if (known := self._membership.get(peer)) is not None
        )
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

    def _show(self, why: WhyIdle, text: str) -> None:
        self._activity.show(Phase.STARTING, why, text)

    def _unheard_members(self) -> list[PeerId]:
        """Return the members of the last records from which we have not heard since we were away, most active first.

        The list is empty if we were not away, if `RETURN_S` have passed, or if the members that we heard did more than half
        of the others' recent work.
        """
        membership, work, me = self._membership, self._replica.history.roster.work, self._session.me
        since = max(self._activity.back_at, membership.started)
        others = [peer for peer in work.tokens if peer != me]
        if not others or not self._activity.was_away or trio.current_time() - since > RETURN_S:
            return []
        heard = {peer for peer, known in membership if known.said > since and membership.is_live(peer)}
        if work.is_most(heard, without=[me]):
            return []
        return sorted((peer for peer in others if peer not in heard), key=lambda peer: -work.tokens[peer])

    def _unheard(self) -> int:
        """Return the number of connected peers without a heartbeat yet, which may be far ahead of us; 0 after `HEAR_S`."""
        if trio.current_time() - self._membership.started > HEAR_S:
            return 0
        return sum(self._membership.get(peer) is None for peer in self._session.network.connected())

    async def linger(self) -> None:
        """Stay until all live peers have our chain, but at most `LINGER_S`."""
        self._activity.show(Phase.SEEDING, WhyIdle.BUSY, "done; waiting for peers that are not done yet")
        history, rounds_of = self._replica.history, self._claims.rounds_of
        with trio.move_on_after(LINGER_S):
            while any(rounds_of(peer) < history.length for peer in self._membership.live_peers()):
                await trio.sleep(TICK_S)
            await trio.sleep(beat_interval_s(1) + TICK_S)


# ------------------------------------------------------------------------------------------------------------------------
# Departure at the end of the running round, and the limits of the wait for that end.
#
# The peer completes the round together with other peers.  It leaves without the round at the deadline, or once no live peer
# can end the wait.  The code is pure except that it reads the clock and the node's state.


ALONE_S = 30.0
"""Seconds without any live peer that can end the wait, after which our peer leaves."""
PATIENCE_S = 1800.0
"""Longest time that the peer waits for other peers, in addition to its own training (s)."""
MAX_TRAINING_S = 86_400.0
"""Longest time of the peer's own training that counts for the deadline (s)."""
LOOK_S = 1.0
HAND_OVER_LOOK_S = 10.0
"""Seconds between two looks while data are handed over, unless copies are counted before."""

OWN_WORK = frozenset(
    {WhyIdle.BUSY, WhyIdle.STARTING, WhyIdle.TRAINER_RESTARTING, WhyIdle.COMPUTER_BUSY, WhyIdle.PREPARING_DATA}
)
"""Reasons to wait that a trainer resolves by itself."""
FETCHING = frozenset(
    {
        WhyIdle.CONNECTING,
        WhyIdle.FETCHING_STATE,
        WhyIdle.FETCHING_TASKS,
        WhyIdle.FETCHING_REFERENCE,
        WhyIdle.FETCHING_DATA,
    }
)
"""Reasons to wait that any peer can resolve."""


def helpers(role: Role, why: WhyIdle) -> frozenset[Role] | None:
    """Return the roles that can end the wait `why` of a peer with this role; None if the peer needs no other peer."""
    if role is Role.TRAINER and why in OWN_WORK:
        return None
    if why is WhyIdle.WAITING_FOR_ROLLOUTS:
        return frozenset({Role.ROLLOUT})
    return frozenset(Role) if why in FETCHING else frozenset({Role.TRAINER})


HAND_OVER_MOST_S = 1800.0
"""Longest time for which a leaving peer stays until others have the data that only it has (s)."""
STUCK_S = 60.0
"""Seconds without any such data coming to another peer, after which the leaving peer goes."""


class Departure:
    """Departure of this peer, at once or after the running round; it begins once, when the user asks for it.

    A peer that alone has some of the run's data stays until others have them, at most for `HAND_OVER_MOST_S`.  A second
    request to leave ends this wait.

    left: set when the peer leaves.  is_at_end: True if the peer leaves when the run has ended.
    """

    def __init__(
        self,
        session: Session,
        settings: NodeSettings,
        history: History,
        membership: Membership,
        activity: Activity,
        census: CopyCensus | None = None,
    ) -> None:
        self._census = census
        self._handing_over = trio.Event()
        self._session, self._history, self._membership, self._activity = session, history, membership, activity
        self._role, self._stop_after, self.is_at_end = settings.role, settings.stop_after, settings.until_end
        self.left, self._begun = trio.Event(), trio.Event()
        self._deadline = self._latest = 0.0
        self._alone_since: float | None = None

    @property
    def has_begun(self) -> bool:
        """True if the peer stops when its round is complete."""
        return self._begun.is_set()

    def begin(self, training_s: float) -> None:
        """Stop after this round; a second call keeps the first deadline.  training_s: seconds that our training needs."""
        if not self.has_begun:
            now = trio.current_time()
            self._deadline = now + min(training_s, MAX_TRAINING_S) + PATIENCE_S
            self._latest = now + MAX_TRAINING_S + PATIENCE_S
            self._begun.set()

    @property
    def is_due(self) -> bool:
        """True if this peer begins no further round."""
        return self.has_begun or (self._stop_after is not None and self._history.length >= self._stop_after)

    def leave(self, *, at_once: bool = False) -> None:
        """Leave once others have the data that only this peer has; a second call leaves now.  at_once: True to leave now."""
        if not at_once and not self._handing_over.is_set() and self._only_here():
            self._deadline = trio.current_time() + HAND_OVER_MOST_S
            self._activity.show(Phase.STOPPING, WhyIdle.BUSY, "handing over the data that only this peer has")
            self._handing_over.set()
            return
        self._activity.show(Phase.STOPPING, WhyIdle.BUSY, "leaving")
        self.left.set()

    @property
    def is_leaving(self) -> bool:
        """True once this peer takes part in no further round."""
        return self.left.is_set() or self._handing_over.is_set()

    def _only_here(self) -> int:
        """Return the bytes that only this peer has, and that some other peer can take."""
        told = self._census.status() if self._census is not None else None
        return told.here_only_bytes if told is not None and told.answered > 1 else 0

    async def run(self) -> None:
        """Leave without the round once waiting for it is pointless, and hand data over before leaving."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hand_over)
            reason = await self.given_up()
            if not self.is_leaving:
                self._session.emit(Notice("warning", f"leaving without round {self._history.length}: {reason}"[:300]))
                self.leave()

    async def _hand_over(self) -> None:
        """Stay until others have what only this peer has, until the deadline, or until nobody takes more."""
        await self._handing_over.wait()
        assert self._census is not None
        self._census.hurry(True)
        begun, moved_at = self._only_here(), trio.current_time()
        least = begun
        while (left := self._only_here()) and trio.current_time() < min(self._deadline, moved_at + STUCK_S):
            if left < least:
                least, moved_at = left, trio.current_time()
            done = 100 - 100 * left // max(left, begun)
            only_here = f"{left / 1e6:.1f} MB that only this peer has ({done} % are at others)"
            self._session.emit(Notice("info", f"handing over {only_here}; a second request to leave ends this now"))
            with trio.move_on_after(HAND_OVER_LOOK_S):
                await self._census.counted.wait()
        if not self.left.is_set():
            if left:
                self._session.emit(Notice("warning", f"leaving with {left / 1e6:.1f} MB that no other peer has taken"))
            self._activity.show(Phase.STOPPING, WhyIdle.BUSY, "leaving")
            self.left.set()

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline; None before the departure begins."""
        return max(0.0, self._deadline - trio.current_time()) if self.has_begun or self.is_leaving else None

    @property
    def waits_for(self) -> str:
        """Phrase for the reason why the peer has not left yet; empty before the departure begins."""
        if self._handing_over.is_set():
            return f"other peers to fetch {self._only_here() / 1e6:.1f} MB that only this peer has"
        if not self.has_begun:
            return ""
        return self._activity.detail or self._activity.why.value or f"its own work ({self._activity.phase.value})"

    async def given_up(self) -> str:
        """Wait until waiting for the round is pointless; return the reason as a phrase."""
        await self._begun.wait()
        while True:
            now = trio.current_time()
            if helpers(self._role, self._activity.why) is None:  # the length of our own work may not have been known before
                self._deadline = max(self._deadline, min(now + PATIENCE_S, self._latest))
            if now >= self._deadline:
                return f"it was not complete in time ({self.waits_for})"
            self._alone_since = None if self._is_helped() else (self._alone_since or now)
            if self._alone_since is not None and now - self._alone_since >= ALONE_S:
                return f"nobody is left to complete it with ({self.waits_for})"
            await trio.sleep(LOOK_S)

    def _is_helped(self) -> bool:
        """Return True if a live peer can end the wait, or if the wait needs no other peer."""
        roles = helpers(self._role, self._activity.why)
        if roles is None:
            return True
        return any(known.heartbeat.role in roles for peer, known in self._membership if self._membership.is_live(peer))


# ------------------------------------------------------------------------------------------------------------------------
# The end of a run at one peer: no peer computes, and this peer serves the final state.
#
# The end comes when the peer's chain has reached the run's total, also after a restart and for a newcomer.  The run can
# continue if the organiser's extension arrives, or if another branch of the chain wins.


END_LOOK_S = 0.25


class RunEnd:
    """The end of the run at one node."""

    def __init__(
        self,
        session: Session,
        replica: Replica,
        activity: Activity,
        keeper: StateKeeper,
        extensions: Extensions,
        evaluator: Evaluator,
        rollouts: Rollouts | None,
    ) -> None:
        self._session, self._replica, self._activity, self._keeper = session, replica, activity, keeper
        self._extensions, self._evaluator, self._rollouts = extensions, evaluator, rollouts
        self._told: Hash | None = None

    @property
    def has_come(self) -> bool:
        """True if no round can follow on our tip, as far as we know."""
        return self._extensions.has_ended

    async def stay(self, is_over: Callable[[], bool], *, until_measured: bool) -> None:
        """Serve the final state until the run continues, another branch is ready, or `is_over` returns True.

        until_measured: stop also once the held-out loss of the final state is known or cannot be measured.
        Raises `StoreFull`.
        """
        progress = self._replica.history.roster.progress
        self._show(progress)
        self._tell(progress)
        if not self._keeper.has_checkpoint:
            await self._keeper.checkpoint()
        if self._rollouts is not None:
            self._rollouts.end(True)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._measure, nursery.cancel_scope, until_measured)
                while self.has_come and self._keeper.is_at_rest and not is_over():
                    self._show(self._replica.history.roster.progress)
                    await trio.sleep(END_LOOK_S)
                nursery.cancel_scope.cancel()
        finally:
            if self._rollouts is not None:
                self._rollouts.end(False)

    async def _measure(self, scope: trio.CancelScope, ends: bool) -> None:
        await self._evaluator.at_the_end(lambda text: None)
        if ends:
            scope.cancel()

    def _tell(self, progress: RunProgress) -> None:
        tip = self._replica.history.tip
        if tip != self._told:
            self._told = tip
            goal = progress.goal
            total = f"{amount(goal.total)} tokens" if goal.unit is Unit.TOKENS else many(goal.total, "round")
            done = f"after {many(progress.rounds, 'round')} and {amount(progress.tokens)} tokens"
            reason = f"its total of {total} is reached"
            if progress.done < goal.total:
                reason = "its data have been read as often as data.epochs says"
            text = (
                f"the run has ended: {reason}, {done}; peers serve the final weights until they leave, and "
                "`peer export FOLDER` writes them"
            )
            counts = {"rounds": progress.rounds, "tokens": progress.tokens, "total": goal.total}
            details = {**counts, "unit": goal.unit.value, "tip": tip.hex()}
            self._session.emit(Notice("info", text, NoticeCode.RUN_ENDED, details))

    def _show(self, progress: RunProgress) -> None:
        text = f"the run has ended after {progress.rounds} rounds; this peer serves its weights until it leaves"
        self._activity.show(Phase.SEEDING, WhyIdle.RUN_ENDED, text)


# ------------------------------------------------------------------------------------------------------------------------


HAND_OVER_S = 2.0
"""Longest time that a leaving peer takes to pass on statements that other peers need (s)."""


class Memory(Protocol):
    """A component that loads data which an earlier process of this peer left on disk."""

    async def load(self) -> None:
        """Load the data; called before any component runs."""
        ...


class NodeService(Protocol):
    """A component that runs as long as the node runs."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...


class Life:
    """The life of one node; runs once.  pace: the pace of the run, measured since this process started."""

    def __init__(
        self,
        router: MessageRouter,
        barrier: StartupBarrier,
        keeper: StateKeeper,
        rounds: Rounds,
        evaluator: Evaluator,
        departure: Departure,
        run_end: RunEnd,
    ) -> None:
        self._router, self._barrier, self._keeper, self._rounds = router, barrier, keeper, rounds
        self._evaluator, self._departure, self._run_end = evaluator, departure, run_end
        self.pace = RunPace()

    async def run(self, memories: Sequence[Memory], services: Sequence[NodeService]) -> None:
        """Load the memories, start the services, and run rounds until the departure.  Raises `StoreFull`."""
        self._barrier.begin()
        async with self._router.open() as nursery:
            for memory in memories:
                await memory.load()
            for service in (*services, self._departure):
                nursery.start_soon(service.run)
            nursery.start_soon(self._live, nursery)
            self._router.greet_connected()
            await self._departure.left.wait()
            with trio.move_on_after(HAND_OVER_S):
                await self._rounds.hand_over()
            nursery.cancel_scope.cancel()

    def finish(self, training_s: float) -> None:
        """Stop once the running round is complete or cannot be completed.  training_s: time that our training needs (s)."""
        self._departure.begin(training_s)
        self._evaluator.stop()

    async def _live(self, nursery: trio.Nursery) -> None:
        await self._barrier.fetch_files()
        await self._keeper.restore()
        await self._barrier.listen()
        while True:
            await self._keeper.reach_tip()
            if self._departure.is_due and not self._departure.is_leaving:
                if not self._departure.has_begun:
                    await self._evaluator.at_the_end()
                await self._barrier.linger()
                self._departure.leave()
                return
            if self._departure.is_leaving:
                await trio.sleep_forever()  # other peers would wait in vain for us in a round that we begin now
            if self._run_end.has_come:
                self.pace.pause()
                await self._run_end.stay(lambda: self._departure.is_due, until_measured=self._departure.is_at_end)
                if self._departure.is_at_end and self._run_end.has_come and self._keeper.is_at_rest:
                    await self._barrier.linger()
                    self._departure.leave()
                    return
            elif await self._barrier.may_begin():
                outcome = await self._rounds.run_next(self._evaluator.during_round, state_verified=self._keeper.is_verified)
                if isinstance(outcome, Commit):
                    self.pace.note(outcome, trio.current_time())
                    if await self._keeper.advance(outcome):
                        nursery.start_soon(self._keeper.checkpoint)
                elif isinstance(outcome, StateDisagreement):
                    await self._keeper.repair(outcome.digest)
