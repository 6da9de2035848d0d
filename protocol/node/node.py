"""A peer of a run: the trio shell that keeps heartbeats going, lives one round after another, and catches up.

It wires the pure parts (membership, rounds, chain) to the network, the disk and the trainer.  What each decides is
decided there.  The life of a node:

    restore from disk -> listen -> catch up with the swarm -> round -> commit -> apply -> round -> …
"""

from __future__ import annotations

from itertools import count
from typing import Any

import trio

from protocol.audit.ejection import Ejections
from protocol.audit.evidence import Verdict
from protocol.content.serving import Serving
from protocol.events import (
    CheckpointWritten,
    Desynced,
    Notice,
    RoundCommitted,
)
from protocol.membership.handshake import Doorkeeper
from protocol.membership.heartbeats import Pulse
from protocol.membership.liveness import Liveness, Membership, beat_interval_s
from protocol.membership.pace import Pace
from protocol.network.session import Session
from protocol.node.dispatcher import Reception
from protocol.node.evaluator import Evaluator
from protocol.node.round_runner import Behind, Outcome, Pause, RoundRunner, Wrong, kept_promise
from protocol.node.work import Work
from protocol.offload import Offload
from protocol.run.settings import NodeSettings
from protocol.state.replica import Replica
from protocol.sync.catch_up import CatchUp, WrongState
from protocol.sync.following import Pursuit
from protocol.trainer_link import StateMark, TrainerDied, TrainerGaveUp, TrainerLink
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Phase, Role, WhyIdle

TICK_S = 0.25
LISTEN_S = 5.0
"""How long a starting peer listens for the swarm before it takes its own tip for the newest."""
HEAR_S = 30.0
"""How long a founder waits for the first heartbeat of those it is connected to."""
SYNC_AFTER_S = 3.0
"""How long somebody may be ahead before we stop waiting for the commit message and fetch the records."""
LAG_S = 0.5
"""The same for who has no part in the exchange, so that no commit message is on its way to us."""
CATCH_UP_RETRY_S = 1.0
LINGER_S = 20.0
"""How long a peer that is done stays for those who are not."""


class Node:
    """`run` it; what the session's network hears goes to `reception`."""

    def __init__(self, session: Session, replica: Replica, trainer: TrainerLink | None, settings: NodeSettings,
                 offload: Offload = trio.to_thread.run_sync) -> None:
        self._session, self._replica, self._settings, self._offload = session, replica, settings, offload
        self._state, self._store, self._history, self._emit = replica.state, replica.store, replica.history, session.emit
        self._trainer = trainer if settings.role is Role.TRAINER else None
        self._membership = Membership(session.me, trio.current_time())
        self._serials = count()
        self._catch_up = CatchUp(session, replica, offload, trainer.initialise if trainer is not None else None)
        self._pursuit = Pursuit(session, replica, self._membership, self._catch_up)
        self._pace = Pace(replica.manifest.data.sequences_per_step * replica.manifest.data.sequence_length)
        self._pulse = Pulse(session, settings, self._history, self._membership, self._pace,
                            lambda: self._runner.work if self._runner else None)
        self._door = Doorkeeper(replica.manifest, session.run, settings, self._history)
        self._ejections = Ejections(session, replica, offload, self._on_verdict)
        self._evaluator = Evaluator(session, replica, self._membership, self._trainer, self._pulse)
        self.reception = Reception(session, self._membership, self._door, self._pulse, self._ejections, self._evaluator,
                                   Serving(replica, offload))
        self._pause = Pause()
        self._ahead_since: float | None = None
        self._scouting = False
        self._warmed_pid: int | None = None
        self._verified_tip = b""
        self._digest = b""
        self._checkpointing = trio.Lock()
        self._leaving = trio.Event()
        self.goodbye_heard_by: int | None = None
        """Peers that confirmed our goodbye; None before it was said."""
        self._finishing = False
        self._nursery: trio.Nursery | None = None

    @property
    def _runner(self) -> RoundRunner | None:
        return self.reception.runner

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `leave`, the goodbye said.  Raises `StoreFull` when the disk is full: nothing is lost by that."""
        async with trio.open_nursery() as nursery:
            self._nursery = self.reception.nursery = nursery
            await self._ejections.load()
            nursery.start_soon(self._pulse.run)
            nursery.start_soon(self._ejections.announce)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._live)
            for peer in self._session.network.connected():
                self.reception.on_peer_connected(peer)
            await self._leaving.wait()
            nursery.cancel_scope.cancel()
        self._nursery = self.reception.nursery = None
        self.goodbye_heard_by = await self._pulse.say_goodbye()

    def leave(self) -> None:
        """Stop now, with a goodbye; `run` returns."""
        self._set_phase(Phase.STOPPING, WhyIdle.BUSY, "leaving")
        self._leaving.set()

    def finish(self) -> None:
        """Stop when the running round is complete."""
        self._finishing = True
        self._evaluator.stop()

    def pause(self) -> None:
        """Compute nothing until `resume`; follow the swarm all the same."""
        self._pause.begin()
        if self._trainer is not None:
            self._trainer.pause()
        self._set_phase(Phase.PAUSED, WhyIdle.PAUSED, "paused by you; `peer resume` goes on")

    def resume(self) -> None:
        self._pause.end()
        if self._trainer is not None:
            self._trainer.resume()
        if self._pulse.phase is Phase.PAUSED:
            self._set_phase(Phase.COMPUTING, WhyIdle.BUSY, "")

    async def _live(self) -> None:
        self._set_phase(Phase.SYNCING, WhyIdle.FETCHING_STATE, "reading the state from disk")
        await self._restore()
        await self._listen()
        while True:
            await self._reach_tip()
            if self._done():
                if not self._finishing:
                    await self._evaluator.at_the_end(lambda text: self._set_phase(Phase.SEEDING, WhyIdle.BUSY, text))
                await self._linger()
                self.leave()
                return
            if await self._may_begin():
                await self._conclude(await self._live_round())

    def _done(self) -> bool:
        stop = self._settings.stop_after
        return self._finishing or (stop is not None and self._history.length >= stop)

    async def _restore(self) -> None:
        while True:
            try:
                await self._catch_up.restore()
                break
            except TrainerGaveUp as end:
                self._set_phase(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"no trainer any more: {end}"[:200])
                await trio.sleep_forever()  # whoever started the trainer ends this peer, with the reason
            except TrainerDied as death:
                self._set_phase(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"the trainer stopped: {death}"[:200])
            except WrongState:
                break  # the disk's replay is not the chain's; whatever is missing comes from the others
        self._digest = await self._offload(self._state.digest)

    async def _listen(self) -> None:
        """Hear the swarm first: what we hold may be old.  We have listened since the start, whatever else we did."""
        self._set_phase(Phase.STARTING, WhyIdle.CONNECTING, "listening for the swarm")
        settle_s = TICK_S * 2
        with trio.move_on_at(max(self._membership.started + LISTEN_S, trio.current_time() + settle_s)):
            while not self._membership.live_peers():
                await trio.sleep(TICK_S)
            await trio.sleep(settle_s)

    async def _may_begin(self) -> bool:
        """At genesis nobody begins before there are enough, nor alone when an invitation named somebody."""
        least = self._replica.rounds.min_members
        live = self._membership.live_peers()
        here = 1 + sum(self._is_trainer(peer) for peer in live)
        alone = self._settings.wait_for_contact and not live
        unheard = self._unheard()
        if self._history.length > 0 or (here >= least and not alone and not unheard):
            return True
        if unheard:
            self._set_phase(Phase.STARTING, WhyIdle.CONNECTING, f"connected to {unheard} peers, waiting to hear them")
        elif alone:
            self._set_phase(Phase.STARTING, WhyIdle.CONNECTING, "no peer of the invitation answers yet")
        else:
            self._set_phase(Phase.STARTING, WhyIdle.WAITING_FOR_PEERS,
                            f"waiting for {least - here} more peers ({here} of {least})")
        await trio.sleep(TICK_S)
        return False

    def _unheard(self) -> int:
        """How many peers are connected whose first heartbeat is not here: they may be far ahead."""
        if trio.current_time() - self._membership.started > HEAR_S:
            return 0
        return sum(self._membership.get(peer) is None for peer in self._session.network.connected())

    def _is_trainer(self, peer: PeerId) -> bool:
        known = self._membership.get(peer)
        return known is not None and known.heartbeat.role is Role.TRAINER

    async def _live_round(self) -> Outcome:
        base = self._replica.base
        kept = kept_promise(await self._offload(self._store.load_promise))
        assert self._nursery is not None
        runner = RoundRunner(self._session, self._replica, self._settings, self._membership, self._trainer, self._offload,
                             self._serials, self._pace, self._catch_up, base, kept, self._pause, self._set_phase,
                             self._ejections.convict, self._warmed_pid, self._verified_tip == base.tip, self._nursery)
        self.reception.open_round(runner)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._evaluator.during_round, runner.work.training)
                outcome = await runner.run()
                nursery.cancel_scope.cancel()
            return outcome
        finally:
            self.reception.close_round()
            self._warmed_pid = runner.warmed_pid

    async def _conclude(self, outcome: Outcome) -> None:
        self._ahead_since = None
        if isinstance(outcome, Commit):
            await self._advance(outcome)
        elif isinstance(outcome, Wrong):
            self._emit(Desynced(self._history.length, self._digest.hex(), outcome.digest.hex()))
            await self._repair()

    async def _advance(self, commit: Commit) -> None:
        """The record to disk, then its result into the state."""
        record = commit.record
        self._set_phase(Phase.APPLYING, WhyIdle.COMMITTING, f"applying round {record.round}")
        async with self._checkpointing:
            await self._offload(self._history.append, commit)
            self._emit(RoundCommitted(record.round, self._history.tip.hex(), [m.peer for m in record.members],
                                      sum(m.tokens for m in record.members), record.loss,
                                      any(m.peer == self._session.me for m in record.members)))
            result = self._store.open_result(record.round, record.fragment, Hash(record.result_root))
            assert result is not None, "a result is held before its record is committed"
            try:
                await self._catch_up.apply(commit, result)
            except WrongState:
                return
            self._digest = await self._offload(self._state.digest)
        if self._history.length % self._replica.manifest.checkpoint_interval == 0:
            assert self._nursery is not None
            self._nursery.start_soon(self._checkpoint)

    async def _checkpoint(self) -> None:
        """Write the state while the trainer computes: nobody changes it before the next commit."""
        async with self._checkpointing:
            rounds = self._state.rounds
            leaves = await self._offload(self._state.leaves)
            await self._offload(self._store.write_checkpoint, rounds, leaves, self._state.view)
            await self._offload(self._store.prune)
        self._emit(CheckpointWritten(rounds, self._state.size_bytes))

    async def _repair(self) -> None:
        """Our digest is not the round's: from the disk again; and if that gives the same, from the others."""
        before = self._digest
        async with self._checkpointing:
            await self._restore()
            if self._digest == before:
                await self._catch_up.fetch_newest_checkpoint(self._membership.live_peers(), at_least=0)
        self._verified_tip = self._history.tip

    async def _reach_tip(self) -> None:
        """Follow those ahead of us, and bring the state to the end of the chain."""
        seen, begun = (-1, -1), trio.current_time()
        while self._pursuit.ahead() or self._state.rounds < self._history.length or (
                self._history.length == 0 and self._pursuit.hopes()):
            if seen == (self._history.length, self._state.rounds):
                await trio.sleep(CATCH_UP_RETRY_S)  # that led nowhere; a swarm that is fast is run after without a rest
            seen = self._history.length, self._state.rounds
            self._set_phase(Phase.SYNCING, WhyIdle.FETCHING_STATE, "catching up with the swarm")
            async with self._checkpointing:
                await self._pursuit.follow()
                try:
                    await self._catch_up.replay(self._membership.live_peers())
                except (WrongState, TrainerDied) as error:
                    self._emit(Notice("warning", f"catching up again: {error}"))
                    await self._restore()
                self._digest = await self._offload(self._state.digest)
                await self._pursuit.give_up_what_is_lost(begun)

    def _on_verdict(self, verdict: Verdict) -> None:
        """A peer is proven to have lied: it is not heard, waited for or served any more."""
        self._membership.bar(verdict.peer)
        self._session.network.forget(verdict.peer)
        if self._runner is not None:
            self._runner.on_verdict(verdict)

    # -- the clock ----------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            now = trio.current_time()
            before = {peer: known.liveness for peer, known in self._membership}
            for event in self._membership.tick(now):
                self._emit(event)
            self._tell_exchange(before)
            self._notice_ahead(now)
            await trio.sleep(TICK_S)

    def _tell_exchange(self, before: dict[PeerId, Liveness]) -> None:
        for peer, known in self._membership:
            if self._runner is not None and known.liveness is not before.get(peer):
                if known.liveness is not Liveness.ALIVE:
                    self._runner.peer_dead(peer)

    def _notice_ahead(self, now: float) -> None:
        """A round that the swarm finished without us is not worth going on with."""
        if self._runner is None or self._runner.deciding or not self._pursuit.ahead():
            self._ahead_since = None
        elif self._ahead_since is None:
            self._ahead_since = now
        elif now - self._ahead_since > (SYNC_AFTER_S if self._runner.engaged else LAG_S) and not self._scouting:
            assert self._nursery is not None
            self._scouting = True
            self._nursery.start_soon(self._scout, self._runner)

    async def _scout(self, runner: RoundRunner) -> None:
        """Anybody can claim to be ahead: the round ends only for a certified record."""
        try:
            if await self._pursuit.scout() and not runner.deciding:
                runner.end(Behind())
        finally:
            self._scouting = False

    async def _linger(self) -> None:
        """Stay until everybody here has what we have."""
        self._set_phase(Phase.SEEDING, WhyIdle.BUSY, "done; staying for those who are not")
        with trio.move_on_after(LINGER_S):
            while any(self._pursuit.rounds_of(peer) < self._history.length for peer in self._membership.live_peers()):
                await trio.sleep(TICK_S)
            await trio.sleep(beat_interval_s(1) + TICK_S)

    # -- what it looks like -------------------------------------------------------------------------------------------

    def _set_phase(self, phase: Phase, why: WhyIdle, detail: str) -> None:
        if self._leaving.is_set() or (self._pause.on and phase not in (Phase.PAUSED, Phase.STOPPING)):
            return
        self._pulse.set_phase(phase, why, detail)

    @property
    def rounds(self) -> int:
        """Rounds committed."""
        return self._history.length

    @property
    def phase(self) -> Phase:
        """What it does now."""
        return self._pulse.phase

    @property
    def tip(self) -> Hash:
        return self._history.tip

    @property
    def state_mark(self) -> StateMark:
        """How far the outer state is, and its digest."""
        return StateMark(self._state.rounds, Hash(self._digest))

    def tip_at(self, rounds: int) -> Hash:
        return self._history.tip_at(rounds)

    def commit_at(self, round: int) -> Commit:
        return self._history.commit_at(round)

    def _round_left_s(self, work: Work | None) -> float | None:
        """Seconds until our last inner step of this round; None when we do not train now, or know no rate yet."""
        if work is None or self._pulse.phase is not Phase.COMPUTING:
            return None
        return self._pace.left_s(self._replica.manifest.rounds.inner_steps - work.steps)

    def status(self) -> dict[str, Any]:
        """What `peer status --json` shows, as far as the protocol knows it."""
        work = self._runner.work if self._runner else None
        traffic = self._session.network.traffic()
        last = self._history.last
        return {
            "peer": self._session.me, "name": self._settings.name, "run": self._session.run.hex(),
            "run_name": self._replica.manifest.name, "role": self._settings.role.value, "phase": self._pulse.phase.value,
            "why_idle": self._pulse.why.value, "why_detail": self._pulse.detail, "round": self._history.length,
            "tip": self._history.tip.hex(), "state_rounds": self._state.rounds, "state_digest": self._digest.hex(),
            "peers": len(self._membership.live_peers()),
            "members": [member.peer for member in last.members] if last else [],
            "tokens": sum(member.tokens for member in last.members) if last else 0,
            "steps": work.steps if work else 0, "inner_steps": self._replica.manifest.rounds.inner_steps,
            "tokens_per_s": self._pulse.tokens_per_s, "round_left_s": self._round_left_s(work),
            "loss": work.loss if work and work.steps else (last.loss if last else None),
            **self._evaluator.status(), "up_bytes": traffic.up_bytes, "down_bytes": traffic.down_bytes,
            "trainer_pid": self._trainer.pid if self._trainer else None, "version": self._settings.version,
            "swarm": self._pulse.neighbours(),
        }
