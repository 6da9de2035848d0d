"""Electors that vote, or tell what they are locked on, as they should not; and those that hide their READY."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from protocol.agreement.events import Arrived, RoundEffect, RoundEvent, Send
from protocol.agreement.machine import RoundMachine
from protocol.chain.records import record_hash
from protocol.transport.interface import Acceptance
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Commit,
    Finish,
    Lock,
    LockName,
    Provenance,
    Ready,
    RecordProposal,
    Step,
    ViewChange,
    Vote,
    unpack,
)
from tests.attacks.attack import Attack, Conduct, forge, holding, proven
from tests.attacks.certificates import forged
from tests.attacks.forgeries import certificate, vote
from tests.attacks.forgers import Adding, Altering, Withholding
from tests.attacks.stage import Stage, anybodys_run
from tests.simulation.wire import Endpoint


def _answering(answer: Callable[[RecordProposal], Sequence[Vote]]) -> Adding:
    """Votes as soon as a record proposal is heard."""

    def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        if not isinstance(event, Arrived) or not isinstance(event.body, RecordProposal) or event.sender == machine.me:
            return ()
        return [Send((event.sender,), each) for each in answer(event.body)]

    return Adding(more)


def second_votes_at_once(stage: Stage) -> Adding:
    """Without a proof, and in every attempt."""
    return _answering(
        lambda record_proposal: [vote(record_proposal.record, Step.SECOND, record_proposal.attempt, record_proposal.absent)]
    )


def votes_for_everything(stage: Stage) -> Adding:
    """For each record proposal, and for a record that was never put to the vote; in both steps; in lower attempts, too."""

    def answer(record_proposal: RecordProposal) -> list[Vote]:
        _, other = forged(stage, [stage.liars[0].identity])
        return [
            vote(record, step, attempt, record_proposal.absent)
            for record in (other.record, record_proposal.record)
            for step in Step
            for attempt in range(max(0, record_proposal.attempt - 1), record_proposal.attempt + 1)
        ]

    return _answering(answer)


def two_votes_in_one_step(stage: Stage) -> Adding:
    """First votes for two records in one ballot, truly signed: whoever sees both can prove it."""

    def answer(record_proposal: RecordProposal) -> list[Vote]:
        _, other = forged(stage, [stage.liars[0].identity])
        return [
            vote(record, Step.FIRST, record_proposal.attempt, record_proposal.absent)
            for record in (other.record, record_proposal.record)
        ]

    return _answering(answer)


# -- view changes -----------------------------------------------------------------------------------------------------------

Rolled = Callable[[RoundMachine, ViewChange], ViewChange]


def ahead(by: int) -> Callable[[Stage], Adding]:
    """View changes of later attempts for everybody, beside the true one."""

    def forger(stage: Stage) -> Adding:
        def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
            own = [effect.body for effect in effects if isinstance(effect, Send) and isinstance(effect.body, ViewChange)]
            later = [
                view_change.model_copy(update={"attempt": view_change.attempt + by})
                for view_change in own
                if isinstance(view_change, ViewChange)
            ]
            return [Send(tuple(stage.honest_peers), view_change) for view_change in later]

        return Adding(more)

    return forger


def climbing(stage: Stage) -> Adding:
    """A higher attempt with every view change of every peer that it hears."""
    step = [0]

    def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        if not isinstance(event, Arrived) or not isinstance(event.body, ViewChange) or event.sender == machine.me:
            return ()
        step[0] = (step[0] + 1) % 16
        rolled = event.body.model_copy(update={"attempt": event.body.attempt + 1 + step[0], "lock": None, "reduced": None})
        return [Send(tuple(stage.honest_peers), rolled)]

    return Adding(more)


def holding_all(machine: RoundMachine, view_change: ViewChange) -> ViewChange:
    """Says that it holds the READY of every elector."""
    electors = len(machine.base.electors)
    return view_change.model_copy(update={"held": ((1 << electors) - 1).to_bytes((electors + 7) // 8, "little")})


def locked(machine: RoundMachine, view_change: ViewChange) -> ViewChange:
    """Locked on a record that nobody knows, as it says; no proof is shown."""
    name = LockName(attempt=max(0, view_change.attempt - 1), absent=[], record_hash=b"\x99" * 32)
    return view_change.model_copy(update={"attempt": max(1, view_change.attempt), "lock": name})


def with_lock(*, lent: bool) -> Callable[[Stage], Adding]:
    """A view change that names a lock on a record of its own, with a proof signed by itself alone, or in others' names."""

    def forger(stage: Stage) -> Adding:
        def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
            said: list[RoundEffect] = []
            for effect in effects:
                if not isinstance(effect, Send) or not isinstance(effect.body, ViewChange):
                    continue
                _, made = forged(stage, [stage.liars[0].identity])
                if made.record.previous != machine.base.tip:
                    continue
                proof = certificate(stage.run, made.record, [stage.liars[0].identity], step=Step.FIRST)
                if lent:
                    votes = [proof.votes[0].model_copy(update={"peer": peer}) for peer in machine.base.electors]
                    proof = proof.model_copy(update={"votes": votes})
                chunks = len(made.index)
                signatures = [bytes(64)] * chunks
                provenance = Provenance(owners=bytes(chunks), signers=bytes(chunks), signatures=signatures)
                shown = Lock(record=made.record, index=made.index, provenance=provenance, proof=proof)
                name = LockName(attempt=0, absent=[], record_hash=record_hash(made.record))
                rolled = effect.body.model_copy(update={"attempt": max(1, effect.body.attempt), "lock": name})
                to = tuple(stage.honest_peers)
                said += [Send(to, shown), Send(to, rolled)]
            return said

        return Adding(more)

    return forger


# -- READYs ---------------------------------------------------------------------------------------------------------------


class Whispers:
    """The READYs of a liar with a running node go to the peers that `to` names; who takes them passes them on, as gossip
    does."""

    def __init__(self, stage: Stage, to: Callable[[Ready], Sequence[PeerId]], delay_s: float = 0.0) -> None:
        self._stage, self._to, self._delay_s = stage, to, delay_s
        self._network = stage.network(stage.liars[0])
        self._publish = self._network.publish
        self._network.publish = self.publish

    async def publish(self, data: bytes) -> None:
        """Instead of the network's."""
        sender, body, _ = unpack(data, self._stage.run)
        if not isinstance(body, Ready):
            await self._publish(data)
            return
        for peer in self._to(body):
            self._stage.world.spawn(self._hand, sender, peer, data)
        await trio.lowlevel.checkpoint()

    async def _hand(self, sender: PeerId, peer: PeerId, data: bytes) -> None:
        await trio.sleep(self._delay_s + self._stage.world.wire.delay_s())
        end = self._stage.world.wire.end(peer)
        if end is not None:
            end.post(lambda: self._take(end, sender, data))

    def _take(self, end: Endpoint, sender: PeerId, data: bytes) -> None:
        if end.handlers.on_gossip(sender, data) is Acceptance.ACCEPT:
            self._stage.world.wire.spread(end, data)


def whispering(to: Callable[[Stage, Ready], Sequence[PeerId]], delay_s: float = 0.0) -> Conduct:
    async def conduct(stage: Stage) -> None:
        Whispers(stage, partial(to, stage), delay_s)
        await trio.sleep_forever()

    return conduct


def proposers(stage: Stage, ready: Ready) -> list[PeerId]:
    """The electors in their order as proposers."""
    base = stage.node()._history.base
    return base.in_turn(base.electors)


async def ready_again_and_again(stage: Stage) -> None:
    """A new READY with another root every half second."""
    liar, serial = stage.liars[0], 10**6
    while True:
        node = stage.node(liar)
        work = node._rounds.work
        if work is not None and work.ready is not None:
            serial += 1
            changed = work.ready.model_copy(update={"serial": serial, "root": bytes([serial % 256]) * 32})
            await stage.gossip(liar, changed)
        await trio.sleep(0.5)


async def names_another_state(stage: Stage) -> None:
    """Others, too few for a quorum without it, look at their own state because of it, ever less often."""
    contributor: Any = stage.node(stage.liars[0])._contributor
    commit, looks = contributor.commit, stage.counter("Desynced", (b"\x77" * 32).hex()[:4])

    async def lie(base: Any, work: Any, contribution: Any, digest: Any) -> Any:
        return await commit(base, work, contribution, Hash(b"\x77" * 32))

    contributor.commit = lie
    stage.expect("each has looked at its state", lambda: 1 <= looks() <= 2 * len(stage.honest))
    await trio.sleep_forever()


async def asks_to_finish(stage: Stage) -> None:
    """Asks everybody to stop after the first step, all the time."""
    liar = stage.liars[0]
    while True:
        base = stage.node()._history.base
        await stage.tell(liar, stage.honest_peers, Finish(round=base.round, base=base.tip))
        await trio.sleep(0.5)


async def old_commits(stage: Stage) -> None:
    """True commits of earlier rounds, again and again, with votes taken away or put in another order."""
    liar = stage.liars[0]
    while True:
        node = stage.node()
        for round in range(max(0, node.rounds - 2), node.rounds):
            commit = node.commit_at(round)
            votes = commit.certificate.votes
            for changed in (votes, votes[::-1], votes[:1]):
                update = {"certificate": commit.certificate.model_copy(update={"votes": changed})}
                shown: Commit = commit.model_copy(update=update)
                await stage.tell(liar, stage.honest_peers, shown)
        await trio.sleep(1.0)


def in_turn(stage: Stage, ready: Ready) -> list[PeerId]:
    """A different elector each round."""
    return [stage.honest_peers[ready.round % len(stage.honest_peers)]]


ATTACKS = [
    Attack("refuses everything", "never votes", holding(forge(Withholding(Vote)))),
    Attack("no view changes", "never wants a round closed", holding(forge(Withholding(ViewChange)))),
    Attack("silent elector", "no view changes and no votes", holding(forge(Withholding(ViewChange, Vote)))),
    Attack("two silent electors", "of seven", holding(forge(Withholding(ViewChange, Vote))), 7, 2),
    Attack("second votes at once", "without a proof", holding(forge(second_votes_at_once))),
    Attack("votes for everything", "in both steps, in all attempts", holding(forge(votes_for_everything))),
    Attack("two votes in one step", "of one ballot, to its proposer", holding(proven, forge(two_votes_in_one_step))),
    Attack("one attempt ahead", "with every view change", holding(forge(ahead(1)))),
    Attack("16 attempts ahead", "with every view change", holding(forge(ahead(16)))),
    Attack("2^50 attempts ahead", "with every view change", holding(forge(ahead(2**50)))),
    Attack("climbing attempts", "above every view change that it hears", holding(forge(climbing))),
    *(
        Attack(name, how, holding(forge(Altering(ViewChange, change))))
        for name, how, change in (
            ("holds everything", "says that it has every READY", holding_all),
            (
                "false plan in view changes",
                "that nobody made",
                lambda machine, view_change: view_change.model_copy(update={"plan": b"\x55" * 32}),
            ),
            ("false lock in view changes", "without a proof", locked),
            (
                "counts itself out",
                "in its own view changes",
                lambda machine, view_change: view_change.model_copy(update={"absent": [machine.me]}),
            ),
        )
    ),
    Attack("lock with its own proof", "one first vote", holding(forge(with_lock(lent=False)))),
    Attack("lock with lent signatures", "its own, in the name of all", holding(forge(with_lock(lent=True)))),
    Attack("READY to the proposer", "and to nobody else", whispering(lambda *about: proposers(*about)[:1])),
    Attack("READY to all but the proposer", "who leaves it out", whispering(lambda *about: proposers(*about)[1:])),
    Attack("READY to one elector", "another one each round", whispering(in_turn)),
    Attack("READY to nobody", "and votes all the same", whispering(lambda stage, ready: [])),
    Attack(
        "READY late", "just before the grace time ends", whispering(lambda stage, ready: stage.honest_peers, delay_s=3.9)
    ),
    Attack("READY again and again", "with other roots", ready_again_and_again),
    Attack("names another state", "in each READY", names_another_state, peers=3, run=anybodys_run),
    Attack("asks to finish", "all the time", asks_to_finish),
    Attack("old commits", "whole and shortened", old_commits),
]
