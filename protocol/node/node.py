"""A peer of a run and its interface for the surrounding program: run, query, pause and stop the peer.

The module wires the components of the protocol to the network, the disk and the trainer.  The components make all decisions.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import trio

from protocol.audit.ejection import Ejections
from protocol.blobs.store import Shelves, StoreShelf
from protocol.blobs.swarm import Swarm
from protocol.chain.base import fragment_of
from protocol.chain.progress import data_total, rate_of
from protocol.chain.replica import Replica, ReplicaShelf, Serving
from protocol.corpora.fetcher import BlockOrigin
from protocol.corpora.store import RunCorpora
from protocol.events.status import NodeStatus
from protocol.membership.activity import Activity, WorkPermit
from protocol.membership.handshake import Handshake
from protocol.membership.heartbeats import FailureDetector, Heartbeats, Pace
from protocol.membership.liveness import Membership
from protocol.node.commands import Extensions, LineProbe
from protocol.node.contributor import Contributor, OwnTrainer, Work
from protocol.node.copies import CopyCensus
from protocol.node.corpora import LeasedBlocks
from protocol.node.evaluator import Evaluator
from protocol.node.exchanges import ResultSources
from protocol.node.initial_weights import INITIAL, InitialWeights
from protocol.node.lifecycle import Departure, Life, LivenessTicker, NodeService, RunEnd, StartupBarrier
from protocol.node.receipts import ReceiptAudits
from protocol.node.round_parts import RoundPeers, VoteLog
from protocol.node.rounds import Rounds
from protocol.node.router import MessageRouter, RateLimitedEmitter
from protocol.node.state import StateKeeper, shown_while_it_starts
from protocol.offload import Offload, charged, one_at_a_time
from protocol.rollouts.rollouts import RolloutCounter, RolloutPeers, Rollouts
from protocol.rollouts.trainer import SharedTrainer
from protocol.run.sections import FILE_CHUNK_BYTES
from protocol.run.settings import NodeSettings
from protocol.sync.catch_up import CatchUp
from protocol.sync.fetchers import RunFiles, StateFetcher, paths_of
from protocol.sync.following import Following
from protocol.sync.fork_choice import YOUNG_ROUNDS, ForkChoice
from protocol.sync.remote_chains import Claims
from protocol.tasks.commands import TaskSetCommands
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import RolloutLink, StateMark, TrainerLink
from protocol.transport.handlers import Guard
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.messages import Commit
from protocol.wire.presence import Phase, Role
from protocol.wire.rollouts import ROLLOUT_CHUNK_BYTES, TASK_CHUNK_BYTES


class Node:
    """A peer of a run; call `run`.  The session's network delivers messages to `router`.

    files: the run's files.  tasks: the crowd's sets of tasks; None in a run without rollouts.
    line_probe: measures the lines.  permit: suspend it to compute nothing, but follow the swarm.
    """

    def __init__(
        self,
        session: Session,
        replica: Replica,
        trainer: TrainerLink | None,
        settings: NodeSettings,
        offload: Offload = trio.to_thread.run_sync,
        permit: WorkPermit | None = None,
    ) -> None:
        decoding, offload = charged(one_at_a_time(offload)), charged(offload)
        self._counting = counting = RolloutCounter(session.me, RateLimitedEmitter(session.emit))
        session = replace(session, emit=counting)
        self._guard = guard = Guard(session)
        self._session, self._replica, self._settings = session, replica, settings
        self._state, self._history = replica.state, replica.history
        self._trainer = trainer if settings.role is Role.TRAINER else None
        self._process = trainer if settings.role is not Role.SEED else None
        self._membership = membership = Membership(session.me, trio.current_time(), self._history)
        self._activity = activity = Activity(session.emit, permit)
        self.permit = activity.permit
        data = replica.manifest.data
        self._pace = Pace(data.sequences_per_step * data.row_tokens, self._generating)
        self._handshake = Handshake(session, replica.manifest, settings, self._history, activity)
        self._evaluator = Evaluator(session, replica, membership, self._trainer, activity)
        initialise = partial(self._initialise, trainer) if trainer is not None and replica.manifest.genesis is None else None
        self._claims = claims = Claims(replica, membership)
        paths = paths_of(replica.manifest, replica.store.files)
        self._corpora = RunCorpora(replica.manifest, paths, replica.store.disk, settings.corpora)
        self._shelves = shelves_of(replica, self._corpora)
        self._offload, self._swarm = (
            offload,
            Swarm(session, membership, self._shelves.find, offload, self._history.is_active, withheld(replica)),
        )
        networks = settings.corpora.mirror_networks
        self.files = RunFiles(session, replica.manifest, replica.store.files, self._swarm, offload, networks)
        self._census = CopyCensus(
            session, self._corpora, membership, offload, lambda: self.files.are_here, self._has_start_weights
        )
        self._blocks = self._make_blocks(trainer)
        self.line_probe = LineProbe(session, replica, membership, self._swarm)
        fetcher = StateFetcher(session, replica, offload, self._swarm)
        self._catch_up = CatchUp(session, replica, offload, fetcher, initialise)
        anchor = settings.anchor or replica.store.chosen()
        choice = ForkChoice(replica, membership, activity, anchor)
        self._following = Following(session, guard, self._catch_up, choice, claims)
        self._ejections = Ejections(session, guard, replica, membership, offload)
        self._keeper = StateKeeper(session, replica, offload, activity, self._catch_up, self._following, claims)
        self._tasks = TaskSets(session, guard, replica, offload, self._swarm) if replica.manifest.rl is not None else None
        self.tasks = TaskSetCommands(session, self._tasks) if self._tasks is not None else None
        self.extensions = Extensions(session, guard, replica, offload)
        self._rollouts = self._make_rollouts(trainer)
        self._initial = initial = self._make_initial_weights(fetcher)
        self.audits = ReceiptAudits(session, guard, replica, membership, activity, offload, self._trainer)
        own_trainer = OwnTrainer(self._trainer, self._pace, activity, self._blocks, initial, self.audits.keep)
        self._contributor = Contributor(session, replica, settings, offload, own_trainer, self.extensions, self._rollouts)
        self._rounds = rounds = self._make_rounds(fetcher)
        self._ejections.listeners.append(rounds.on_verdict)
        self._heartbeats = Heartbeats(
            session, settings, self._history, membership, self._pace, activity, lambda: rounds.work
        )
        self._detector = detector = FailureDetector(session, guard, membership, rounds)
        self._ticker = LivenessTicker(replica.rounds, detector, activity, self._following, rounds, settings.boot_clock)
        self.router = self._make_router(decoding)
        self._departure = Departure(session, settings, self._history, membership, activity, self._census)
        self._life = self._make_life()
        self.permit.watch(self._choose_whether_to_serve)
        self.goodbye_heard_by: int | None = None
        """Number of peers that confirmed our goodbye; None before we have said it."""

    async def _initialise(self, trainer: TrainerLink, theta: memoryview) -> None:
        """Have the trainer write the initial parameters; it may still be training for a round of another branch."""
        await self._contributor.drop_ahead()
        await shown_while_it_starts(trainer, self._activity, partial(trainer.initialise, theta))

    def _make_blocks(self, trainer: TrainerLink | None) -> LeasedBlocks | None:
        """Build the fetcher of blocks; return None in a run without corpora, or without a folder for them."""
        session, settings = self._session, self._settings
        if not self._replica.manifest.data.corpora or settings.corpora.blocks is None:
            return None
        blocks = LeasedBlocks(session, self._corpora, self.files, self._swarm, self._census, self._activity, self._offload)
        if trainer is not None:
            trainer.report_missing(blocks.ask)
        return blocks

    def _make_initial_weights(self, fetcher: StateFetcher) -> InitialWeights | None:
        """Build the keeper of the weights with which preferences are compared; return None in other runs."""
        session, replica, folder = self._session, self._replica, self._settings.corpora.blocks
        if not replica.manifest.initial_bytes or folder is None:
            return None
        return InitialWeights(session, replica, fetcher, self._offload, folder.with_name(INITIAL))

    def _has_start_weights(self) -> bool:
        """Return True if the weights with which the run compares its own are here, or do not exist yet.

        Blocking.
        """
        manifest = self._replica.manifest
        if manifest.rl is None:
            return 0 in self._replica.store.checkpoints.of(self._history)
        reference = self._rollouts.selection.reference if self._rollouts is not None else None
        is_due = self._history.length > manifest.rl.warm_rounds
        return not is_due or (reference is not None and reference.path is not None)

    def _make_rollouts(self, trainer: TrainerLink | None) -> Rollouts | None:
        """Build this peer's work with rollouts; return None in a run without rollouts."""
        if self._tasks is None:
            return None
        session, replica = self._session, self._replica
        link = trainer if isinstance(trainer, RolloutLink) else None
        shared = SharedTrainer(session, replica, self._keeper, link, self._tasks, self._activity, self._settings)
        peers = RolloutPeers(self._membership, self._ejections)
        return Rollouts(session, self._guard, replica, self._offload, self._swarm, peers, shared)

    def _generating(self) -> float:
        """Return a rollout peer's speed of generation (tokens a second); 0 in other roles."""
        return self._counting.tokens_per_s if self._settings.role is Role.ROLLOUT else 0.0

    def _make_router(self, decoding: Offload) -> MessageRouter:
        session, replica, membership = self._session, self._replica, self._membership
        router = MessageRouter(session, self._guard, decoding, self._handshake, self._ejections, membership)
        router.add(self._handshake, self._swarm, self._detector, self._rounds, self._ejections, self._evaluator)
        router.add(Serving(replica, self._offload), self.extensions, self._census, self.audits)
        router.add(*(part for part in (self._rollouts, self._tasks) if part is not None))
        return router

    def _make_rounds(self, fetcher: StateFetcher) -> Rounds:
        session, replica, offload, membership = self._session, self._replica, self._offload, self._membership
        peers = RoundPeers(session, self._guard, self._handshake, membership, self._ejections, self._activity)
        votes = VoteLog(session, replica, offload, membership, is_copy=self._settings.is_copy)
        sources = ResultSources(fetcher, membership, self._activity)
        return Rounds(peers, replica, offload, votes, sources, self._contributor, self.audits)

    def _make_life(self) -> Life:
        session, replica, settings = self._session, self._replica, self._settings
        membership, activity, keeper = self._membership, self._activity, self._keeper
        return Life(
            self.router,
            StartupBarrier(session, replica, settings, membership, self._claims, activity, self.files),
            keeper,
            self._rounds,
            self._evaluator,
            self._departure,
            RunEnd(session, replica, activity, keeper, self.extensions, self._evaluator, self._rollouts),
        )

    async def run(self) -> None:
        """Run until `leave`, then say goodbye.  Raises `StoreFull` if the disk is full; no data is lost then."""
        memories = (self._ejections, self._keeper, self.extensions)
        services: list[NodeService] = [self._heartbeats, self._ejections, self._ticker, self._swarm]
        services += [self.files, self.extensions, self._census]
        services += [part for part in (self._blocks, self._initial, self._tasks, self._rollouts) if part is not None]
        await self._life.run(memories, services)
        self.goodbye_heard_by = await self._heartbeats.say_goodbye()

    def leave(self, *, at_once: bool = False) -> None:
        """Say goodbye and let `run` return, once others have the data that only this peer has; a second call stops now.

        at_once: True to stop now.
        """
        self._departure.leave(at_once=at_once)

    def finish(self) -> float:
        """Stop once the running round is complete or cannot be completed; return the longest time that this takes (s)."""
        self._life.finish(self._round_left_s(self._rounds.work) or 0.0)
        return self._departure.left_s or 0.0

    def note_load(self, busy: str) -> None:
        """Show that our trainer is late because this computer is too busy.  busy: a sentence; empty if it is not."""
        self._activity.note_load(busy)

    def serve_while_paused(self, on: bool) -> None:
        """Choose whether to serve chunks to other peers while we rest."""
        self._settings = replace(self._settings, serve_while_paused=on)
        self._choose_whether_to_serve()

    def _choose_whether_to_serve(self) -> None:
        self._swarm.serve(self._settings.serve_while_paused or self.permit.is_granted)

    @property
    def rounds(self) -> int:
        """Number of committed rounds."""
        return self._history.length

    @property
    def phase(self) -> Phase:
        """Present phase of this peer."""
        return self._activity.phase

    @property
    def tip(self) -> Hash:
        """The hash of the newest record."""
        return self._history.tip

    @property
    def state_mark(self) -> StateMark:
        """Rounds and digest of the outer state."""
        return self._keeper.mark

    def tip_at(self, rounds: int) -> Hash:
        """Return the tip after `rounds` rounds, at most the number of committed rounds."""
        return self._history.tip_at(rounds)

    def commit_at(self, round: int) -> Commit:
        """Return the commit of a round below `rounds`."""
        return self._history.commit_at(round)

    def _round_left_s(self, work: Work | None) -> float | None:
        """Return the time until our last inner step of this round (s); None if we do not train now or know no rate yet."""
        if work is None or self._activity.phase is not Phase.COMPUTING:
            return None
        return self._pace.left_s(work.wanted - work.steps)

    async def weights(self) -> dict[str, Any]:
        """Return the content of `peer weights --json`: transfers under way, and the blobs that we serve."""
        coming = [told.to_fields() for told in self._swarm.transfers()]
        holdings = await self._offload(self._shelves.holdings)
        return {
            "coming": [{key: value for key, value in fields.items() if key != "event"} for fields in coming],
            "blobs": [asdict(holding) for holding in holdings if self._swarm.gives(Hash(bytes.fromhex(holding.blob)))],
        }

    def status(self) -> NodeStatus:
        """Return the part of `peer status` that the protocol knows."""
        round, manifest = self._history.length, self._replica.manifest
        work, ahead = self._rounds.work or self._contributor.ahead_in(round), self._contributor.ahead_in(round + 1)
        traffic = self._session.network.traffic()
        last, swarm = self._history.last, self._heartbeats.neighbours(self._life.pace.counted)
        swarm = [self.audits.shown(each) for each in swarm]
        is_young = self._replica.rounds.founders is None and self._history.length < YOUNG_ROUNDS
        final = 0 if is_young else self._history.final  # a young history may still be replaced whole
        here = {self._session.me, *(known.peer for known in swarm if known.liveness == "alive")}
        roster, rate = self._history.roster, self._heartbeats.tokens_per_s
        electorate, progress = roster.electorate, roster.progress
        figures = self._process.figures if self._process else None
        learning_rate, rate_phase = rate_of(manifest, progress)
        return NodeStatus(
            peer=self._session.me,
            name=self._settings.name,
            team=self._settings.team,
            run=self._session.run.hex(),
            run_name=manifest.name,
            role=self._settings.role.value,
            phase=self._activity.phase.value,
            why_idle=self._activity.why.value,
            why_detail=self._activity.detail,
            finishing=self._departure.waits_for,
            finishing_left_s=self._departure.left_s,
            round=round,
            tip=self._history.tip.hex(),
            final_rounds=final,
            final_tip="".join(tip.hex() for tip in self._history.tips(final, 1)),
            provisional_rounds=round - self._history.final,
            unconfirmed_by=sorted(self._history.roster.finality.missing - here),
            electors=list(electorate.electors),
            founders_vote_until=electorate.founders_vote_until(roster.contributors or electorate.electors),
            state_rounds=self._state.rounds,
            state_digest=self.state_mark.digest.hex(),
            peers=len(self._membership.live_peers()),
            members=[member.peer for member in last.members] if last else [],
            tokens=sum(member.tokens for member in last.members) if last else 0,
            steps=work.steps if work else 0,
            inner_steps=work.wanted if work and work.wanted else manifest.steps_of(round),
            fragment=fragment_of(round, manifest.fragments),
            fragments=manifest.fragments,
            ahead_steps=ahead.steps if ahead else 0,
            ahead_inner_steps=ahead.wanted if ahead else 0,
            tokens_per_s=rate,
            round_left_s=self._round_left_s(work),
            loss=work.loss if work and work.steps else (last.loss if last else None),
            losses=self._replica.named_losses(last) if last else {},
            **self._evaluator.status(),
            up_bytes=traffic.up_bytes,
            down_bytes=traffic.down_bytes,
            trainer_pid=self._process.pid if self._process else None,
            device=figures.device if figures is not None else "",
            mfu=figures.utilisation(rate) if figures is not None and work and work.steps else None,
            busy_share=self._process.busy_share if self._process else None,
            joules_per_token=self._process.joules_per_token if self._process else None,
            version=self._settings.version,
            swarm=swarm,
            organiser=manifest.organiser,
            goal_unit=progress.goal.unit.value,
            goal_total=progress.goal.total,
            goal_done=progress.done,
            data_total=(total_of_data := data_total(manifest, progress)),
            goal_left_s=self._life.pace.left_s(progress, total_of_data),
            run_ended=self.extensions.has_ended,
            run_tokens=progress.tokens,
            run_tokens_per_s=self._life.pace.tokens_per_s,
            learning_rate=learning_rate,
            rate_phase=rate_phase.value,
            clock_skew=self._handshake.clocks.skew,
            block_bytes=(fetched := self._blocks.tally() if self._blocks is not None else {}),
            copies=self._census.status(fetched.get(BlockOrigin.COPY.value, 0)),
            rollouts=self._counting.status(self._state.rounds, self._rollouts.waiting)
            if self._rollouts is not None
            else None,
        )


def withheld(replica: Replica) -> frozenset[Hash]:
    """Return the files of a frozen model that peers do not give to each other."""
    base = replica.manifest.base
    return frozenset(file.name for file in base.files) if base is not None and not base.share else frozenset()


def shelves_of(replica: Replica, corpora: RunCorpora) -> Shelves:
    """Return the shelves of all blobs that a peer serves."""
    store = replica.store
    return Shelves(
        ReplicaShelf(replica),
        StoreShelf(store.rollouts, "rollouts", ROLLOUT_CHUNK_BYTES),
        StoreShelf(store.tasks, "tasks", TASK_CHUNK_BYTES),
        StoreShelf(store.files, "file", FILE_CHUNK_BYTES),
        corpora,
        StoreShelf(store.reference, "reference", replica.manifest.checkpoint_chunk_bytes),
    )
