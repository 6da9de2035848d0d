"""The life of a node: restore from disk, listen, catch up with the swarm, one round after another, linger, leave."""

from __future__ import annotations

from functools import partial

import trio

from protocol.audit.ejection import Ejections
from protocol.content.swarm import Swarm
from protocol.events import Notice
from protocol.membership.activity import Activity
from protocol.membership.heartbeats import Heartbeats
from protocol.network.session import Session
from protocol.node.departure import Departure
from protocol.node.dispatcher import Dispatcher
from protocol.node.evaluator import Evaluator
from protocol.node.extensions import Extensions
from protocol.node.gathering import Gathering
from protocol.node.outlasting import Outlasting
from protocol.node.ratifier import Ratifier
from protocol.node.round_runner import Outcome, Wrong
from protocol.node.rounds import Rounds
from protocol.node.run_end import RunEnd
from protocol.node.state_keeper import StateKeeper
from protocol.node.watch import Watch
from protocol.rollouts.rollouts import Rollouts
from protocol.run.settings import NodeSettings
from protocol.state.history import History
from protocol.state.progress import RunPace, counted_tokens
from protocol.sync.run_files import RunFiles
from protocol.tasks.task_sets import TaskSets
from protocol.versions.weight_versions import WeightVersions
from protocol.wire.messages import Commit
from protocol.wire.presence import Phase, WhyIdle

HAND_OVER_S = 2.0
"""Seconds that a leaver takes at most to pass on what others need of it."""


class Life:
    """Runs once."""

    def __init__(
        self,
        session: Session,
        history: History,
        settings: NodeSettings,
        *,
        dispatcher: Dispatcher,
        heartbeats: Heartbeats,
        ejections: Ejections,
        watch: Watch,
        keeper: StateKeeper,
        ratifier: Ratifier,
        swarm: Swarm,
        versions: WeightVersions,
        files: RunFiles,
        gathering: Gathering,
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
        self._dispatcher, self._heartbeats, self._ejections, self._watch = dispatcher, heartbeats, ejections, watch
        self._keeper, self._gathering, self._rounds, self._evaluator = keeper, gathering, rounds, evaluator
        self._activity, self._ratifier, self._swarm, self._versions = activity, ratifier, swarm, versions
        self._rollouts, self._tasks, self._files = rollouts, tasks, files
        self._extensions, self._run_end = extensions, run_end
        self.pace = RunPace()
        self._leaving = trio.Event()
        self._departure = departure

    async def run(self) -> int:
        """Until `leave`, the goodbye said: returns how many peers confirmed it.  Raises `StoreFull`."""
        self._activity.show(Phase.STARTING, WhyIdle.STARTING, "reading the records from disk")
        async with self._dispatcher.open() as nursery:
            await self._ejections.load()
            await self._keeper.load()
            await self._ratifier.load()
            await self._extensions.load()
            nursery.start_soon(self._heartbeats.run)
            nursery.start_soon(self._ejections.announce)
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
            outlasting = Outlasting(nursery)
            nursery.start_soon(self._live, outlasting)
            for peer in self._session.network.connected():
                self._dispatcher.on_peer_connected(peer)
            await self._leaving.wait()
            with trio.move_on_after(HAND_OVER_S):
                await self._rounds.hand_over(outlasting)
            nursery.cancel_scope.cancel()
        return await self._heartbeats.say_goodbye()

    def leave(self) -> None:
        """Stop now, with a goodbye; `run` returns."""
        self._activity.show(Phase.STOPPING, WhyIdle.BUSY, "leaving")
        self._leaving.set()

    def finish(self, training_s: float) -> None:
        """Stop when the running round is complete, or cannot be.  training_s: seconds that our own training still needs."""
        self._departure.begin(training_s)
        self._evaluator.stop()

    async def _depart(self) -> None:
        reason = await self._departure.given_up()
        if not self._leaving.is_set():
            self._session.emit(Notice("warning", f"leaving without round {self._history.length}: {reason}"[:300]))
            self.leave()

    async def _live(self, outlasting: Outlasting) -> None:
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
                await trio.sleep_forever()  # what we would begin now, others would wait for in vain
            if self._run_end.has_come:
                self.pace.pause()
                await self._run_end.stay(self._is_done, until_measured=self._settings.until_end)
                if self._settings.until_end and self._run_end.has_come and self._keeper.is_at_rest:
                    await self._gathering.linger()
                    self.leave()
                    return
            elif await self._gathering.may_begin():
                outcome = await self._rounds.run_next(state_verified=self._keeper.is_verified, outlasting=outlasting)
                await self._conclude(outcome, outlasting.nursery)

    def _is_done(self) -> bool:
        stop_after = self._settings.stop_after
        return self._departure.has_begun or (stop_after is not None and self._history.length >= stop_after)

    async def _conclude(self, outcome: Outcome, nursery: trio.Nursery) -> None:
        if isinstance(outcome, Commit):
            self.pace.note(counted_tokens(outcome), trio.current_time())
            if await self._keeper.advance(outcome):
                nursery.start_soon(self._keeper.checkpoint)
        elif isinstance(outcome, Wrong):
            await self._keeper.repair(outcome.digest)
