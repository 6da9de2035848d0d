"""The end of a run at one peer: nobody computes any more, and the final state stays there for everybody.

A peer comes here when its chain has reached the run's total, also in a later life and as a newcomer, and goes on when the
organiser's extension arrives, or when another branch of the chain wins, which may end elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.events import RunEnded
from protocol.membership.activity import Activity
from protocol.network.session import Session
from protocol.node.evaluator import Evaluator
from protocol.node.extensions import Extensions
from protocol.node.state_keeper import StateKeeper
from protocol.rollouts.rollouts import Rollouts
from protocol.state.progress import RunProgress
from protocol.state.replica import Replica
from protocol.wire.hashes import Hash
from protocol.wire.presence import Phase, WhyIdle

LOOK_S = 0.25


class RunEnd:
    """Of one node."""

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
        """Whether no round can follow on our tip, as far as we have heard."""
        return self._extensions.has_ended

    async def stay(self, is_over: Callable[[], bool], *, until_measured: bool) -> None:
        """Serve the final state until the run goes on, or another branch comes, or `is_over`.

        until_measured: also until the held-out loss of the final state is known.  Raises `StoreFull`.
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
                    await trio.sleep(LOOK_S)
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
