"""The held-out loss: a pure draw of the measuring peer, and the trio shell that measures, announces and receives losses.

In a round the drawn peer evaluates while it trains.  The evaluation is cancelled at the end of the round, because the next
state replaces the measured one.  Heartbeats of the measuring peer announce the loss, and with it the samples: completions
of the run's prompts, which people read, and nothing depends on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import trio

from protocol.chain.replica import Replica
from protocol.events.events import Dropped, EvalLoss, EvalProgress, Notice, SamplesWritten
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.liveness import MAX_STRANGERS, Liveness, Membership
from protocol.trainer_link import EvaluatedLoss, NotMeasured, TrainerDied, TrainerGaveUp, TrainerLink
from protocol.transport.handlers import Statement, hears_news
from protocol.transport.interface import Session
from protocol.wire.envelope import MAX_LOSS
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.presence import Heartbeat, Measurement, Phase, Role, sample_line

# ------------------------------------------------------------------------------------------------------------------------
# The draw of the peer that measures the held-out loss of a committed state, and the claims that we accept.
#
# The draw is pure.  A state is named by the tip of its record.  The tip orders the members of the record by hash.  The first
# member that is able to measure the state does so and announces the loss.  At genesis there is no record, so every peer that
# trains is in the order.  We accept a claim only from a peer that we would have chosen to measure.  The loss of a state that
# no peer measures stays unknown.  The protocol depends on these numbers for nothing else, because a claim may be a lie.
#
# In a run on the members' own data, each member holds out rows of its own.  One member's loss would say little about the
# others' data, so each of them measures every state, and the loss of a state is the mean of those that were announced.
# Samples are written by the member that is drawn, here too.


RECENT_ROUNDS = 8
"""Number of newest states that we keep; claims about older states come too late."""
Able = Callable[[PeerId], bool]
"""Predicate: the peer could measure a state now, as far as we know."""


def drawn_order(tip: Hash, peers: Iterable[PeerId]) -> list[PeerId]:
    """Return `peers` in the order in which they are asked to measure the state at `tip`."""
    return sorted(peers, key=lambda peer: _lot(tip, peer))


@lru_cache(maxsize=4096)
def _lot(tip: Hash, peer: PeerId) -> Hash:
    """Return the draw of `peer` at `tip`; cached, because every look at the turn needs it."""
    return hash_bytes("evaluator", tip + peer.encode())


def whose_turn(order: Sequence[PeerId], able: Able) -> PeerId | None:
    """Return the first peer that is able to measure; None if no peer is."""
    return next((peer for peer in order if able(peer)), None)


@dataclass(frozen=True)
class CommittedState:
    """A committed state.  members: the members of the record that made it; none at genesis."""

    rounds: int
    tip: Hash
    members: tuple[PeerId, ...]


@dataclass(frozen=True)
class MeasuredLoss:
    """A held-out loss (nats a token) and the peer that states it.

    losses: the losses on the sources, in their order, if there are several.  members: number of members whose mean loss it
    is; `by` is the last of them.  samples: completions of the run's prompts by that peer, in their order; empty if it wrote
    none.
    """

    rounds: int
    loss: float
    by: PeerId
    losses: tuple[float, ...] = ()
    members: int = 1
    samples: tuple[str, ...] = ()


def refusal(claim: Measurement, sender: PeerId, state: CommittedState, order: Sequence[PeerId], able: Able) -> str:
    """Return the reason to refuse the claim of `sender`, or "".  order: the peers that may measure `state`, in order."""
    if claim.rounds != state.rounds:
        return f"the claim names round {claim.rounds} with the tip of round {state.rounds}"
    if sender not in order:
        return "the peer was not a member of that round"
    if any(able(peer) for peer in order[: order.index(sender)]):
        return "another peer was drawn to measure"
    return ""


class Measurements:
    """The newest committed states and their measurements.  by_all: True if each member measures each state."""

    def __init__(self, *, by_all: bool = False) -> None:
        self.by_all = by_all
        self._states: dict[Hash, CommittedState] = {}
        self._measured: dict[Hash, dict[PeerId, MeasuredLoss]] = {}

    def open(self, state: CommittedState) -> None:
        """Open this state for measurements; forget the oldest states beyond `RECENT_ROUNDS`."""
        self._states.pop(state.tip, None)
        self._states[state.tip] = state
        while len(self._states) > RECENT_ROUNDS:
            oldest = next(iter(self._states))
            del self._states[oldest]
            self._measured.pop(oldest, None)

    def state(self, tip: Hash) -> CommittedState | None:
        """Return the state with this tip; None if the state is unknown or forgotten."""
        return self._states.get(tip)

    def of(self, tip: Hash) -> MeasuredLoss | None:
        """Return the measurement of the state with this tip, or the mean of several; None if the state is not measured."""
        found = [*self._measured.get(tip, {}).values()]
        if len(found) < 2:
            return found[0] if found else None
        return MeasuredLoss(found[0].rounds, sum(each.loss for each in found) / len(found), found[-1].by, members=len(found))

    def needs(self, tip: Hash, peer: PeerId) -> bool:
        """Return True if a measurement of the state by `peer` would count."""
        found = self._measured.get(tip, {})
        return peer not in found if self.by_all else not found

    def take(self, state: CommittedState, measured: MeasuredLoss) -> bool:
        """Note the measurement of an open state.  Return False if the state is not open or has a measurement already."""
        if state.tip not in self._states or not self.needs(state.tip, measured.by):
            return False
        self._measured.setdefault(state.tip, {})[measured.by] = measured
        return True

    def newest(self, on_chain: Callable[[CommittedState], bool]) -> MeasuredLoss | None:
        """Return the measurement of the latest measured state on our chain; skip states of forks that have lost since."""
        known = [found for tip, state in self._states.items() if on_chain(state) and (found := self.of(tip)) is not None]
        return max(known, key=lambda measured: measured.rounds, default=None)


# ------------------------------------------------------------------------------------------------------------------------


LOOK_S = 1.0
"""Seconds after which a peer that is not drawn checks again for its turn."""
END_PATIENCE_S = 120.0
"""Seconds that a finished peer waits for another peer to measure the last state before it measures the state itself."""
UNABLE = frozenset({Phase.PAUSED, Phase.STOPPING, Phase.SYNCING})
Show = Callable[[str], None]
"""Callback that shows the user of this peer the reason of its wait."""


class Evaluator:
    """Evaluator of the state of `replica`: it measures when this peer is drawn, and receives other peers' measurements.

    trainer: None if this peer does not train.
    """

    def __init__(
        self, session: Session, replica: Replica, membership: Membership, trainer: TrainerLink | None, activity: Activity
    ) -> None:
        self._session, self._replica, self._membership = session, replica, membership
        self._trainer, self._activity = trainer, activity
        self._known = Measurements(by_all=replica.manifest.data.is_local)
        self._sources = [source.name for source in replica.manifest.data.sources]
        samples = replica.manifest.samples
        self._prompts = samples.prompts if samples is not None else []
        self._sampled: CommittedState | None = None
        self._progress: tuple[int, int] | None = None
        self._measuring: tuple[CommittedState, trio.CancelScope] | None = None
        self._ending = trio.CancelScope()
        self._news = trio.Event()
        self._dropped: dict[PeerId, Measurement] = {}

    # -- measuring ----------------------------------------------------------------------------------------------------

    async def during_round(self, training: trio.Event) -> None:
        """Wait for the measurement of the state at the start of a round; measure it ourselves if we are drawn.

        The caller cancels this before that state changes.

        training: set once the trainer has been told to train; we wait for it, so that measuring does not delay the first
        step.
        """
        state = self._open()
        if self._trainer is not None:
            await training.wait()
            await self._take_turns(state, lambda text: None, math.inf)

    async def at_the_end(self, show: Show | None = None) -> None:
        """Wait for the measurement of the last state, or for `stop`, after all training; measure it if we are drawn.

        show: called with the reason of our wait; None to show the reason as our activity.
        """
        state = self._open()
        if self._trainer is None:
            return
        with trio.CancelScope() as self._ending:
            await self._take_turns(state, show or self._show, END_PATIENCE_S)

    def _show(self, text: str) -> None:
        self._activity.show(Phase.SEEDING, WhyIdle.BUSY, text)

    def stop(self) -> None:
        """Leave the last state unmeasured, because the user wants to leave."""
        self._ending.cancel()

    def _open(self) -> CommittedState:
        """Open the newest committed state for measurement and return it."""
        history, last = self._replica.history, self._replica.history.last
        members = tuple(PeerId(member.peer) for member in last.members) if last is not None else ()
        state = CommittedState(history.length, history.tip, members)
        self._known.open(state)
        if self._activity.measured is not None and self._known.state(Hash(self._activity.measured.tip)) is None:
            self._activity.tell_measured(None)
        return state

    async def _take_turns(self, state: CommittedState, show: Show, patience_s: float) -> None:
        """Measure `state` in our turn or after `patience_s`; return when it is measured, or if we cannot measure it."""
        deadline, me = trio.current_time() + patience_s, self._session.me
        while self._known.needs(state.tip, me):
            turn = self._drawn(state)
            if self._known.by_all:
                turn = me if self._able(me, state.rounds) else None
            if turn == me or trio.current_time() >= deadline:
                show("measuring the held-out loss")
                if not await self._measure(state):
                    return
                continue
            name = self._membership.name(turn) if turn is not None else "somebody"
            show(f"waiting for {name} to measure the held-out loss")
            with trio.move_on_after(LOOK_S):
                await self._news.wait()

    def _drawn(self, state: CommittedState) -> PeerId | None:
        """Return the first member in the order of the state that is able to measure it now."""
        return whose_turn(self._order(state), partial(self._able, rounds=state.rounds))

    async def _measure(self, state: CommittedState) -> bool:
        """Measure the state and announce the loss.  Return False if another try is pointless."""
        trainer = self._trainer
        assert trainer is not None
        found = EvaluatedLoss(math.nan)
        try:
            with trio.CancelScope() as scope:
                self._measuring = state, scope
                row = self._replica.base.leases.pool.cursor
                writes = bool(self._prompts) and (not self._known.by_all or self._drawn(state) == self._session.me)
                on_progress = partial(self._on_progress, state)
                found = await trainer.evaluate(self._replica.state.theta, on_progress, row, samples=writes)
        except TrainerGaveUp:
            return False
        except TrainerDied:
            await trio.sleep(LOOK_S)
            return True
        except NotMeasured as problem:
            self._session.emit(Notice("warning", f"the held-out loss could not be measured: {problem}"[:200]))
            return False
        finally:
            self._measuring = self._progress = None
        if not self._known.needs(state.tip, self._session.me):
            return True
        loss, losses = found.loss, [found.losses[name] for name in self._sources if name in found.losses]
        if not all(0 <= each <= MAX_LOSS for each in (loss, *losses)):
            text = f"the held-out loss after {state.rounds} rounds is {loss}, so it is not announced"
            self._session.emit(Notice("warning", text))
            return False
        losses = losses if len(losses) == len(self._sources) > 1 else []
        samples = tuple(map(sample_line, found.samples))
        self._take(state, MeasuredLoss(state.rounds, loss, self._session.me, tuple(losses), samples=samples))
        self._activity.tell_measured(
            Measurement(rounds=state.rounds, tip=state.tip, loss=loss, losses=losses, samples=list(samples))
        )
        self._activity.tell_now()
        return True

    def _on_progress(self, state: CommittedState, done: int, total: int) -> None:
        self._progress = done, total
        self._session.emit(EvalProgress(state.rounds, done, total))

    def _take(self, state: CommittedState, measured: MeasuredLoss) -> None:
        if self._known.take(state, measured):
            found = self._known.of(state.tip) or measured
            self._session.emit(EvalLoss(state.rounds, found.loss, found.by, self._named(found), found.members))
            if len(measured.samples) == len(self._prompts) > 0 and self._sampled != state:
                self._sampled = state
                completions = dict(zip(self._prompts, measured.samples, strict=True))
                self._session.emit(SamplesWritten(state.rounds, measured.by, completions))
            self._news.set()
            self._news = trio.Event()

    # -- hearing ------------------------------------------------------------------------------------------------------

    @hears_news(Heartbeat)
    def hear_heartbeat(self, said: Statement[Heartbeat]) -> None:
        """Check the claim in another peer's heartbeat."""
        if said.body.measured is not None:
            self.on_claim(said.sender, said.body.measured)

    def on_claim(self, sender: PeerId, claim: Measurement) -> None:
        """Check another peer's claim and note its loss; ignore claims about unknown or forgotten states."""
        state = self._known.state(Hash(claim.tip))
        if state is None or not self._known.needs(state.tip, sender):
            return
        order, drawn = self._order(state), partial(self._able, rounds=state.rounds)
        problem = refusal(claim, sender, state, order, (lambda peer: False) if self._known.by_all else drawn)
        if not problem:
            losses = tuple(claim.losses) if len(claim.losses) == len(self._sources) else ()
            samples = () if refusal(claim, sender, state, order, drawn) else tuple(claim.samples)
            self._take(state, MeasuredLoss(state.rounds, claim.loss, sender, losses, samples=samples))
            if self._measuring is not None and self._measuring[0] == state and not self._known.by_all:
                self._measuring[1].cancel()
        elif self._dropped.get(sender) != claim:  # every heartbeat repeats the claim
            if len(self._dropped) >= MAX_STRANGERS:
                self._dropped.clear()
            self._dropped[sender] = claim
            self._session.emit(Dropped(sender, "held-out loss", problem))

    def status(self) -> dict[str, Any]:
        """Return the fields `eval_…` of `NodeStatus`: the newest held-out loss, and the progress of our own evaluation."""
        history = self._replica.history
        newest = self._known.newest(
            lambda state: state.rounds <= history.length and history.tip_at(state.rounds) == state.tip
        )
        percent = 100 * self._progress[0] // self._progress[1] if self._progress else None
        if newest is None:
            return {"eval_percent": percent}
        known = {"eval_loss": newest.loss, "eval_losses": self._named(newest), "eval_rounds": newest.rounds}
        return {**known, "eval_by": newest.by, "eval_members": newest.members, "eval_percent": percent}

    def _named(self, measured: MeasuredLoss) -> dict[str, float]:
        """Return the losses of the sources by their names."""
        return dict(zip(self._sources, measured.losses, strict=True)) if measured.losses else {}

    # -- able peers ---------------------------------------------------------------------------------------------------

    def _order(self, state: CommittedState) -> list[PeerId]:
        return drawn_order(state.tip, state.members or self._trainers())

    def _trainers(self) -> list[PeerId]:
        """Return all peers that train in this run, as far as we know."""
        known = [peer for peer, seen in self._membership if seen.heartbeat.role is Role.TRAINER]
        return known if self._trainer is None else [*known, self._session.me]

    def _able(self, peer: PeerId, rounds: int) -> bool:
        """Return True if `peer` has a usable trainer, and has (or soon has) the state after `rounds` rounds in memory."""
        if peer == self._session.me:
            return self._trainer is not None and _at_hand(self._activity.phase, self._activity.why)
        known = self._membership.get(peer)
        if known is None or known.liveness is not Liveness.ALIVE or known.heartbeat.role is not Role.TRAINER:
            return False
        return known.heartbeat.round <= rounds and _at_hand(known.heartbeat.phase, known.heartbeat.why_idle)


def _at_hand(phase: Phase, why: WhyIdle) -> bool:
    return phase not in UNABLE and why is not WhyIdle.TRAINER_RESTARTING
