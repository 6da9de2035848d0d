"""Certificates that a few keys make alone, and votes that count for something else than they were cast for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from protocol.agreement.events import Arrived, RoundEffect, RoundEvent, Send
from protocol.agreement.machine import RoundMachine
from protocol.chain.base import Base
from protocol.chain.records import record_hash
from protocol.wire.identity import Identity
from protocol.wire.messages import Certificate, Commit, RecordProposal, Signature, Step, Vote, pack
from tests.attacks.attack import Attack
from tests.attacks.stage import Impostor, Stage
from tests.simulation.forgeries import Historian, Invention, certificate, commit, invented, keys, member
from tests.simulation.forgers import Adding, lying

EVERY_S = 2.0


class ElectorsHistorian(Historian, Impostor):
    """A `Historian` with the key of an elector."""


def forged(stage: Stage, signers: Sequence[Identity], value: float | None = 1000.0) -> tuple[Base, Invention]:
    """A record on the tip of the honest peers with these members only."""
    node = stage.node()
    base, digest = node._history.base, node._replica.state.digest()
    members = [member(one, stage.run, base, digest) for one in signers]
    return base, invented(stage.world.signed.manifest, base, members, digest, value)


def never_committed(stage: Stage, inventions: list[Invention]) -> None:
    """Expect that none of these is a record of an honest peer."""

    def clean() -> bool:
        names = {(one.record.round, record_hash(one.record)) for one in inventions}
        return all(
            node.tip_at(round + 1) != name
            for node in (stage.node(seat) for seat in stage.honest)
            for round, name in names
            if node.rounds > round
        )

    stage.expect("no forged record is in a chain", clean, within_s=1.0)


async def _certifying(stage: Stage, signers: list[Identity], certify: Callable[[Base, Invention], Certificate]) -> None:
    """An elector without a node, or a stranger, which now and then shows everybody a record certified like this."""
    speaker = stage.liars[0].identity if stage.liars else signers[0]
    liar, made = ElectorsHistorian(stage.world, speaker), list[Invention]()
    never_committed(stage, made)
    while True:
        base, invention = forged(stage, signers)
        made.append(invention)
        liar.inventions = made
        shown = commit(invention, certify(base, invention))
        for peer in stage.honest_peers:
            stage.world.spawn(liar.tell, peer, shown)
        await trio.sleep(EVERY_S)


def _takes_over(stage: Stage) -> list[Identity]:
    for seat in stage.liars:
        stage.world.faults.kill(seat)
    return sorted((seat.identity for seat in stage.liars), key=lambda one: one.peer_id)


async def alone(stage: Stage) -> None:
    """One elector takes all others for absent (simA)."""
    signers = _takes_over(stage)
    names = {one.peer_id for one in signers}
    await _certifying(
        stage,
        signers,
        lambda base, made: certificate(
            stage.run, made.record, signers, absent=[peer for peer in base.electors if peer not in names]
        ),
    )


async def alone_by_chain(stage: Stage) -> None:
    """The same, shown as a longer chain that heartbeats claim."""
    signers = _takes_over(stage)
    liar, made = ElectorsHistorian(stage.world, signers[0]), list[Invention]()
    never_committed(stage, made)
    stage.world.spawn(_claims, liar)
    while True:
        base, invention = forged(stage, signers)
        made.append(invention)
        absent = [peer for peer in base.electors if peer != signers[0].peer_id]
        node = stage.node()
        before = [node.commit_at(round) for round in range(base.round)]
        liar.inventions = made
        liar.chain = [*before, commit(invention, certificate(stage.run, invention.record, signers, absent=absent))]
        await trio.sleep(4 * EVERY_S)


async def _claims(liar: Historian) -> None:
    while not liar.chain:
        await trio.sleep(0.1)
    await liar.beat_on()


async def alone_with_a_node(stage: Stage) -> None:
    """The same from an elector that trains as all others do."""
    made = list[Invention]()
    never_committed(stage, made)
    liar = stage.liars[0]
    while True:
        base, invention = forged(stage, [liar.identity])
        made.append(invention)
        absent = [peer for peer in base.electors if peer != liar.peer]
        shown = commit(invention, certificate(stage.run, invention.record, [liar.identity], absent=absent))
        await stage.tell(liar, stage.honest_peers, shown)
        await trio.sleep(EVERY_S)


async def absent_and_signing(stage: Stage) -> None:
    """A certificate that takes somebody for absent whose vote is in it."""
    signers = _takes_over(stage)
    await _certifying(
        stage, signers, lambda base, made: certificate(stage.run, made.record, signers, absent=list(base.electors))
    )


async def members_alone(stage: Stage) -> None:
    """All electors are called absent, so that the record's members vote: the liar and keys of its own."""
    signers = sorted([*_takes_over(stage), *keys(10)], key=lambda one: one.peer_id)
    await _certifying(
        stage, signers, lambda base, made: certificate(stage.run, made.record, signers, absent=list(base.electors))
    )


async def strangers_sign(stage: Stage) -> None:
    """A full certificate by 64 keys that are no electors."""
    signers = keys(64)
    await _certifying(stage, signers, lambda base, made: certificate(stage.run, made.record, signers))


async def one_signs_often(stage: Stage) -> None:
    """One elector's vote as many times as a quorum needs."""
    signers = _takes_over(stage)

    def certify(base: Base, made: Invention) -> Certificate:
        once = certificate(stage.run, made.record, signers)
        return once.model_copy(update={"votes": once.votes * len(base.electors)})

    await _certifying(stage, signers, certify)


def _recycled(stage: Stage, change: Callable[[Commit], Commit | None]) -> Callable[[], Commit | None]:
    """What comes of changing the newest record's commit."""

    def made() -> Commit | None:
        node = stage.node()
        return change(node.commit_at(node.rounds - 1)) if node.rounds else None

    return made


async def _show(stage: Stage, make: Callable[[], Commit | None]) -> None:
    while True:
        shown = make()
        if shown is not None:
            await stage.tell(stage.liars[0], stage.honest_peers, shown)
        await trio.sleep(EVERY_S / 4)


async def votes_of_the_last_tip(stage: Stage) -> None:
    """The votes for the last record, under a record of our own on its tip."""
    made = list[Invention]()
    never_committed(stage, made)

    def change(last: Commit) -> Commit:
        _, invention = forged(stage, [stage.liars[0].identity])
        made.append(invention)
        return commit(invention, last.certificate)

    await _show(stage, _recycled(stage, change))


async def votes_of_another_attempt(stage: Stage) -> None:
    """The votes for a record under the number of another attempt, and under a list of absent electors."""
    flip = [0]

    def change(last: Commit) -> Commit:
        flip[0] += 1
        update = {"attempt": flip[0]} if flip[0] % 2 else {"absent": [stage.liars[0].peer]}
        return last.model_copy(update={"certificate": last.certificate.model_copy(update=update)})

    await _show(stage, _recycled(stage, change))


async def first_votes_as_second(stage: Stage) -> None:
    """A proposer shows the first votes for its motion as if they were second ones, and never asks for those."""
    liar = stage.liars[0]
    cast: dict[bytes, dict[str, bytes]] = {}
    motions: dict[bytes, RecordProposal] = {}

    def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, RecordProposal):
                motions[record_hash(effect.body.record)] = effect.body
        if not isinstance(event, Arrived) or not isinstance(event.body, Vote) or event.body.step is not Step.FIRST:
            return ()
        name = event.body.record_hash
        votes, motion = cast.setdefault(name, {}), motions.get(name)
        votes[event.sender] = event.signature
        if motion is None:
            return ()
        signed = [Signature(peer=peer, signature=votes[peer]) for peer in sorted(votes)]
        proof = Certificate(attempt=motion.attempt, absent=motion.absent, votes=signed)
        shown = Commit(record=motion.record, index=motion.index, certificate=proof)
        return [Send(tuple(stage.honest_peers), shown)]

    with lying({liar.peer: Adding(more)}):
        await trio.sleep_forever()


async def two_thirds_forged(stage: Stage) -> None:
    """Two liars of seven, and as many false signatures as a quorum still needs."""
    signers = _takes_over(stage)

    def certify(base: Base, made: Invention) -> Certificate:
        true = certificate(stage.run, made.record, signers)
        others = set(base.electors) - {one.peer_id for one in signers}
        lent = [Signature(peer=peer, signature=bytes(64)) for peer in sorted(others)]
        return true.model_copy(update={"votes": sorted([*true.votes, *lent], key=lambda one: one.peer)})

    await _certifying(stage, signers, certify)


async def many_kinds_of_votes(stage: Stage) -> None:
    """A stranger sends votes of both steps for every attempt to everybody."""
    ghost = stage.stranger()
    while True:
        base, invention = forged(stage, [ghost.identity])
        for step in Step:
            for attempt in range(4):
                body = Vote(
                    round=base.round,
                    base=base.tip,
                    attempt=attempt,
                    step=step,
                    absent=[],
                    record_hash=record_hash(invention.record),
                )
                assert pack(ghost.identity, stage.run, body).sender == ghost.peer
                for peer in stage.honest_peers:
                    stage.world.spawn(ghost.tell, peer, body)
        await trio.sleep(EVERY_S)


ATTACKS = [
    Attack("lone certificate", "takes all others for absent and certifies alone", alone),
    Attack("lone certificate as chain", "the same, shown as a longer chain", alone_by_chain),
    Attack("lone certificate of a trainer", "the same beside honest work", alone_with_a_node),
    Attack("two of seven certify", "take the five others for absent", alone, 7, 2),
    Attack("absent and signing", "takes itself for absent, too, and signs", absent_and_signing),
    Attack("members certify", "calls all electors absent and votes with keys of its own", members_alone, keys=10),
    Attack("64 strangers certify", "a certificate by keys that are no electors", strangers_sign, liars=0, keys=64),
    Attack("one vote five times", "the same signature as often as a quorum needs", one_signs_often),
    Attack("false signatures", "own votes and invented ones", two_thirds_forged, 7, 2),
    Attack("votes of the last tip", "replayed under a record of its own", votes_of_the_last_tip),
    Attack("votes of another attempt", "replayed under another number or absent list", votes_of_another_attempt),
    Attack("first votes as second", "a certificate of the wrong step", first_votes_as_second),
    Attack("votes of a stranger", "of both steps, for all attempts", many_kinds_of_votes, liars=0, keys=1),
]
