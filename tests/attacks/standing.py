"""Attacks on the standing of honest peers: what they do for a round is hidden, or they look as if they had stalled it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
from protocol.transport.interface import Bandwidth, NetworkError, Refused
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, ChunkResult, Proposal, Provenance, RecordProposal, Report, mask_of, pack
from tests.attacks.attack import Attack, Within, exchange, forge, holding
from tests.attacks.exchange_liars import Bogus, exchanging
from tests.attacks.forgers import Adding, Altering
from tests.attacks.ghosts import Strangers
from tests.attacks.proposers import owned_by_us
from tests.attacks.stage import Stage, four_founders
from tests.simulation.seat import Seat

HALF = 0.5
SEASONED = 5
"""Rounds after which founders have earned their seats, so that they can lose them."""


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


class SigningEarly(Overtaking):
    """Signs all chunks of others before their owners can, and gives nothing else: whoever asks it for them later, waits."""

    def _perform(self, effect: ExchangeEffect) -> None:
        if not isinstance(effect, SendPart | SendResult):
            super()._perform(effect)


def leaving_out(victims: Sequence[PeerId]) -> type[ExchangeRunner]:
    """Exchanges whose owner averages nothing of these members, where all chunks are its own, or there is one victim."""

    class LeavingOut(ExchangeRunner):
        def _perform(self, effect: ExchangeEffect) -> None:
            plan = self.machine.plan
            owned = any(plan.members[owner].peer in victims for owner in plan.owners)
            if isinstance(effect, Reduce) and (len(victims) == 1 or not owned):
                taken = [index for index in effect.members if self.machine.members[index] not in victims]
                effect = Reduce(effect.chunk, tuple(taken))
            super()._perform(effect)

    return LeavingOut


def leaves_out(victims: slice) -> Within:
    """These of the honest peers are in no average of the liars."""
    return lambda stage: exchanging(leaving_out(stage.honest_peers[victims]), stage.liar_peers)


def all_ours(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """All chunks are ours, and we put to the vote what comes of it."""
    changed = owned_by_us(machine, proposal)
    mine = machine._proposer._mine
    if mine is not None:
        mine.plan = changed.plan
    return changed


owns_all = forge(Altering(Proposal, all_ours, to_itself=True))
"""In a liar's own attempts all chunks are its own."""


async def claims_a_wide_line(stage: Stage) -> None:
    """Liars say that their lines carry four times as much as others', own all chunks, and average their own parts."""
    for seat in stage.liars:
        stage.network(seat).bandwidth = lambda: Bandwidth(200e6, 200e6)
    await holding(fair, leaves_out(EVERYBODY))(stage)


def signs_another_average(stage: Stage) -> Altering:
    """In its record proposals, one chunk that it owns has another average, of its own part alone, which it has signed and
    shows to nobody."""
    names = {seat.peer: seat.identity for seat in stage.liars}

    def change(machine: RoundMachine, record_proposal: RecordProposal) -> RecordProposal | None:
        record, provenance = record_proposal.record, record_proposal.provenance
        me = [member.peer for member in record.members].index(machine.me)
        chunk = provenance.signers.find(me)
        if record_proposal.proof is not None or chunk < 0:
            return None
        index, signatures = list(record_proposal.index), list(provenance.signatures)
        index[chunk] = ChunkEntry(hash=chunk_hash(b"nobody has it"), mask=mask_of([me], len(record.members)))
        result = ChunkResult(plan=plan_hash(plan_of(record, provenance)), chunk=chunk, entry=index[chunk])
        signatures[chunk] = pack(names[machine.me], stage.run, result).signature
        return record_proposal.model_copy(
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
    await holding(fair, forge(signs_another_average))(stage)


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


def false_reports(stage: Stage) -> Adding:
    """To whoever proposes: averages that nobody made, before anybody can have made any.

    The reporter signs them all itself, so that only an audit finds the lie.
    """
    keys = {seat.peer: seat.identity for seat in stage.liars}

    def false_report(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        if not isinstance(event, Arrived) or not isinstance(event.body, Proposal) or event.sender == machine.me:
            return []
        plan, attempt = event.body.plan, event.body.attempt
        members = [member.peer for member in plan.members]
        if machine.me not in members:
            return []
        mask, count = mask_of(range(len(members)), len(members)), len(plan.owners)
        index = [
            ChunkEntry(hash=chunk_hash(f"{plan.round} {attempt} {chunk}".encode()), mask=mask) for chunk in range(count)
        ]
        results = [ChunkResult(plan=plan_hash(plan), chunk=chunk, entry=entry) for chunk, entry in enumerate(index)]
        signatures = [pack(keys[machine.me], stage.run, each).signature for each in results]
        signers = bytes([members.index(machine.me)] * count)
        provenance = Provenance(owners=plan.owners, signers=signers, signatures=signatures)
        report = Report(round=plan.round, base=plan.base, plan=plan_hash(plan), index=index, provenance=provenance)
        return [Send((event.sender,), report)]

    return Adding(false_report)


EVERYBODY, ONE = slice(None), slice(1)
overtakes = holding(fair, exchange(Overtaking))
signs_early = holding(fair, exchange(SigningEarly))
for_itself = holding(fair, leaves_out(EVERYBODY), owns_all)
turns = holding(fair, exchange(TurnsOnEach))
frames = holding(fair, lambda stage: exchanging(framing(stage.honest_peers[0]), stage.liar_peers))
reports = forge(false_reports)

ATTACKS = [
    Attack("overtakes the owners", "averages of its own part alone", overtakes, rounds=SEASONED),
    Attack("two overtake the owners", "of seven", overtakes, 7, 2, rounds=SEASONED),
    Attack("a stranger overtakes the owners", "with one free key", overtakes, 5, 1, run=four_founders, rounds=SEASONED),
    Attack("signs early and withholds", "all chunks of others", signs_early, rounds=SEASONED, window_s=300),
    Attack("two sign early and withhold", "of seven", signs_early, 7, 2, rounds=SEASONED, window_s=300),
    Attack("overtakes itself", "another average than it holds", holding(fair, exchange(OvertakingItself)), rounds=SEASONED),
    Attack("puts to the vote what nobody has", "one signed average of its own chunks", puts_what_nobody_has),
    Attack("leaves a member out of masks", "as owner of all chunks", holding(fair, leaves_out(ONE), owns_all)),
    Attack("owns all for itself", "only liars in its masks", for_itself),
    Attack("two own all for themselves", "of seven", for_itself, 7, 2),
    Attack("three own all for themselves", "of ten", for_itself, 10, 3, quick=False),
    Attack("claims a wide line", "and leaves others out of its masks", claims_a_wide_line, 4, 1, rounds=SEASONED),
    Attack("two claim wide lines", "of seven", claims_a_wide_line, 7, 2, rounds=SEASONED),
    Attack("three claim wide lines", "of ten", claims_a_wide_line, 10, 3, rounds=SEASONED, quick=False),
    Attack("strangers are early", "READY at once, so that others look late", many_are_early, 7, 0, 120),
    Attack("nobody lies, some are slower", "three of ten, by 30 %", some_are_slower, 10, 0),
    Attack("turns on each owner", "no parts for one, each time another", turns),
    Attack("two turn on each owner", "of seven", turns, 7, 2, window_s=300),
    Attack("three turn on each owner", "of ten", turns, 10, 3, window_s=300, quick=False),
    Attack("frames an owner", "which waits for it until it is given up", frames),
    Attack("reports falsely", "to whoever proposes", holding(fair, reports)),
    Attack("two report falsely", "of seven, and delay", holding(fair, exchange(Bogus), reports), 7, 2),
]
