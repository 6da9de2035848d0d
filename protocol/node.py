"""A peer of a run: the trio shell that keeps heartbeats going, lives one round after another, and catches up.

It wires the pure parts (membership, rounds, chain) to the network, the disk and the trainer.  What each decides is
decided there.  The life of a node:

    restore from disk -> listen -> catch up with the swarm -> round -> commit -> apply -> round -> …
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from protocol.canonical import Malformed
from protocol.catch_up import CatchUp, WrongState
from protocol.doorkeeper import Doorkeeper
from protocol.envelope import MAX_GOSSIP_BYTES, Envelope
from protocol.events import (
    CheckpointWritten,
    Desynced,
    Dropped,
    EvalLoss,
    Event,
    Notice,
    RoundCommitted,
)
from protocol.exchange_plan import chunk_layout
from protocol.exchange_runner import ExchangeAsk, push_plan
from protocol.hashes import Hash
from protocol.history import History
from protocol.identity import Identity, PeerId
from protocol.manifest import SignedManifest
from protocol.membership import Liveness, Membership, beat_interval_s
from protocol.messages import Body, Commit, Goodbye, Heartbeat, Phase, Ready, Role, WhyIdle, decode_body, unpack
from protocol.network import Network, Refused, Verdict
from protocol.outer_state import OuterState
from protocol.parts import NodeSettings, Offload, Parts
from protocol.pulse import Pulse
from protocol.pursuit import Pursuit
from protocol.round_runner import Behind, Outcome, Pause, RoundRunner, Wrong, kept_promise
from protocol.round_terms import Base, RoundSettings
from protocol.serving import Serving
from protocol.store import Store
from protocol.trainer_link import StateMark, TrainerDied, TrainerGaveUp, TrainerLink

TICK_S = 0.25
LISTEN_S = 5.0
"""How long a starting peer listens for the swarm before it takes its own tip for the newest."""
HEAR_S = 30.0
"""How long a founder waits for the first heartbeat of those it is connected to."""
SYNC_AFTER_S = 3.0
"""How long somebody may be ahead before we stop waiting for the commit message and fetch the records."""
CATCH_UP_RETRY_S = 1.0
LINGER_S = 20.0
"""How long a peer that is done stays for those who are not."""
GOSSIP_KINDS = (Heartbeat, Goodbye, Ready)
MAX_READYS = 1024


class Node:
    """Implements `protocol.network.Handlers`.  `attach` a network, then `run`."""

    def __init__(self, identity: Identity, signed: SignedManifest, store: Store, state: OuterState,
                 trainer: TrainerLink | None, settings: NodeSettings, emit: Callable[[Event], None],
                 offload: Offload = trio.to_thread.run_sync) -> None:
        self._identity, self._signed, self._store, self._state = identity, signed, store, state
        self._trainer = trainer if settings.role is Role.TRAINER else None
        self._initialiser = trainer
        self._settings, self._emit, self._offload = settings, emit, offload
        self._history = History(signed.run, store)
        self._membership = Membership(identity.peer_id, trio.current_time())
        self._door = Doorkeeper(signed.manifest, signed.run, settings)
        self._pause = Pause()
        self._readys: dict[PeerId, tuple[Ready, Envelope]] = {}
        self._ahead_since: float | None = None
        self._runner: RoundRunner | None = None
        self._warmed_pid: int | None = None
        self._verified_tip = b""
        self._eval_loss: float | None = None
        self._digest = b""
        self._checkpointing = trio.Lock()
        self._leaving = trio.Event()
        self._finishing = False
        self._network: Network | None = None
        self._nursery: trio.Nursery | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def attach(self, network: Network) -> None:
        """Give the node its network, before `run`."""
        manifest, rounds = self._signed.manifest, self._signed.manifest.rounds
        self._network = network
        settings = RoundSettings(run=self._signed.run, chunks=manifest.chunks, max_tokens=manifest.tokens_per_round,
                                 codec=manifest.codec, min_members=rounds.min_members, max_members=rounds.max_members,
                                 grace_s=rounds.grace_s, eviction_s=rounds.eviction_s, stall_s=rounds.stall_s)
        layout = chunk_layout(manifest.parameters, manifest.chunk_parameters)
        self._parts = Parts(self._identity, self._signed.run, self._signed.raw, manifest, settings, self._settings,
                            self._history, self._store, self._state, layout, self._membership, network,
                            self._trainer, self._offload, self._emit)
        initialise = self._initialiser.initialise if self._initialiser is not None else None
        self._catch_up = CatchUp(manifest, settings, self._history, self._store, self._state, layout, network,
                                 initialise, self._offload, self._emit)
        self._serving = Serving(self._parts)
        self._pursuit = Pursuit(self._parts, self._catch_up)
        self._pulse = Pulse(self._parts, lambda: self._runner.work if self._runner else None)

    async def run(self) -> None:
        """Until `leave`, the goodbye said.  Raises `StoreFull` when the disk is full: nothing is lost by that."""
        assert self._network is not None, "attach a network first"
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._pulse.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._live)
            for peer in self._network.connected():
                self.on_peer_connected(peer)
            await self._leaving.wait()
            nursery.cancel_scope.cancel()
        self._nursery = None
        with trio.move_on_after(2.0):
            await self._pulse.say_goodbye()

    def leave(self) -> None:
        """Stop now, with a goodbye; `run` returns."""
        self._set_phase(Phase.STOPPING, WhyIdle.BUSY, "leaving")
        self._leaving.set()

    def finish(self) -> None:
        """Stop when the running round is complete."""
        self._finishing = True

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
                await self._measure_the_end()
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
        """Hear the swarm first: what we hold may be old."""
        self._set_phase(Phase.STARTING, WhyIdle.CONNECTING, "listening for the swarm")
        with trio.move_on_after(LISTEN_S):
            while not self._membership.live_peers():
                await trio.sleep(TICK_S)
            await trio.sleep(TICK_S * 2)

    async def _may_begin(self) -> bool:
        """At genesis nobody begins before there are enough, nor alone when an invitation named somebody."""
        least = self._parts.rounds.min_members
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
        assert self._network is not None
        if trio.current_time() - self._membership.started > HEAR_S:
            return 0
        return sum(self._membership.get(peer) is None for peer in self._network.connected())

    def _is_trainer(self, peer: PeerId) -> bool:
        known = self._membership.get(peer)
        return known is not None and known.heartbeat.role is Role.TRAINER

    async def _live_round(self) -> Outcome:
        base = Base(self._history.length, self._history.tip, self._history.last)
        kept = kept_promise(await self._offload(self._store.load_promise))
        assert self._nursery is not None
        runner = RoundRunner(self._parts, self._catch_up, base, kept, self._pause, self._set_phase, self._warmed_pid,
                             self._verified_tip == base.tip, self._nursery)
        self._runner = runner
        for peer, (ready, envelope) in list(self._readys.items()):
            if ready.base == base.tip:
                runner.receive(peer, ready, envelope)
        try:
            return await runner.run()
        finally:
            self._runner = None
            self._warmed_pid = runner.warmed_pid
            if runner.work.eval_loss is not None:
                self._eval_loss = runner.work.eval_loss

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
                                      any(m.peer == self._parts.me for m in record.members)))
            result = self._store.open_result(record.round, Hash(record.result_root))
            assert result is not None, "a result is held before its record is committed"
            try:
                await self._catch_up.apply(commit, result)
            except WrongState:
                return
            self._digest = await self._offload(self._state.digest)
        self._pulse.beat_now()
        if self._history.length % self._signed.manifest.checkpoint_interval == 0:
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
        tries, begun = 0, trio.current_time()
        while self._pursuit.ahead() or self._state.rounds < self._history.length:
            if tries:
                await trio.sleep(CATCH_UP_RETRY_S)
            tries += 1
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
        elif now - self._ahead_since > SYNC_AFTER_S:
            self._runner.end(Behind())

    async def _measure_the_end(self) -> None:
        if self._trainer is not None and self._settings.eval_every:
            self._set_phase(Phase.SEEDING, WhyIdle.BUSY, "measuring the held-out loss")
            with suppress(TrainerDied):
                self._eval_loss = await self._trainer.evaluate(self._state.theta)
                self._emit(EvalLoss(self._state.rounds, self._eval_loss))

    async def _linger(self) -> None:
        """Stay until everybody here has what we have."""
        self._set_phase(Phase.SEEDING, WhyIdle.BUSY, "done; staying for those who are not")
        with trio.move_on_after(LINGER_S):
            while any(self._pursuit.rounds_of(peer) < self._history.length for peer in self._membership.live_peers()):
                await trio.sleep(TICK_S)
            await trio.sleep(beat_interval_s(1) + TICK_S)

    # -- what arrives (protocol.network.Handlers) -----------------------------------------------------------------------

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Verdict:
        try:
            sender, body, envelope = unpack(data, self._signed.run, max_bytes=MAX_GOSSIP_BYTES)
        except Malformed as error:
            self._emit(Dropped(forwarder, "gossip", str(error)))
            return Verdict.REJECT
        if not isinstance(body, GOSSIP_KINDS):
            self._emit(Dropped(forwarder, "gossip", f"a {envelope.kind} does not travel by gossip"))
            return Verdict.REJECT
        if sender == self._identity.peer_id or not self._door.may_speak(sender):
            return Verdict.IGNORE
        return Verdict.ACCEPT if self._on_statement(sender, body, envelope) else Verdict.IGNORE

    def _on_statement(self, sender: PeerId, body: Body, envelope: Envelope) -> bool:
        now = trio.current_time()
        if isinstance(body, Heartbeat):
            known = self._membership.get(sender)
            was = known.liveness if known else None
            fresh, events = self._membership.on_heartbeat(sender, body, now)
            if fresh and self._network is not None:
                self._network.remember([a for a in body.addresses if a.endswith(f"/p2p/{sender}")])
                if was is not Liveness.ALIVE and self._runner is not None:
                    self._runner.peer_alive(sender)
        elif isinstance(body, Goodbye):
            fresh, events = self._membership.on_goodbye(sender, body)
            if fresh and self._runner is not None:
                self._runner.peer_dead(sender)
        else:
            assert isinstance(body, Ready)
            fresh, events = self._on_ready(sender, body, envelope), []
        for event in events:
            self._emit(event)
        return fresh

    def _on_ready(self, sender: PeerId, ready: Ready, envelope: Envelope) -> bool:
        known = self._readys.get(sender)
        if known is not None and known[1].raw == envelope.raw:
            return False
        if known is not None and (ready.incarnation, ready.round) < (known[0].incarnation, known[0].round):
            return False
        if self._membership.get(sender) is None and len(self._readys) >= MAX_READYS:
            return False
        self._readys[sender] = (ready, envelope)
        if self._runner is not None:
            self._runner.receive(sender, ready, envelope)
        return True

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind == "hello":
            return self._door.answer_hello(peer, data)
        if self._serving.knows(kind) and (kind == "manifest" or self._door.may_speak(peer)):
            return await self._serving.answer(kind, data)
        if kind == "round" and self._door.may_speak(peer):
            return self._on_round_statement(peer, data)
        if kind == "exchange" and self._door.may_speak(peer):
            return await self._on_exchange_ask(peer, data)
        raise Refused(f"not without a hello: {kind:.40}" if not self._door.may_speak(peer) else "no such question")

    def _on_round_statement(self, peer: PeerId, data: bytes) -> bytes:
        try:
            sender, body, envelope = unpack(data, self._signed.run)
        except Malformed as error:
            self._emit(Dropped(peer, "statement", str(error)))
            raise Refused(str(error)) from error
        if sender != peer and not isinstance(body, Commit):
            raise Refused("a statement of somebody else")
        if self._runner is not None:
            self._runner.receive(sender, body, envelope)
        return b""

    async def _on_exchange_ask(self, peer: PeerId, data: bytes) -> bytes:
        try:
            ask = decode_body(ExchangeAsk, data, max_bytes=256)
        except Malformed as error:
            raise Refused(str(error)) from error
        exchange = await self._runner.exchange_for(Hash(ask.plan)) if self._runner is not None else None
        if exchange is None:
            raise Refused("no such exchange here")
        exchange.asked(peer, ask.chunk)
        return b""

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> memoryview | None:
        plan, runner = push_plan(header), self._runner
        if plan is None or runner is None or not self._door.may_speak(peer):
            return None
        exchange = await runner.exchange_for(plan)
        return await exchange.open_push(peer, header, size) if exchange is not None else None

    async def finish_push(self, peer: PeerId, header: bytes, buffer: memoryview | None) -> None:
        plan, runner = push_plan(header), self._runner
        if plan is None or runner is None:
            return
        exchange = await runner.exchange_for(plan)
        if exchange is not None:
            await exchange.finish_push(peer, header, buffer)
            runner.exchange_moved()

    def on_peer_connected(self, peer: PeerId) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._greet, peer)

    async def _greet(self, peer: PeerId) -> None:
        assert self._network is not None
        refusal = await self._door.greet(self._network, peer)
        self._pulse.beat_now()
        if refusal is not None:
            self._emit(Notice("warning", refusal))

    def on_peer_disconnected(self, peer: PeerId) -> None:
        for event in self._membership.on_disconnected(peer, trio.current_time()):
            self._emit(event)
            if self._runner is not None:
                self._runner.peer_dead(peer)

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

    def status(self) -> dict[str, Any]:
        """What `peer status --json` shows, as far as the protocol knows it."""
        work = self._runner.work if self._runner else None
        traffic = self._network.traffic() if self._network else None
        last = self._history.last
        return {
            "peer": self._identity.peer_id, "name": self._settings.name, "run": self._signed.run.hex(),
            "run_name": self._signed.manifest.name, "role": self._settings.role.value, "phase": self._pulse.phase.value,
            "why_idle": self._pulse.why.value, "why_detail": self._pulse.detail, "round": self._history.length,
            "tip": self._history.tip.hex(), "state_rounds": self._state.rounds, "state_digest": self._digest.hex(),
            "peers": len(self._membership.live_peers()),
            "members": [member.peer for member in last.members] if last else [],
            "tokens": sum(member.tokens for member in last.members) if last else 0,
            "steps": work.steps if work else 0, "inner_steps": self._signed.manifest.rounds.inner_steps,
            "tokens_per_s": work.tokens_per_s if work else 0.0,
            "loss": work.loss if work and work.steps else (last.loss if last else None),
            "eval_loss": work.eval_loss if work and work.eval_loss is not None else self._eval_loss,
            "up_bytes": traffic.up_bytes if traffic else 0, "down_bytes": traffic.down_bytes if traffic else 0,
            "trainer_pid": self._trainer.pid if self._trainer else None, "version": self._settings.version,
            "swarm": self._pulse.neighbours(),
        }
