"""Electors that lie in the negotiation of a round: real nodes whose round machine says other things than it decided.

A `Forger` sees every event that its machine takes, and changes the effects that follow.  What it says is signed with its own
key; what others have signed it can repeat.  `Chaos` says anything: what it decided, nothing, half of it, or whatever
well-formed statement comes to mind; several of them share what they hear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

from protocol.agreement.events import Arrived, RoundEffect, RoundEvent, Send, View
from protocol.agreement.machine import RoundMachine
from protocol.chain.electorate import tolerated
from protocol.chain.records import record_hash
from protocol.node import rounds
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


class Forger:
    """An honest one, to be overridden.  One forger lives through all rounds of its peer."""

    def twist(
        self, machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect], view: View, now: float
    ) -> list[RoundEffect]:
        """What is done instead of `effects`, with which `machine` answered `event`."""
        return [done for effect in effects for done in self.instead(machine, effect)]

    def instead(self, machine: RoundMachine, effect: RoundEffect) -> Sequence[RoundEffect]:
        """What is done instead of one effect."""
        return self.said(machine, effect) if isinstance(effect, Send) else [effect]

    def said(self, machine: RoundMachine, send: Send) -> Sequence[RoundEffect]:
        """What is said instead of one statement."""
        return [send]


Favoured = Callable[[RoundMachine, Sequence[PeerId]], Sequence[PeerId]]


def nobody(machine: RoundMachine, peers: Sequence[PeerId]) -> Sequence[PeerId]:
    """For `Withholding`."""
    return ()


def one(machine: RoundMachine, peers: Sequence[PeerId]) -> Sequence[PeerId]:
    """For `Withholding`: the first in the order of proposers."""
    return machine.base.in_turn(peers)[:1]


def half(machine: RoundMachine, peers: Sequence[PeerId]) -> Sequence[PeerId]:
    """For `Withholding`: the first half in the order of proposers."""
    return machine.base.in_turn(peers)[: len(peers) // 2]


class Withholding(Forger):
    """Never says statements of these kinds to anybody but itself, or to those in `favoured`."""

    def __init__(self, *kinds: type[Body], favoured: Favoured = nobody) -> None:
        self._kinds, self._favoured = kinds, favoured

    def said(self, machine: RoundMachine, send: Send) -> Sequence[RoundEffect]:
        if not isinstance(send.body, self._kinds):
            return [send]
        others = [peer for peer in send.to if peer != machine.me]
        ours = [machine.me] if machine.me in send.to else []
        to = (*self._favoured(machine, others), *ours)
        return [Send(to, send.body)] if to else []


Change = Callable[[RoundMachine, Any], Body | None]


class Altering(Forger):
    """Says a changed statement of one kind, to everybody or to one half of those it is for; the other half hears the true
    one.  to_itself: whether it believes its own lie.  A change to None leaves the statement as it is."""

    def __init__(self, kind: type[Body], change: Change, *, halves: bool = False, to_itself: bool = False) -> None:
        self._kind, self._change, self._halves, self._to_itself = kind, change, halves, to_itself
        self.lies = 0

    def said(self, machine: RoundMachine, send: Send) -> Sequence[RoundEffect]:
        if not isinstance(send.body, self._kind):
            return [send]
        changed = self._change(machine, send.body)
        if changed is None:
            return [send]
        self.lies += 1
        deceived = [peer for peer in send.to if peer != machine.me or self._to_itself]
        if self._halves:
            deceived = list(half(machine, deceived))
        told = tuple(peer for peer in send.to if peer not in deceived)
        return [*([Send(told, send.body)] if told else []), *([Send(tuple(deceived), changed)] if deceived else [])]


class Adding(Forger):
    """Says more: `more` looks at every event and statement of its machine."""

    def __init__(self, more: Callable[[RoundMachine, RoundEvent, list[RoundEffect]], Sequence[RoundEffect]]) -> None:
        self._more = more

    def twist(
        self, machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect], view: View, now: float
    ) -> list[RoundEffect]:
        return [*effects, *self._more(machine, event, effects)]


class LyingMachine(RoundMachine):
    """A round machine whose effects pass through a forger."""

    forger: Forger

    def handle(self, event: RoundEvent, view: View, now: float) -> list[RoundEffect]:
        return self.forger.twist(self, event, super().handle(event, view, now), view, now)


@contextmanager
def lying(forgers: Mapping[PeerId, Forger]) -> Iterator[None]:
    """Rounds that these peers begin within are played by their forgers.  May be nested for different peers."""
    honest: Any = getattr(rounds, "RoundMachine")  # noqa: B009

    def make(me: PeerId, *arguments: Any, **options: Any) -> RoundMachine:
        if me not in forgers:
            return honest(me, *arguments, **options)  # type: ignore[no-any-return]
        machine = LyingMachine(me, *arguments, **options)
        machine.forger = forgers[me]
        return machine

    with patch.object(rounds, "RoundMachine", make):
        yield


# -- anything ---------------------------------------------------------------------------------------------------------------


VoteKey = tuple[int, Step, tuple[str, ...], bytes]


@dataclass
class Memory:
    """What the liars of a world have heard about the rounds on one tip.

    votes: signatures by (attempt, step, absent, record) and voter.  indexes: of the records heard.
    """

    tip: bytes = b""
    record_proposals: list[RecordProposal] = field(default_factory=list)
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
            for heard in (self.record_proposals, self.proposals, self.proofs, self.locks, self.votes, self.records):
                heard.clear()  # type: ignore[attr-defined]
        if isinstance(body, RecordProposal):
            self.record_proposals.append(body)
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
    against it: two votes for one step of a ballot, or view changes that contradict its votes.
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
            return self._view_change(machine, body)
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
            other = draw.choice([*self._memory.record_proposals, body])
            return other.model_copy(
                update={"attempt": body.attempt, "view_changes": draw.choice([body.view_changes, other.view_changes])}
            )
        return None

    def _view_change(self, machine: RoundMachine, view_change: ViewChange) -> ViewChange:
        draw, electors = self._random, len(machine.base.electors)
        lock = None
        if view_change.attempt and self._memory.records and draw.random() < 0.5:
            name = draw.choice(list(self._memory.records))
            lock = LockName(attempt=draw.randrange(view_change.attempt), absent=[], record_hash=name)
        said: dict[str, object] = {
            "held": (draw.getrandbits(electors) if electors else 0).to_bytes((electors + 7) // 8, "little"),
            "plan": draw.choice([None, view_change.plan, b"\x55" * 32]),
        }
        if not self._careful:
            said |= {
                "attempt": view_change.attempt + draw.choice([0, 0, 1, 3, 16]),
                "lock": draw.choice([None, view_change.lock, lock]),
            }
        return view_change.model_copy(update=said)

    def _out_of_the_blue(self, machine: RoundMachine) -> list[RoundEffect]:
        """Something that nobody asked for, to some of the electors."""
        draw, memory = self._random, self._memory
        others = [peer for peer in machine.base.electors if peer != machine.me]
        bodies: list[Body] = []
        for record_proposal in [] if self._careful else memory.record_proposals[-2:]:
            name = record_hash(record_proposal.record)
            for step in Step:
                bodies.append(
                    Vote(
                        round=record_proposal.record.round,
                        base=record_proposal.record.previous,
                        attempt=record_proposal.attempt,
                        step=step,
                        absent=record_proposal.absent,
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
