"""Electors that vote, or tell what they are locked on, as they should not; and those that hide their READY."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from protocol.agreement.events import Arrived, RoundEffect, RoundEvent, Send
from protocol.agreement.machine import RoundMachine
from protocol.chain.records import record_hash
from protocol.transport.interface import Acceptance
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
from tests.attacks.attack import Attack
from tests.attacks.certificates import forged
from tests.attacks.exchanges import expect_ejected
from tests.attacks.proposers import play
from tests.attacks.stage import Stage
from tests.simulation.forgeries import certificate, vote
from tests.simulation.forgers import Adding, Altering, Withholding, nobody
from tests.simulation.wire import Endpoint

FAR = 2**50


async def refuses_everything(stage: Stage) -> None:
    await play(stage, Withholding(Vote, favoured=nobody))


async def no_rolls(stage: Stage) -> None:
    await play(stage, Withholding(ViewChange, favoured=nobody))


async def silent(stage: Stage) -> None:
    """It contributes, and takes no part in any ballot."""
    await play(stage, Withholding(ViewChange, Vote, favoured=nobody))


def _answering(answer: Callable[[RoundMachine, PeerId, RecordProposal], Sequence[Vote]]) -> Adding:
    """Votes as soon as a motion is heard."""

    def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        if not isinstance(event, Arrived) or not isinstance(event.body, RecordProposal) or event.sender == machine.me:
            return ()
        return [Send((event.sender,), each) for each in answer(machine, event.sender, event.body)]

    return Adding(more)


async def second_votes_at_once(stage: Stage) -> None:
    """Without a proof, and in every attempt."""

    def answer(machine: RoundMachine, proposer: PeerId, motion: RecordProposal) -> list[Vote]:
        return [vote(motion.record, Step.SECOND, motion.attempt, motion.absent)]

    await play(stage, _answering(answer))


async def votes_for_everything(stage: Stage) -> None:
    """For each motion, and for a record that was never put to the vote; in both steps; in lower attempts, too."""

    def answer(machine: RoundMachine, proposer: PeerId, motion: RecordProposal) -> list[Vote]:
        _, other = forged(stage, [stage.liars[0].identity])
        return [
            vote(record, step, attempt, motion.absent)
            for record in (other.record, motion.record)
            for step in Step
            for attempt in range(max(0, motion.attempt - 1), motion.attempt + 1)
        ]

    await play(stage, _answering(answer))


async def two_votes_in_one_step(stage: Stage) -> None:
    """First votes for two records in one ballot, truly signed: whoever sees both can prove it."""

    def answer(machine: RoundMachine, proposer: PeerId, motion: RecordProposal) -> list[Vote]:
        _, other = forged(stage, [stage.liars[0].identity])
        return [vote(record, Step.FIRST, motion.attempt, motion.absent) for record in (other.record, motion.record)]

    expect_ejected(stage)
    await play(stage, _answering(answer))


# -- rolls ------------------------------------------------------------------------------------------------------------------


def _rolls(change: Callable[[RoundMachine, ViewChange], ViewChange]) -> Altering:
    return Altering(ViewChange, change)


def _to_all(stage: Stage, change: Callable[[RoundMachine, ViewChange], ViewChange]) -> Adding:
    """Changed rolls for everybody, beside the true one."""

    def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        own = [effect.body for effect in effects if isinstance(effect, Send) and isinstance(effect.body, ViewChange)]
        return [Send(tuple(stage.honest_peers), change(machine, each)) for each in own if isinstance(each, ViewChange)]

    return Adding(more)


def _ahead(by: int) -> Callable[[RoundMachine, ViewChange], ViewChange]:
    return lambda machine, roll: roll.model_copy(update={"attempt": roll.attempt + by})


async def sixteen_ahead(stage: Stage) -> None:
    await play(stage, _to_all(stage, _ahead(16)))


async def far_ahead(stage: Stage) -> None:
    await play(stage, _to_all(stage, _ahead(FAR)))


async def one_ahead(stage: Stage) -> None:
    await play(stage, _to_all(stage, _ahead(1)))


async def climbing(stage: Stage) -> None:
    """A higher attempt with every roll of every peer that it hears."""
    step = [0]

    def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        if not isinstance(event, Arrived) or not isinstance(event.body, ViewChange) or event.sender == machine.me:
            return ()
        step[0] = (step[0] + 1) % 16
        rolled = event.body.model_copy(update={"attempt": event.body.attempt + 1 + step[0], "lock": None, "reduced": None})
        return [Send(tuple(stage.honest_peers), rolled)]

    await play(stage, Adding(more))


async def holds_everything(stage: Stage) -> None:
    """Says that it holds the READY of every elector."""

    def change(machine: RoundMachine, roll: ViewChange) -> ViewChange:
        electors = len(machine.base.electors)
        return roll.model_copy(update={"held": ((1 << electors) - 1).to_bytes((electors + 7) // 8, "little")})

    await play(stage, _rolls(change))


async def false_plan(stage: Stage) -> None:
    """Says that it took a plan up that nobody made."""
    await play(stage, _rolls(lambda machine, roll: roll.model_copy(update={"plan": b"\x55" * 32})))


def _locked(machine: RoundMachine, roll: ViewChange) -> ViewChange:
    name = LockName(attempt=max(0, roll.attempt - 1), absent=[], record_hash=b"\x99" * 32)
    later = roll.model_copy(update={"attempt": max(1, roll.attempt)})
    return later.model_copy(update={"lock": name})


async def false_lock(stage: Stage) -> None:
    """Locked on a record that nobody knows, as it says; no proof is shown."""
    await play(stage, _rolls(_locked))


def _with_lock(stage: Stage, signers: str) -> Adding:
    """A roll that names a lock on a record of its own, with a proof signed by itself alone, or in the name of others."""

    def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        said: list[RoundEffect] = []
        for effect in effects:
            if not isinstance(effect, Send) or not isinstance(effect.body, ViewChange):
                continue
            _, made = forged(stage, [stage.liars[0].identity])
            if made.record.previous != machine.base.tip:
                continue
            proof = certificate(stage.run, made.record, [stage.liars[0].identity], step=Step.FIRST)
            if signers == "all":
                lent = [proof.votes[0].model_copy(update={"peer": peer}) for peer in machine.base.electors]
                proof = proof.model_copy(update={"votes": lent})
            shown = Lock(record=made.record, index=made.index, provenance=_provenance(len(made.index)), proof=proof)
            attempt = max(1, effect.body.attempt)
            name = LockName(attempt=0, absent=[], record_hash=record_hash(made.record))
            rolled = effect.body.model_copy(update={"attempt": attempt, "lock": name})
            to = tuple(stage.honest_peers)
            said += [Send(to, shown), Send(to, rolled)]
        return said

    return Adding(more)


def _provenance(chunks: int) -> Provenance:
    return Provenance(owners=bytes(chunks), signers=bytes(chunks), signatures=[bytes(64)] * chunks)


async def lock_proven_alone(stage: Stage) -> None:
    await play(stage, _with_lock(stage, "own"))


async def lock_proven_by_others(stage: Stage) -> None:
    await play(stage, _with_lock(stage, "all"))


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


async def ready_to_the_proposer(stage: Stage) -> None:
    """Only the next proposer hears its READY."""

    def proposer(ready: Ready) -> Sequence[PeerId]:
        base = stage.node()._history.base
        return base.in_turn(base.electors)[:1]

    Whispers(stage, proposer)
    await trio.sleep_forever()


async def ready_to_all_but_the_proposer(stage: Stage) -> None:
    def others(ready: Ready) -> Sequence[PeerId]:
        base = stage.node()._history.base
        return base.in_turn(base.electors)[1:]

    Whispers(stage, others)
    await trio.sleep_forever()


async def ready_to_one(stage: Stage) -> None:
    """A different elector each round is the only one that hears it."""
    Whispers(stage, lambda ready: [stage.honest_peers[ready.round % len(stage.honest_peers)]])
    await trio.sleep_forever()


async def ready_to_nobody(stage: Stage) -> None:
    """It computes for ever, as far as others can tell, and votes all the same."""
    Whispers(stage, lambda ready: [])
    await trio.sleep_forever()


async def ready_late(stage: Stage) -> None:
    """Its READY comes a moment before the others would go on without it."""
    Whispers(stage, lambda ready: stage.honest_peers, delay_s=3.9)
    await trio.sleep_forever()


async def ready_again_and_again(stage: Stage) -> None:
    """A new READY with another root every half second."""
    liar, serial = stage.liars[0], 10**6
    while True:
        node = stage.node(liar)
        work = node._round.work
        if work is not None and work.ready is not None:
            serial += 1
            changed = work.ready.model_copy(update={"serial": serial, "root": bytes([serial % 256]) * 32})
            await stage.gossip(liar, changed)
        await trio.sleep(0.5)


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


ATTACKS = [
    Attack("refuses everything", "never votes", refuses_everything),
    Attack("no rolls", "never wants a round closed", no_rolls),
    Attack("silent elector", "no rolls and no votes", silent),
    Attack("two silent electors", "of seven", silent, 7, 2),
    Attack("second votes at once", "without a proof", second_votes_at_once),
    Attack("votes for everything", "in both steps, in all attempts", votes_for_everything),
    Attack("two votes in one step", "of one ballot, to its proposer", two_votes_in_one_step),
    Attack("one attempt ahead", "with every roll", one_ahead),
    Attack("16 attempts ahead", "with every roll", sixteen_ahead),
    Attack("2^50 attempts ahead", "with every roll", far_ahead),
    Attack("climbing attempts", "above every roll that it hears", climbing),
    Attack("holds everything", "says that it has every READY", holds_everything),
    Attack("false plan in rolls", "that nobody made", false_plan),
    Attack("false lock in rolls", "without a proof", false_lock),
    Attack("lock with its own proof", "one first vote", lock_proven_alone),
    Attack("lock with lent signatures", "its own, in the name of all", lock_proven_by_others),
    Attack("READY to the proposer", "and to nobody else", ready_to_the_proposer),
    Attack("READY to all but the proposer", "who leaves it out", ready_to_all_but_the_proposer),
    Attack("READY to one elector", "another one each round", ready_to_one),
    Attack("READY to nobody", "and votes all the same", ready_to_nobody),
    Attack("READY late", "just before the grace time ends", ready_late),
    Attack("READY again and again", "with other roots", ready_again_and_again),
    Attack("asks to finish", "all the time", asks_to_finish),
    Attack("old commits", "whole and shortened", old_commits),
]
