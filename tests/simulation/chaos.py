"""Electors that say anything: what they decided, nothing, half of it, or whatever well-formed statement comes to mind.

Several of them share what they hear.  All of it is drawn from one generator, so that a seed gives the same lies again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from protocol.agreement.events import Arrived, RoundEffect, RoundEvent, Send, View
from protocol.agreement.machine import RoundMachine
from protocol.chain.electorate import tolerated
from protocol.chain.records import record_hash
from protocol.wire.envelope import Body
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Commit,
    Lock,
    LockName,
    PrevoteCertificate,
    Proposal,
    Record,
    RecordProposal,
    Signature,
    Step,
    ViewChange,
    Vote,
)
from tests.simulation.forgers import Forger, LyingMachine

VoteKey = tuple[int, Step, tuple[str, ...], bytes]


@dataclass
class Memory:
    """What the liars of a world have heard about the rounds on one tip.

    votes: signatures by (attempt, step, absent, record) and voter.  indexes: of the records heard.
    """

    tip: bytes = b""
    motions: list[RecordProposal] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    proofs: list[PrevoteCertificate] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    votes: dict[VoteKey, dict[str, bytes]] = field(default_factory=dict)
    records: dict[bytes, tuple[Record, Sequence[ChunkEntry]]] = field(default_factory=dict)
    silent: bool = False

    def fall_silent(self) -> None:
        """No lies from now on."""
        self.silent = True

    def hear(self, tip: bytes, sender: PeerId, body: Body, signature: bytes) -> None:
        """A statement reached one of them, whose tip this is."""
        if tip != self.tip:
            self.tip = tip
            for heard in (self.motions, self.proposals, self.proofs, self.locks, self.votes, self.records):
                heard.clear()  # type: ignore[attr-defined]
        if isinstance(body, RecordProposal):
            self.motions.append(body)
            self.records[record_hash(body.record)] = body.record, body.index
        elif isinstance(body, Proposal):
            self.proposals.append(body)
        elif isinstance(body, PrevoteCertificate):
            self.proofs.append(body)
        elif isinstance(body, Lock):
            self.locks.append(body)
        elif isinstance(body, Vote):
            name = body.attempt, body.step, tuple(body.absent), body.record_hash
            self.votes.setdefault(name, {})[sender] = signature


class Chaos(Forger):
    """One lying elector.  cabal: the peers that lie together, so many of which the electors bear; else they keep quiet.

    lies: how often one of its statements is no honest one.  careful: whether it never signs what would be proof
    against it: two votes for one step of a ballot, or rolls that contradict its votes.
    """

    def __init__(
        self, random: Random, memory: Memory, cabal: Iterable[PeerId], lies: float = 0.5, *, careful: bool = False
    ) -> None:
        self._random, self._memory, self._cabal, self._lies = random, memory, frozenset(cabal), lies
        self._careful = careful

    def twist(
        self, machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect], view: View, now: float
    ) -> list[RoundEffect]:
        assert isinstance(machine, LyingMachine)
        electors = machine.base.electors
        too_many = sum(peer in self._cabal for peer in electors) > tolerated(len(electors))
        if self._memory.silent or too_many:
            return effects
        if isinstance(event, Arrived):
            self._memory.hear(machine.base.tip, event.sender, event.body, event.signature)
        done = super().twist(machine, event, effects, view, now)
        if isinstance(event, Arrived) and self._random.random() < 0.2 * self._lies:
            done += self._out_of_the_blue(machine)
        return done

    def said(self, machine: RoundMachine, send: Send) -> Sequence[RoundEffect]:
        if self._random.random() > self._lies:
            return [send]
        others = [peer for peer in send.to if peer != machine.me]
        own = [Send((machine.me,), send.body)] if machine.me in send.to else []
        some = tuple(self._random.sample(others, self._random.randint(0, len(others))))
        rest = tuple(peer for peer in others if peer not in some)
        other = self._instead_of(machine, send.body)
        told = [Send(some, send.body)] if some else []
        return [*own, *told, *([Send(rest, other)] if rest and other is not None else [])]

    def _instead_of(self, machine: RoundMachine, body: Body) -> Body | None:
        draw = self._random
        if isinstance(body, ViewChange):
            return self._roll(machine, body)
        if isinstance(body, Vote):
            if self._careful:
                return None
            known = [*self._memory.records, body.record_hash]
            step = draw.choice([Step.FIRST, Step.SECOND])
            return body.model_copy(update={"record_hash": draw.choice(known), "step": step})
        if isinstance(body, Proposal) and len(body.plan.members) > 1:
            owners = bytes(draw.randrange(len(body.plan.members)) for _ in body.plan.owners)
            return body.model_copy(update={"plan": body.plan.model_copy(update={"owners": owners})})
        if isinstance(body, RecordProposal):
            other = draw.choice([*self._memory.motions, body])
            return other.model_copy(update={"attempt": body.attempt, "rolls": draw.choice([body.rolls, other.rolls])})
        return None

    def _roll(self, machine: RoundMachine, roll: ViewChange) -> ViewChange:
        draw, electors = self._random, len(machine.base.electors)
        lock = None
        if roll.attempt and self._memory.records and draw.random() < 0.5:
            name = draw.choice(list(self._memory.records))
            lock = LockName(attempt=draw.randrange(roll.attempt), absent=[], record_hash=name)
        said: dict[str, object] = {
            "held": (draw.getrandbits(electors) if electors else 0).to_bytes((electors + 7) // 8, "little"),
            "plan": draw.choice([None, roll.plan, b"\x55" * 32]),
        }
        if not self._careful:
            said |= {"attempt": roll.attempt + draw.choice([0, 0, 1, 3, 16]), "lock": draw.choice([None, roll.lock, lock])}
        return roll.model_copy(update=said)

    def _out_of_the_blue(self, machine: RoundMachine) -> list[RoundEffect]:
        """Something that nobody asked for, to some of the electors."""
        draw, memory = self._random, self._memory
        others = [peer for peer in machine.base.electors if peer != machine.me]
        bodies: list[Body] = []
        for motion in [] if self._careful else memory.motions[-2:]:
            name = record_hash(motion.record)
            for step in Step:
                bodies.append(
                    Vote(
                        round=motion.record.round,
                        base=motion.record.previous,
                        attempt=motion.attempt,
                        step=step,
                        absent=motion.absent,
                        record_hash=name,
                    )
                )
        bodies += [*memory.locks[-2:], *memory.proofs[-2:], *self._commits(machine)]
        if not bodies or not others:
            return []
        return [Send(tuple(draw.sample(others, draw.randint(1, len(others)))), draw.choice(bodies))]

    def _commits(self, machine: RoundMachine) -> list[Body]:
        """Certificates made of the votes that were heard, whatever they are worth."""
        made: list[Body] = []
        for (attempt, _, absent, name), votes in list(self._memory.votes.items())[-2:]:
            if name in self._memory.records:
                record, index = self._memory.records[name]
                signed = [Signature(peer=peer, signature=votes[peer]) for peer in sorted(votes)]
                others = [peer for peer in machine.base.electors if peer not in votes]
                missing: list[str] = self._random.choice([[*absent], [*others]])
                proof = Certificate(attempt=attempt, absent=sorted(missing), votes=signed)
                made.append(Commit(record=record, index=list(index), certificate=proof))
        return made


def cabal(
    random: Random, peers: Iterable[PeerId], lies: float = 0.5, memory: Memory | None = None, *, careful: bool = False
) -> dict[PeerId, Forger]:
    """Forgers for these peers, who share what they hear: in `memory`, if it is given."""
    named, memory = sorted(peers), memory or Memory()
    return {peer: Chaos(random, memory, named, lies, careful=careful) for peer in named}
