"""Several round machines on a table: messages are delivered, lost, doubled and delayed as a seeded generator says.

No tasks, no clock: time is a number that the test moves.  What an honest shell does with effects is done here in the
simplest way: votes are kept in a dict, exchanges finish at once (each member may assemble another version of a
chunk), results are held as soon as somebody else holds them.

A puppet is a peer that looks alive and whose machine is told nothing: the test speaks for it.  Of all others everything that
they say is compared with what they said before and with what they kept: see `Witness`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from protocol.agreement.ballot import Ballot
from protocol.agreement.events import (
    Arrived,
    AuditFailed,
    BeginExchange,
    Committed,
    ExchangeDone,
    Forward,
    ObtainResult,
    PeerView,
    Persist,
    ResultObtained,
    RoundEffect,
    RoundEvent,
    Send,
    StateHashed,
    Tick,
    View,
)
from protocol.agreement.machine import RoundMachine
from protocol.allreduce.assignment import plan_hash
from protocol.chain.base import Base, RoundSettings
from protocol.chain.records import genesis_tip, is_full, record_hash
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    ChunkEntry,
    ChunkResult,
    Commit,
    Plan,
    PrevoteCertificate,
    Proposal,
    Provenance,
    Ready,
    RecordProposal,
    Step,
    ViewChange,
    Vote,
    VoterState,
    mask_of,
    unpack,
)
from tests.protocol.council import CHUNKS, RUN, SETTINGS, a_ready, a_view_change, base_of, peers, signature_of


class Witness:
    """Raises AssertionError as soon as an honest peer breaks a rule, or two full records are certified."""

    def __init__(self) -> None:
        self._entered: dict[PeerId, int] = {}
        """The highest attempt that a peer took part in."""
        self._votes: dict[tuple[PeerId, int, Step], tuple[list[str], bytes]] = {}
        self._full: dict[bytes, None] = {}

    def hear(self, peer: PeerId, body: ViewChange | Vote, kept: VoterState | None) -> None:
        """`peer` is about to say this.  kept: what is on its disk."""
        assert (kept.attempt if kept is not None else 0) == body.attempt, "what binds a voter is on disk before it is said"
        assert body.attempt >= self._entered.get(peer, 0), "nobody takes part in an earlier attempt"
        self._entered[peer] = body.attempt
        if isinstance(body, ViewChange):
            votes_alone = not body.held  # members without electors may go on without a lock of the dead
            assert kept is None or kept.lock is None or body.lock is not None or votes_alone, "a lock is told"
            return
        assert kept is not None
        vote = (body.absent, body.record_hash)
        assert (kept.absent, kept.first if body.step is Step.FIRST else kept.second) == vote
        assert self._votes.setdefault((peer, body.attempt, body.step), vote) == vote, "nobody votes twice"
        if body.step is Step.SECOND:
            lock = kept.reduced if body.absent else kept.lock
            assert lock is not None and record_hash(lock.record) == body.record_hash, "a second vote locks"

    def see(self, commit: Commit) -> None:
        """This record is certified."""
        if is_full(commit.certificate):
            self._full[record_hash(commit.record)] = None
        assert len(self._full) <= 1, "two records were certified by the whole electorate"


def settings(min_members: int = 1) -> RoundSettings:
    return replace(SETTINGS, min_members=min_members, max_members=16)


@dataclass
class Seat:
    me: PeerId
    machine: RoundMachine
    alive: bool = True
    kept: VoterState | None = None
    exchanged: set[Hash] = field(default_factory=set)
    committed: Commit | None = None


class Parliament:
    """`electors` of the previous record, and `joiners` that are only ready.  `versions`: members differ in chunks.

    near: who is not on the tip yet, as everybody sees it, and about to be.  left: who said goodbye.  puppets: and what they
    have heard, with the sender.
    """

    def __init__(self, electors: int, joiners: int = 0, *, seed: int = 0, loss: float = 0.0, versions: bool = False) -> None:
        self.random = Random(seed)
        self.loss, self.versions = loss, versions
        self.now = 0.0
        everybody = peers(electors + joiners)
        self.near: set[PeerId] = set()
        self.left: set[PeerId] = set()
        self.puppets: dict[PeerId, list[tuple[PeerId, Body]]] = {}
        self.witness = Witness()
        self._readys: dict[PeerId, Ready] = {}
        self.base = base_of(everybody[:electors]) if electors else Base(0, 0, genesis_tip(RUN), ())
        self.seats = {peer: self._seat(peer, None) for peer in everybody}
        self.lie: bytes | None = None
        """The hash of a chunk that was proven wrong: nobody averages to it again."""
        self.refused: set[bytes] = set()
        """Results that nobody can account for."""
        self.starved: set[PeerId] = set()
        """Who gets no results."""
        self.lost: set[PeerId] = set()
        """Whose chunks the next member averages."""
        self.queue: list[tuple[PeerId, PeerId, Body]] = []
        self.silent_since: dict[PeerId, float] = {}
        self.performed: list[RoundEffect] = []

    def _seat(self, peer: PeerId, kept: VoterState | None) -> Seat:
        machine = RoundMachine(peer, settings(), self.base, self.now, kept)
        machine.handle(StateHashed(ZERO_HASH), {}, self.now)
        return Seat(peer, machine, kept=kept)

    # -- what happens -------------------------------------------------------------------------------------------------

    def ready(self, *peers: PeerId, state_digest: Hash = ZERO_HASH, life: int = 1) -> None:
        """These peers say READY in their `life`th life, and everybody alive hears it."""
        for peer in peers or tuple(self.seats):
            self.say_ready(peer, *self.seats, state_digest=state_digest, life=life)

    def say_ready(self, peer: PeerId, *to: PeerId, state_digest: Hash = ZERO_HASH, life: int = 1) -> None:
        """This peer says READY, and of those in `to` everybody alive hears it."""
        root = chunk_hash(peer.encode() + bytes([life]))
        statement = self._readys[peer] = a_ready(
            base=self.base.tip,
            round=self.base.round,
            incarnation=life,
            serial=0,
            tokens=1000,
            root=root,
            state_digest=state_digest,
        )
        for seat in (self.seats[each] for each in to):
            if seat.alive:
                self.hand_over(peer, seat, statement)

    def crash(self, peer: PeerId) -> None:
        self.seats[peer].alive = False
        self.silent_since[peer] = self.now

    def restart(self, peer: PeerId) -> None:
        """Back with its disk: what it is bound by.  It hears the READYs of the others."""
        seat = self.seats[peer] = self._seat(peer, self.seats[peer].kept)
        self.silent_since.pop(peer, None)
        for other, statement in self._readys.items():
            if other != peer and self.seats[other].alive:
                self.hand_over(other, seat, statement)

    def forget_readys(self) -> None:
        """Who restarts from now on hears only the READYs that are said from now on."""
        self._readys.clear()

    def leave(self, peer: PeerId) -> None:
        """It says goodbye, and is gone."""
        self.left.add(peer)
        self.crash(peer)

    def make_puppet(self, peer: PeerId) -> list[tuple[PeerId, Body]]:
        """From now on the test speaks for it.  Returns what it hears."""
        return self.puppets.setdefault(peer, [])

    def say(self, sender: PeerId, body: Body, *to: PeerId) -> None:
        """The test puts these words into the mouth of `sender`."""
        self.queue.extend((sender, peer, body) for peer in to)

    def run(self, seconds: float, *, step: float = 0.5) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += step
            for seat in list(self.seats.values()):
                if seat.alive:
                    self.tell(seat, Tick())
            self.deliver()

    def deliver(self) -> None:
        """Deliver what is under way in any order; what is sent meanwhile too, up to a bound."""
        for _ in range(2000):
            if not self.queue:
                return
            sender, to, body = self.queue.pop(self.random.randrange(len(self.queue)))
            if self.random.random() < self.loss:
                continue
            if self.random.random() < self.loss:
                self.queue.append((sender, to, body))
            if self.seats[to].alive:
                self.hand_over(sender, self.seats[to], body)

    def view_change(self, attempt: int, **changes: Any) -> ViewChange:
        """A view change of the whole electorate that names nothing."""
        return a_view_change(attempt, on=self.base, **changes)

    def call(self) -> None:
        """Everybody is ready, and has called attempt 0."""
        self.ready()
        self.pass_on(ViewChange)

    def outlives(self, seconds: float = 60) -> None:
        """Everybody who is alive comes to one record."""
        self.run(seconds)
        assert not self.undecided() and len(self.records()) == 1

    def pass_on(self, *kinds: type[Body]) -> list[Body]:
        """Deliver the statements of these kinds that are under way, and nothing that follows from them.  Returns them."""
        passed = [each for each in self.queue if isinstance(each[2], kinds)]
        self.queue = [each for each in self.queue if not isinstance(each[2], kinds)]
        for sender, to, body in passed:
            if self.seats[to].alive:
                self.hand_over(sender, self.seats[to], body)
        return [body for _, _, body in passed]

    def hand_over(self, sender: PeerId, seat: Seat, body: Body) -> list[RoundEffect]:
        """`seat` is told that this statement arrived."""
        if seat.me in self.puppets:
            self.puppets[seat.me].append((sender, body))
        return self.tell(seat, Arrived(sender, body, signature_of(sender, body)))

    def tell(self, seat: Seat, event: RoundEvent) -> list[RoundEffect]:
        """The machine of `seat` handles an event, and its effects are performed."""
        if seat.me in self.puppets:
            return []
        effects = seat.machine.handle(event, self.view(seat.me), self.now)
        self.perform(seat, effects)
        return effects

    def perform(self, seat: Seat, effects: list[RoundEffect]) -> None:
        self.performed += effects
        for effect in effects:
            if isinstance(effect, Persist):
                seat.kept = effect.kept
            elif isinstance(effect, Send):
                if isinstance(effect.body, ViewChange | Vote):
                    self.witness.hear(seat.me, effect.body, seat.kept)
                self.queue.extend((seat.me, to, effect.body) for to in effect.to)
            elif isinstance(effect, Forward):
                sender, body, _ = unpack(effect.raw, RUN)
                self.queue.append((sender, effect.to, body))
            elif isinstance(effect, BeginExchange) and plan_hash(effect.plan) not in seat.exchanged:
                name = plan_hash(effect.plan)
                seat.exchanged.add(name)
                entries = self.entries(seat, len(effect.plan.members))
                self.tell(seat, ExchangeDone(name, entries, self.provenance(effect.plan, entries)))
            elif isinstance(effect, ObtainResult) and effect.record.result_root in self.refused:
                self.tell(seat, AuditFailed(effect.record.result_root))
            elif isinstance(effect, ObtainResult) and seat.me not in self.starved:
                self.tell(seat, ResultObtained(effect.record.result_root))
            elif isinstance(effect, Committed):
                seat.committed = effect.commit
                self.witness.see(effect.commit)

    def provenance(self, plan: Plan, entries: Sequence[ChunkEntry]) -> Provenance:
        """These averages of the plan, signed by their makers."""
        signers = bytes(self._signer(plan, owner) for owner in plan.owners)
        signatures = [
            signature_of(PeerId(plan.members[signer].peer), ChunkResult(plan=plan_hash(plan), chunk=chunk, entry=entry))
            for chunk, (signer, entry) in enumerate(zip(signers, entries, strict=True))
        ]
        return Provenance(owners=plan.owners, signers=signers, signatures=signatures)

    def _signer(self, plan: Plan, owner: int) -> int:
        """The member that averages the chunks of this owner."""
        return (owner + 1) % len(plan.members) if plan.members[owner].peer in self.lost else owner

    def entries(self, seat: Seat, members: int) -> tuple[ChunkEntry, ...]:
        version = seat.me.encode() if self.versions else b"true" if self.lie or self.refused else b""
        mask = mask_of(range(members), members)
        return tuple(ChunkEntry(hash=chunk_hash(version + bytes([chunk])), mask=mask) for chunk in range(CHUNKS))

    def view(self, me: PeerId) -> View:
        return {
            peer: PeerView(
                seat.alive,
                seat.alive and peer not in self.near,
                peer in self.left,
                self.now - self.silent_since.get(peer, self.now),
                near=seat.alive,
            )
            for peer, seat in self.seats.items()
        }

    def show_the_record(self) -> None:
        """Whoever has no record hears of the one that was committed, as it would in a swarm."""
        for commit in self.commits()[:1]:
            for peer in self.undecided():
                self.hand_over(next(other for other in self.seats if other != peer), self.seats[peer], commit)

    # -- what came of it ----------------------------------------------------------------------------------------------

    def commits(self) -> list[Commit]:
        return [seat.committed for seat in self.seats.values() if seat.committed]

    def records(self) -> set[bytes]:
        """The different records committed, encoded."""
        return {commit.record.encode() for commit in self.commits()}

    def undecided(self) -> list[PeerId]:
        """Honest peers that are alive and have no record."""
        return [seat.me for seat in self.seats.values() if seat.alive and not seat.committed and seat.me not in self.puppets]


# -- on the way to a record -----------------------------------------------------------------------------------------------

STEPS: list[type[Body]] = [ViewChange, Proposal, RecordProposal, Vote, PrevoteCertificate, Vote, Commit]
"""What is said in a round that nothing disturbs, after everybody is ready."""


def put_to_the_vote(parliament: Parliament) -> tuple[PeerId, RecordProposal]:
    """Everybody is ready, has called attempt 0 and made the exchange; a record proposal is under way.  Returns it."""
    parliament.call()
    parliament.pass_on(Proposal)
    return next((sender, body) for sender, _, body in parliament.queue if isinstance(body, RecordProposal))


def first_proposer(parliament: Parliament, attempt: int = 0) -> PeerId:
    """Whose turn it is in this attempt when nobody is absent."""
    return Ballot(parliament.base, attempt).proposer


def leader_and_voter(parliament: Parliament) -> tuple[PeerId, PeerId]:
    """The proposer of attempt 0, and another elector."""
    leader = first_proposer(parliament)
    return leader, next(peer for peer in parliament.base.electors if peer != leader)
