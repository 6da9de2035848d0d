"""The life of a node: restore from disk, listen, catch up with the swarm, one round after another, linger, leave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from protocol.audit.ejection import Ejections
from protocol.blobs.swarm import Swarm
from protocol.chain.base import RoundSettings
from protocol.chain.history import History
from protocol.chain.progress import RunPace, RunProgress, counted_tokens
from protocol.chain.replica import Replica
from protocol.events.events import Notice, RunEnded
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.heartbeats import FailureDetector, Heartbeats
from protocol.membership.liveness import Membership, beat_interval_s
from protocol.node.commands import Extensions
from protocol.node.evaluator import Evaluator
from protocol.node.round_runner import Behind, Outcome, PendingDeliveries, RoundRunner, StateDisagreement
from protocol.node.rounds import CurrentRound, Rounds
from protocol.node.router import MessageRouter
from protocol.node.state import Ratifier, StateKeeper
from protocol.rollouts.rollouts import Rollouts
from protocol.run.settings import NodeSettings
from protocol.sync.following import Following
from protocol.sync.remote_chains import Claims
from protocol.sync.supplies import RunFiles
from protocol.tasks.task_sets import TaskSets
from protocol.transport.interface import Session
from protocol.versions.weight_versions import WeightVersions
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit
from protocol.wire.presence import Phase, Role

# ------------------------------------------------------------------------------------------------------------------------
# The clock of a node: it judges silence, starts checks of claims, and ends a round for a better branch.


TICK_S = 0.25
SYNC_AFTER_S = 3.0
"""Seconds that a peer may be ahead before we fetch the records instead of waiting for the commit message."""
LAG_S = 0.5
"""The same in seconds if we take part in no exchange, so that no commit message is on its way to us."""


class LivenessTicker:
    """Ticks four times a second.  boot_clock: runs on while the computer is suspended."""

    def __init__(
        self,
        session: Session,
        rounds: RoundSettings,
        membership: Membership,
        detector: FailureDetector,
        activity: Activity,
        following: Following,
        current: CurrentRound,
        boot_clock: Callable[[], float],
    ) -> None:
        self._session, self._rounds, self._membership, self._activity = session, rounds, membership, activity
        self._boot_clock, self._detector = boot_clock, detector
        self._following, self._current = following, current
        self._ahead: tuple[RoundRunner | None, float] | None = None
        """The round in which a peer was first seen ahead, and the time of that."""

    async def run(self, nursery: trio.Nursery) -> None:
        """Tick until cancelled.  nursery: runs the checks of claims."""
        last, last_boot = trio.current_time(), self._boot_clock()
        while True:
            now, boot = trio.current_time(), self._boot_clock()
            if max(now - last, boot - last_boot) >= self._rounds.eviction_s:
                self._activity.was_away = True  # frozen or suspended: the others may have gone on without us
            if self._session.network.is_moving():
                self._membership.excuse(now - last, now)
            last, last_boot = now, boot
            self._detector.judge_silence(now)
            self._follow(now, nursery)
            await trio.sleep(TICK_S)

    def _follow(self, now: float, nursery: trio.Nursery) -> None:
        """Check claims beside the round.  It ends only when another branch is verified and its state is here."""
        runner, following = self._current.runner, self._following
        if runner is not None and runner.deciding:
            self._ahead = None
        elif following.move is not None:
            if runner is not None:
                runner.end(Behind())
        elif self._is_due(runner, now):
            for known in (True, False):
                wanted = following.has_claims(known=known) or (known and following.wants_back())
                if wanted and not following.is_looking(known=known):
                    nursery.start_soon(partial(following.look, known=known))

    def _is_due(self, runner: RoundRunner | None, now: float) -> bool:
        """Return True if a true claim's commit message would be here by now; between rounds none is on its way."""
        following = self._following
        if runner is None or following.wants_back():
            return True
        if not (following.has_claims(known=True) or following.has_claims(known=False)):
            self._ahead = None
            return False
        if self._ahead is None or self._ahead[0] is not runner:
            self._ahead = runner, now
        return now - self._ahead[1] > (SYNC_AFTER_S if runner.exchanges.any else LAG_S)


# ------------------------------------------------------------------------------------------------------------------------
# Waiting for other peers: before the first round until there are enough, after the last one until all have our chain.


LISTEN_S = 5.0
"""Seconds that a starting peer listens for the swarm before it takes its own tip for the newest."""
HEAR_S = 12.0
"""Seconds that a founder waits for the first heartbeat of connected peers."""
LINGER_S = 20.0
"""Seconds that a finished peer stays for the others at most."""


class StartupBarrier:
    """The gathering of peers before and after the rounds: waits for them, and shows the reason of the wait."""

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
        """Listen to the swarm first: our records may be old.  The time since the start counts, as we listened all along."""
        self._activity.show(Phase.STARTING, WhyIdle.STARTING, "listening for other peers of the run")
        settle_s = TICK_S * 2
        with trio.move_on_at(max(self._membership.started + LISTEN_S, trio.current_time() + settle_s)):
            while not self._membership.live_peers():
                await trio.sleep(TICK_S)
            await trio.sleep(settle_s)

    async def may_begin(self) -> bool:
        """Return True if a round may begin; wait a moment before returning False.

        Our chain must have the record that an invitation names.  At genesis there must be enough trainers, every connected
        peer must have been heard (for `HEAR_S` at most), and we must not be alone if an invitation named a peer.
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
        """Return True if our chain goes through the record that the invitation names, or if it names none."""
        anchor = self._settings.anchor
        return anchor is None or anchor.holds(self._replica.history)

    def _show(self, why: WhyIdle, text: str) -> None:
        self._activity.show(Phase.STARTING, why, text)

    def _unheard(self) -> int:
        """Return the number of connected peers not heard yet, which may be far ahead; 0 after `HEAR_S`."""
        if trio.current_time() - self._membership.started > HEAR_S:
            return 0
        return sum(self._membership.get(peer) is None for peer in self._session.network.connected())

    def _is_trainer(self, peer: PeerId) -> bool:
        known = self._membership.get(peer)
        return known is not None and known.heartbeat.role is Role.TRAINER

    async def linger(self) -> None:
        """Stay until all live peers have our chain, `LINGER_S` at most."""
        self._activity.show(Phase.SEEDING, WhyIdle.BUSY, "done; staying for those who are not")
        history, rounds_of = self._replica.history, self._claims.rounds_of
        with trio.move_on_after(LINGER_S):
            while any(rounds_of(peer) < history.length for peer in self._membership.live_peers()):
                await trio.sleep(TICK_S)
            await trio.sleep(beat_interval_s(1) + TICK_S)


# ------------------------------------------------------------------------------------------------------------------------
# Departure at the end of the running round, and the limits of the wait for that end.
#
# The round is completed together with others.  If nobody is left who could end the wait, or at the deadline, the peer
# leaves without the round.  Pure but for the clock and the state that it reads.


ALONE_S = 30.0
"""Seconds without anybody who could end the wait, after which the peer leaves."""
PATIENCE_S = 1800.0
"""Seconds that the peer waits for others at most, beyond its own training."""
MAX_TRAINING_S = 86_400.0
"""Seconds of the peer's own training that count for the deadline, at most."""
LOOK_S = 1.0

OWN_WORK = frozenset({WhyIdle.BUSY, WhyIdle.STARTING, WhyIdle.TRAINER_RESTARTING})
"""Reasons to wait that a trainer ends by itself."""
FETCHING = frozenset({WhyIdle.CONNECTING, WhyIdle.FETCHING_STATE, WhyIdle.FETCHING_TASKS, WhyIdle.FETCHING_REFERENCE})
"""Reasons to wait that any peer may end."""


def helpers(role: Role, why: WhyIdle) -> frozenset[Role] | None:
    """Return the roles that can end the wait `why` of a peer with this role; None if it needs nobody."""
    if role is Role.TRAINER and why in OWN_WORK:
        return None
    if why is WhyIdle.WAITING_FOR_ROLLOUTS:
        return frozenset({Role.ROLLOUT})
    return frozenset(Role) if why in FETCHING else frozenset({Role.TRAINER})


class Departure:
    """Departure of this peer after the running round, begun once, when the person asks.  role: of this peer."""

    def __init__(self, role: Role, membership: Membership, activity: Activity) -> None:
        self._role, self._membership, self._activity = role, membership, activity
        self._begun = trio.Event()
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
    def left_s(self) -> float | None:
        """Seconds until the deadline; None while the peer does not depart."""
        return max(0.0, self._deadline - trio.current_time()) if self.has_begun else None

    @property
    def waits_for(self) -> str:
        """Phrase that names what the round still needs; empty while the peer does not depart."""
        if not self.has_begun:
            return ""
        return self._activity.detail or self._activity.why.value or f"its own work ({self._activity.phase.value})"

    async def given_up(self) -> str:
        """Wait until waiting for the round is pointless; return the reason, a phrase."""
        await self._begun.wait()
        while True:
            now = trio.current_time()
            if helpers(self._role, self._activity.why) is None:  # our own work, whose length may not have been known
                self._deadline = max(self._deadline, min(now + PATIENCE_S, self._latest))
            if now >= self._deadline:
                return f"it was not complete in time ({self.waits_for})"
            self._alone_since = None if self._is_helped() else (self._alone_since or now)
            if self._alone_since is not None and now - self._alone_since >= ALONE_S:
                return f"nobody is left to complete it with ({self.waits_for})"
            await trio.sleep(LOOK_S)

    def _is_helped(self) -> bool:
        """Return True if a live peer may end the wait, or if the wait needs nobody."""
        roles = helpers(self._role, self._activity.why)
        if roles is None:
            return True
        return any(known.heartbeat.role in roles for peer, known in self._membership if self._membership.is_live(peer))


# ------------------------------------------------------------------------------------------------------------------------
# The end of a run at one peer: nobody computes any more, and the peer serves the final state.
#
# A peer gets here when its chain has reached the run's total, also in a later life or as a newcomer.  It goes on when the
# organiser's extension arrives, or when another branch of the chain wins, which may end elsewhere.


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
        """True if no round can follow on our tip, as far as we have heard."""
        return self._extensions.has_ended

    async def stay(self, is_over: Callable[[], bool], *, until_measured: bool) -> None:
        """Serve the final state until the run goes on, another branch comes, or `is_over` is true.

        until_measured: stop also once the held-out loss of the final state is known, or cannot be.  Raises `StoreFull`.
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
            self._session.emit(RunEnded(progress.rounds, progress.tokens, goal.unit.value, goal.total, tip.hex()))

    def _show(self, progress: RunProgress) -> None:
        text = f"the run has ended after {progress.rounds} rounds; this peer serves its weights until it leaves"
        self._activity.show(Phase.SEEDING, WhyIdle.RUN_ENDED, text)


# ------------------------------------------------------------------------------------------------------------------------


HAND_OVER_S = 2.0
"""Seconds that a leaving peer takes at most to pass on statements that others need."""


class Life:
    """The life of one node; runs once."""

    def __init__(
        self,
        session: Session,
        history: History,
        settings: NodeSettings,
        *,
        router: MessageRouter,
        heartbeats: Heartbeats,
        ejections: Ejections,
        watch: LivenessTicker,
        keeper: StateKeeper,
        ratifier: Ratifier,
        swarm: Swarm,
        versions: WeightVersions,
        files: RunFiles,
        gathering: StartupBarrier,
        rounds: Rounds,
        evaluator: Evaluator,
        extensions: Extensions,
        run_end: RunEnd,
        activity: Activity,
        departure: Departure,
        rollouts: Rollouts | None = None,
        tasks: TaskSets | None = None,
    ) -> None:
        self._session, self._history, self._settings = session, history, settings
        self._router, self._heartbeats, self._ejections, self._watch = router, heartbeats, ejections, watch
        self._keeper, self._gathering, self._rounds, self._evaluator = keeper, gathering, rounds, evaluator
        self._activity, self._ratifier, self._swarm, self._versions = activity, ratifier, swarm, versions
        self._rollouts, self._tasks, self._files = rollouts, tasks, files
        self._extensions, self._run_end = extensions, run_end
        self.pace = RunPace()
        self._leaving = trio.Event()
        self._departure = departure

    async def run(self) -> int:
        """Live until `leave`, then say goodbye; return the number of peers that confirmed it.  Raises `StoreFull`."""
        self._activity.show(Phase.STARTING, WhyIdle.STARTING, "reading the records from disk")
        async with self._router.open() as nursery:
            await self._ejections.load()
            await self._keeper.load()
            await self._ratifier.load()
            await self._extensions.load()
            nursery.start_soon(self._heartbeats.run)
            nursery.start_soon(self._ejections.run)
            nursery.start_soon(self._watch.run, nursery)
            nursery.start_soon(self._ratifier.run)
            nursery.start_soon(self._swarm.run)
            nursery.start_soon(self._files.run)
            nursery.start_soon(self._extensions.run)
            self._versions.resume()
            if self._tasks is not None:
                nursery.start_soon(self._tasks.run)
            if self._rollouts is not None:
                nursery.start_soon(self._rollouts.run)
            nursery.start_soon(self._depart)
            deliveries = PendingDeliveries(nursery)
            nursery.start_soon(self._live, deliveries)
            self._router.greet_connected()
            await self._leaving.wait()
            with trio.move_on_after(HAND_OVER_S):
                await self._rounds.hand_over(deliveries)
            nursery.cancel_scope.cancel()
        return await self._heartbeats.say_goodbye()

    def leave(self) -> None:
        """Stop now, with a goodbye; `run` returns."""
        self._activity.show(Phase.STOPPING, WhyIdle.BUSY, "leaving")
        self._leaving.set()

    def finish(self, training_s: float) -> None:
        """Stop when the running round is complete or cannot be.  training_s: seconds that our own training still needs."""
        self._departure.begin(training_s)
        self._evaluator.stop()

    async def _depart(self) -> None:
        reason = await self._departure.given_up()
        if not self._leaving.is_set():
            self._session.emit(Notice("warning", f"leaving without round {self._history.length}: {reason}"[:300]))
            self.leave()

    async def _live(self, deliveries: PendingDeliveries) -> None:
        if not self._files.are_here:
            await self._files.until_here(partial(self._activity.show, Phase.SYNCING, WhyIdle.FETCHING_STATE))
        self._activity.show(Phase.SYNCING, WhyIdle.STARTING, "reading the state from disk")
        await self._keeper.restore()
        await self._gathering.listen()
        while True:
            await self._keeper.reach_tip()
            await self._ejections.look_again()
            if self._is_done():
                if not self._departure.has_begun:
                    await self._evaluator.at_the_end()
                await self._gathering.linger()
                self.leave()
                return
            if self._leaving.is_set():
                await trio.sleep_forever()  # others would wait in vain for a round that we begin now
            if self._run_end.has_come:
                self.pace.pause()
                await self._run_end.stay(self._is_done, until_measured=self._settings.until_end)
                if self._settings.until_end and self._run_end.has_come and self._keeper.is_at_rest:
                    await self._gathering.linger()
                    self.leave()
                    return
            elif await self._gathering.may_begin():
                outcome = await self._rounds.run_next(state_verified=self._keeper.is_verified, deliveries=deliveries)
                await self._conclude(outcome, deliveries.nursery)

    def _is_done(self) -> bool:
        stop_after = self._settings.stop_after
        return self._departure.has_begun or (stop_after is not None and self._history.length >= stop_after)

    async def _conclude(self, outcome: Outcome, nursery: trio.Nursery) -> None:
        if isinstance(outcome, Commit):
            self.pace.note(counted_tokens(outcome), trio.current_time())
            if await self._keeper.advance(outcome):
                nursery.start_soon(self._keeper.checkpoint)
        elif isinstance(outcome, StateDisagreement):
            await self._keeper.repair(outcome.digest)
