"""Attacks on the standing of honest peers: what they do for a round is hidden, or they look as if they had stalled it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import trio

from kernels.aggregate import aggregate
from protocol.agreement.ballot import plan_of
from protocol.agreement.events import Arrived, RoundEffect, RoundEvent, Send
from protocol.agreement.machine import RoundMachine
from protocol.allreduce.assignment import plan_hash
from protocol.allreduce.machine import ExchangeEffect, Reduce, SendPart, SendResult
from protocol.allreduce.runner import ExchangeRunner, PushHeader, entry_of
from protocol.chain.electorate import contributors
from protocol.chain.records import index_root
from protocol.run.manifest import SignedManifest, sign
from protocol.transport.interface import Bandwidth, NetworkError, Refused
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, ChunkResult, Plan, Proposal, Provenance, RecordProposal, Report, mask_of, pack
from tests.attacks.attack import Attack
from tests.attacks.proposers import owned_by_us
from tests.attacks.stage import ORGANISER, Stage, identity_of
from tests.simulation.exchange_liars import Bogus, exchanging
from tests.simulation.forgers import Adding, Altering, lying
from tests.simulation.seat import Seat
from tests.simulation.strangers import Strangers
from tests.simulation.world import simulated_run

HALF = 0.5
SEASONED = 5


def shares_since(stage: Stage, round: int, peers: Sequence[PeerId]) -> dict[PeerId, float]:
    """Of each of these peers: the part of the records from this round on that have its parts."""
    node, counted = stage.node(), Counter[PeerId]()
    for number in range(round, node.rounds):
        commit = node.commit_at(number)
        named = [PeerId(member.peer) for member in commit.record.members]
        counted.update(contributors(named, [entry.mask for entry in commit.index]))
    return {peer: counted[peer] / max(1, node.rounds - round) for peer in peers}


@contextmanager
def fair(stage: Stage) -> Iterator[None]:
    """While the attack goes on, each honest peer has parts in at least half of the records."""
    begun, shares = stage.rounds(), dict[PeerId, float]()
    stage.expect("each honest peer has parts in half of the records", lambda: min(shares.values()) >= HALF, 1.0)
    try:
        yield
    finally:
        shares |= shares_since(stage, begun, stage.honest_peers)


@lru_cache(maxsize=16)
def four_founders(peers: int) -> SignedManifest:
    """Open to anybody, founded by the last four seats."""
    founders = sorted(identity_of(number).peer_id for number in range(peers - 4, peers))
    return sign(ORGANISER, simulated_run().manifest.model_copy(update={"founders": founders}))


# -- owners ---------------------------------------------------------------------------------------------------------------


class Overtaking(ExchangeRunner):
    """Pushes, for every chunk and before its owner can, the average of its own part alone, truly signed."""

    its_own = False
    """Whether the averages of its own chunks are such, too, beside the true ones, which it holds itself."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for chunk in range(self.machine.chunks):
                if self.its_own == (self.machine.owner(chunk) == self.machine.me):
                    nursery.start_soon(self._overtake, chunk)
            await super().run()

    async def _overtake(self, chunk: int) -> None:
        own, machine = self._sender._own[chunk], self.machine
        span, me = self._receiver._layouts.result[chunk], machine.members.index(machine.me)
        mean = memoryview(bytearray(span.size))
        aggregate(
            self._averager._rule, self._receiver._layouts.codec, [own], [machine.plan.members[me].tokens], span.count, mean
        )
        entry = entry_of(chunk_hash(mean), [me], len(machine.members))
        statement = self._session.seal(ChunkResult(plan=machine.name, chunk=chunk, entry=entry)).raw
        header = PushHeader(plan=machine.name, fragment=machine.plan.fragment, chunk=chunk, proof=[], statement=statement)
        for peer in machine.others:
            self._session_push(peer, header.encode(), mean)
        await trio.lowlevel.checkpoint()

    def _session_push(self, peer: PeerId, header: bytes, data: memoryview) -> None:
        self._tasks.start(self._try_push, peer, header, data)

    async def _try_push(self, peer: PeerId, header: bytes, data: memoryview) -> None:
        try:
            await self._session.network.push(peer, header, data, timeout_s=5)
        except NetworkError:
            return


class OvertakingItself(Overtaking):
    """Says so of its own chunks only, and then the true averages."""

    its_own = True


async def overtakes_itself(stage: Stage) -> None:
    await seasoned(stage)
    with fair(stage), exchanging(OvertakingItself, {seat.peer for seat in stage.liars}):
        await trio.sleep_forever()


async def seasoned(stage: Stage) -> None:
    """Founders have earned their seats: from here on they can lose them."""
    while stage.rounds() < SEASONED:
        await trio.sleep(0.5)


async def overtakes_owners(stage: Stage) -> None:
    await seasoned(stage)
    with fair(stage), exchanging(Overtaking, {seat.peer for seat in stage.liars}):
        await trio.sleep_forever()


class SigningEarly(Overtaking):
    """Signs all chunks of others before their owners can, and gives nothing else: whoever asks it for them later, waits."""

    def _perform(self, effect: ExchangeEffect) -> None:
        if not isinstance(effect, SendPart | SendResult):
            super()._perform(effect)


async def signs_early_and_withholds(stage: Stage) -> None:
    await seasoned(stage)
    with fair(stage), exchanging(SigningEarly, {seat.peer for seat in stage.liars}):
        await trio.sleep_forever()


def victims_own(plan: Plan, victims: Sequence[PeerId]) -> bool:
    return len(victims) > 1 and any(plan.members[owner].peer in victims for owner in plan.owners)


def leaving_out(victims: Sequence[PeerId]) -> type[ExchangeRunner]:
    """Exchanges whose owner averages nothing of these members, where all chunks are its own."""

    class LeavingOut(ExchangeRunner):
        def _perform(self, effect: ExchangeEffect) -> None:
            if isinstance(effect, Reduce) and not victims_own(self.machine.plan, victims):
                taken = [index for index in effect.members if self.machine.members[index] not in victims]
                effect = Reduce(effect.chunk, tuple(taken))
            super()._perform(effect)

    return LeavingOut


def all_ours(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """All chunks are ours, and we put to the vote what comes of it."""
    changed = owned_by_us(machine, proposal)
    mine = machine._proposer._mine
    if mine is not None:
        mine.plan = changed.plan
    return changed


async def owns_all_and_leaves_out(stage: Stage) -> None:
    """In its own attempts all chunks are the proposer's, and one honest peer is in none of its masks."""
    liars, victims = {seat.peer for seat in stage.liars}, stage.honest_peers[:1]
    forgers = {peer: Altering(Proposal, all_ours, to_itself=True) for peer in liars}
    with fair(stage), exchanging(leaving_out(victims), liars), lying(forgers):
        await trio.sleep_forever()


async def owns_all_for_itself(stage: Stage) -> None:
    """In their own attempts all chunks are the proposer's, and only liars are in its masks."""
    liars = {seat.peer for seat in stage.liars}
    forgers = {peer: Altering(Proposal, all_ours, to_itself=True) for peer in liars}
    with fair(stage), exchanging(leaving_out(stage.honest_peers), liars), lying(forgers):
        await trio.sleep_forever()


async def claims_a_wide_line(stage: Stage) -> None:
    """Liars say that their lines carry four times as much as others', own all chunks, and average their own parts."""
    liars = {seat.peer for seat in stage.liars}
    for seat in stage.liars:
        stage.network(seat).bandwidth = lambda: Bandwidth(200e6, 200e6)
    await seasoned(stage)
    with fair(stage), exchanging(leaving_out(stage.honest_peers), liars):
        await trio.sleep_forever()


def signs_another_average(stage: Stage) -> Altering:
    """In its motions, one chunk that it owns has another average, of its own part alone, which it has signed and shows to
    nobody."""
    names = {seat.peer: seat.identity for seat in stage.liars}

    def change(machine: RoundMachine, motion: RecordProposal) -> RecordProposal | None:
        record, provenance = motion.record, motion.provenance
        me = [member.peer for member in record.members].index(machine.me)
        chunk = provenance.signers.find(me)
        if motion.proof is not None or chunk < 0:
            return None
        index, signatures = list(motion.index), list(provenance.signatures)
        index[chunk] = ChunkEntry(hash=chunk_hash(b"nobody has it"), mask=mask_of([me], len(record.members)))
        result = ChunkResult(plan=plan_hash(plan_of(record, provenance)), chunk=chunk, entry=index[chunk])
        signatures[chunk] = pack(names[machine.me], stage.run, result).signature
        return motion.model_copy(
            update={
                "index": index,
                "record": record.model_copy(update={"result_root": index_root(index)}),
                "provenance": provenance.model_copy(update={"signatures": signatures}),
            }
        )

    return Altering(RecordProposal, change, to_itself=True)


def show_no_parts(stage: Stage, seat: Seat) -> None:
    """From now on this liar shows nobody what it has contributed, nor any result."""
    handlers = stage.network(seat).handlers
    answer = handlers.on_request

    async def refuse(peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind in ("part", "want"):
            raise Refused("no")
        return await answer(peer, kind, data)  # type: ignore[no-any-return]

    handlers.on_request = refuse


async def puts_what_nobody_has(stage: Stage) -> None:
    for seat in stage.liars:
        show_no_parts(stage, seat)
    with fair(stage), lying({seat.peer: signs_another_average(stage) for seat in stage.liars}):
        await trio.sleep_forever()


# -- being late -----------------------------------------------------------------------------------------------------------


async def many_are_early(stage: Stage) -> None:
    """Strangers' keys are ready as soon as a round begins: whoever trains looks late beside them.  The two slowest of the
    honest peers are a seventh slower than the others, which is no harm without strangers."""
    for seat in stage.honest[:2]:
        assert seat.trainer is not None
        seat.trainer.step_s = 0.4
    crowd, last = Strangers(stage.world, 120), -1
    crowd.connect()
    with fair(stage):
        while True:
            node = stage.node()
            if node.rounds != last:
                last = node.rounds
                await crowd.be_ready(node)
            await trio.sleep(0.1)


class TurnsOnEach(ExchangeRunner):
    """Gives no parts to one owner, in each round another one."""

    def _perform(self, effect: ExchangeEffect) -> None:
        electors = sorted(self.machine.others)
        victim = electors[self.machine.plan.round % len(electors)]
        if not (isinstance(effect, SendPart) and effect.to == victim):
            super()._perform(effect)


async def turns_on_each(stage: Stage) -> None:
    with fair(stage), exchanging(TurnsOnEach, {seat.peer for seat in stage.liars}):
        await trio.sleep_forever()


def framing(victim: PeerId) -> type[ExchangeRunner]:
    """Exchanges in which one owner gets no parts, and a worthless one just before it would give the sender up."""

    class Framing(ExchangeRunner):
        async def run(self) -> None:
            async with trio.open_nursery() as nursery:
                if victim in self.machine.others:
                    nursery.start_soon(self._announce)
                await super().run()

        async def _announce(self) -> None:
            await trio.sleep(4.95)
            size = self._receiver._layouts.contribution[0].size
            chunk = next((c for c, o in enumerate(self.machine.plan.owners) if self.machine.members[o] == victim), 0)
            header = PushHeader(
                plan=self.machine.name, fragment=self.machine.plan.fragment, chunk=chunk, proof=[], statement=None
            )
            try:
                await self._session.network.push(victim, header.encode(), memoryview(bytearray(size)), timeout_s=9)
            except NetworkError:
                return

        def _perform(self, effect: ExchangeEffect) -> None:
            if not (isinstance(effect, SendPart) and effect.to == victim):
                super()._perform(effect)

    return Framing


async def frames_an_owner(stage: Stage) -> None:
    with fair(stage), exchanging(framing(stage.honest_peers[0]), {seat.peer for seat in stage.liars}):
        await trio.sleep_forever()


async def some_are_slower(stage: Stage) -> None:
    """Nobody lies: three honest peers train at three quarters of the pace of the slowest of the others."""
    slow = stage.honest[:3]
    slowest = max(seat.trainer.step_s for seat in stage.honest if seat.trainer is not None)
    for seat in slow:
        assert seat.trainer is not None
        seat.trainer.step_s = 1.3 * slowest
    with fair(stage):
        await trio.sleep_forever()


# -- reports --------------------------------------------------------------------------------------------------------------


def false_report(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
    """To whoever proposes: averages that nobody made, before anybody can have made any."""
    if not isinstance(event, Arrived) or not isinstance(event.body, Proposal) or event.sender == machine.me:
        return []
    plan, attempt = event.body.plan, event.body.attempt
    mask = mask_of(range(len(plan.members)), len(plan.members))
    hashes = [chunk_hash(f"{plan.round} {attempt} {chunk}".encode()) for chunk in range(len(plan.owners))]
    report = Report(
        round=plan.round,
        base=plan.base,
        plan=plan_hash(plan),
        index=[ChunkEntry(hash=each, mask=mask) for each in hashes],
        provenance=Provenance(owners=plan.owners, signers=plan.owners, signatures=[bytes(64)] * len(plan.owners)),
    )
    return [Send((event.sender,), report)]


async def reports_falsely(stage: Stage) -> None:
    with fair(stage), lying({seat.peer: Adding(false_report) for seat in stage.liars}):
        await trio.sleep_forever()


async def reports_falsely_and_delays(stage: Stage) -> None:
    peers = {seat.peer for seat in stage.liars}
    with fair(stage), exchanging(Bogus, peers), lying({peer: Adding(false_report) for peer in peers}):
        await trio.sleep_forever()


ATTACKS = [
    Attack("overtakes the owners", "averages of its own part alone", overtakes_owners),
    Attack("two overtake the owners", "of seven", overtakes_owners, 7, 2),
    Attack("a stranger overtakes the owners", "with one free key", overtakes_owners, 5, 1, run=four_founders),
    Attack("signs early and withholds", "all chunks of others", signs_early_and_withholds, window_s=300),
    Attack("two sign early and withhold", "of seven", signs_early_and_withholds, 7, 2, window_s=300),
    Attack("overtakes itself", "another average than it holds", overtakes_itself),
    Attack("puts to the vote what nobody has", "one signed average of its own chunks", puts_what_nobody_has),
    Attack("leaves a member out of masks", "as owner of all chunks", owns_all_and_leaves_out),
    Attack("owns all for itself", "only liars in its masks", owns_all_for_itself),
    Attack("two own all for themselves", "of seven", owns_all_for_itself, 7, 2),
    Attack("three own all for themselves", "of ten", owns_all_for_itself, 10, 3),
    Attack("claims a wide line", "owns all, and leaves others out of its masks", claims_a_wide_line, 4, 1),
    Attack("two claim wide lines", "of seven", claims_a_wide_line, 7, 2),
    Attack("three claim wide lines", "of ten", claims_a_wide_line, 10, 3),
    Attack("strangers are early", "READY at once, so that others look late", many_are_early, 7, 0, 120),
    Attack("nobody lies, some are slower", "three of ten, by 30 %", some_are_slower, 10, 0),
    Attack("turns on each owner", "no parts for one, each time another", turns_on_each),
    Attack("two turn on each owner", "of seven", turns_on_each, 7, 2, window_s=300),
    Attack("three turn on each owner", "of ten", turns_on_each, 10, 3, window_s=300),
    Attack("frames an owner", "which waits for it until it is given up", frames_an_owner),
    Attack("reports falsely", "to whoever proposes", reports_falsely),
    Attack("two report falsely", "of seven, and delay", reports_falsely_and_delays, 7, 2),
]
