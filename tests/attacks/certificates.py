"""Certificates that a few keys make alone, and votes that count for something else than they were cast for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from protocol.agreement.events import Arrived, RoundEffect, RoundEvent, Send
from protocol.agreement.machine import RoundMachine
from protocol.chain.base import Base
from protocol.chain.records import record_hash
from protocol.wire.identity import Identity
from protocol.wire.messages import Certificate, Commit, RecordProposal, Signature, Step, Vote
from tests.attacks.attack import Attack, Conduct, forge, holding
from tests.attacks.forgeries import Invention, certificate, commit, invented, keys, member, vote
from tests.attacks.forgers import Adding
from tests.attacks.ghosts import Historian
from tests.attacks.stage import Stage

EVERY_S = 2.0


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


Certify = Callable[[Stage, Base, Invention, list[Identity]], Certificate]


def certifying(certify: Certify, *more: Identity) -> Conduct:
    """Liars without nodes and these keys, or the keys alone, now and then show everybody a record certified like this."""

    async def conduct(stage: Stage) -> None:
        signers, made = sorted([*_takes_over(stage), *more], key=lambda one: one.peer_id), list[Invention]()
        liar = Historian(stage.world, stage.liars[0].identity if stage.liars else signers[0])
        never_committed(stage, made)
        while True:
            base, invention = forged(stage, signers)
            made.append(invention)
            liar.inventions = made
            shown = commit(invention, certify(stage, base, invention, signers))
            for peer in stage.honest_peers:
                stage.world.spawn(liar.tell, peer, shown)
            await trio.sleep(EVERY_S)

    return conduct


def _takes_over(stage: Stage) -> list[Identity]:
    for seat in stage.liars:
        stage.world.faults.kill(seat)
    return [seat.identity for seat in stage.liars]


def others_absent(stage: Stage, base: Base, made: Invention, signers: list[Identity]) -> Certificate:
    """All others are taken for absent (simA)."""
    names = {one.peer_id for one in signers}
    return certificate(stage.run, made.record, signers, absent=[peer for peer in base.electors if peer not in names])


def all_absent(stage: Stage, base: Base, made: Invention, signers: list[Identity]) -> Certificate:
    """Everybody is taken for absent, also those whose votes are in it, so that the record's members vote."""
    return certificate(stage.run, made.record, signers, absent=list(base.electors))


def plain(stage: Stage, base: Base, made: Invention, signers: list[Identity]) -> Certificate:
    return certificate(stage.run, made.record, signers)


def repeated(stage: Stage, base: Base, made: Invention, signers: list[Identity]) -> Certificate:
    """One elector's vote as many times as a quorum needs."""
    once = plain(stage, base, made, signers)
    return once.model_copy(update={"votes": once.votes * len(base.electors)})


def padded(stage: Stage, base: Base, made: Invention, signers: list[Identity]) -> Certificate:
    """As many false signatures as a quorum still needs, and the liar's own in the name of one more."""
    true = plain(stage, base, made, signers)
    first, *others = sorted(set(base.electors) - {one.peer_id for one in signers})
    lent = [true.votes[0].model_copy(update={"peer": first})]
    false = [Signature(peer=peer, signature=bytes(64)) for peer in others]
    return true.model_copy(update={"votes": sorted([*true.votes, *lent, *false], key=lambda one: one.peer)})


async def alone_by_chain(stage: Stage) -> None:
    """One elector takes all others for absent, and shows this as a longer chain that heartbeats claim."""
    signers, made = _takes_over(stage), list[Invention]()
    liar = Historian(stage.world, signers[0])
    never_committed(stage, made)
    stage.world.spawn(liar.beat_on)
    while True:
        base, invention = forged(stage, signers)
        made.append(invention)
        node = stage.node()
        before = [node.commit_at(round) for round in range(base.round)]
        liar.inventions = made
        liar.chain = [*before, commit(invention, others_absent(stage, base, invention, signers))]
        await trio.sleep(4 * EVERY_S)


async def alone_with_a_node(stage: Stage) -> None:
    """The same certificate from an elector that trains as all others do."""
    made, liar = list[Invention](), stage.liars[0]
    never_committed(stage, made)
    while True:
        base, invention = forged(stage, [liar.identity])
        made.append(invention)
        shown = commit(invention, others_absent(stage, base, invention, [liar.identity]))
        await stage.tell(liar, stage.honest_peers, shown)
        await trio.sleep(EVERY_S)


def recycling(change: Callable[[Stage, list[Invention], Commit], Commit]) -> Conduct:
    """An elector shows what comes of changing the newest record's commit, and of records that it invents for it."""

    async def conduct(stage: Stage) -> None:
        made = list[Invention]()
        never_committed(stage, made)
        while True:
            node = stage.node()
            if node.rounds:
                shown = change(stage, made, node.commit_at(node.rounds - 1))
                await stage.tell(stage.liars[0], stage.honest_peers, shown)
            await trio.sleep(EVERY_S / 4)

    return conduct


def under_another_record(stage: Stage, made: list[Invention], last: Commit) -> Commit:
    """The votes for the last record, under a record of our own on its tip."""
    made.append(forged(stage, [stage.liars[0].identity])[1])
    return commit(made[-1], last.certificate)


def under_another_ballot(stage: Stage, made: list[Invention], last: Commit) -> Commit:
    """The votes for a record under the number of another attempt, or a list of absent electors, by turns."""
    seconds = int(stage.world.now() / EVERY_S * 4)
    update = {"attempt": seconds} if seconds % 2 else {"absent": [stage.liars[0].peer]}
    return last.model_copy(update={"certificate": last.certificate.model_copy(update=update)})


def first_votes_as_second(stage: Stage) -> Adding:
    """A proposer shows the first votes for its record proposal as if they were second ones, and never asks for those."""
    cast: dict[bytes, dict[str, bytes]] = {}
    record_proposals: dict[bytes, RecordProposal] = {}

    def more(machine: RoundMachine, event: RoundEvent, effects: list[RoundEffect]) -> Sequence[RoundEffect]:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, RecordProposal):
                record_proposals[record_hash(effect.body.record)] = effect.body
        if not isinstance(event, Arrived) or not isinstance(event.body, Vote) or event.body.step is not Step.FIRST:
            return ()
        name = event.body.record_hash
        votes, record_proposal = cast.setdefault(name, {}), record_proposals.get(name)
        votes[event.sender] = event.signature
        if record_proposal is None:
            return ()
        signed = [Signature(peer=peer, signature=votes[peer]) for peer in sorted(votes)]
        proof = Certificate(attempt=record_proposal.attempt, absent=record_proposal.absent, votes=signed)
        shown = Commit(record=record_proposal.record, index=record_proposal.index, certificate=proof)
        return [Send(tuple(stage.honest_peers), shown)]

    return Adding(more)


async def many_kinds_of_votes(stage: Stage) -> None:
    """A stranger sends votes of both steps for every attempt to everybody."""
    ghost = stage.stranger()
    while True:
        _, invention = forged(stage, [ghost.identity])
        for step in Step:
            for attempt in range(4):
                for peer in stage.honest_peers:
                    stage.world.spawn(ghost.tell, peer, vote(invention.record, step, attempt, ()))
        await trio.sleep(EVERY_S)


ATTACKS = [
    Attack("lone certificate", "takes all others for absent and certifies alone", certifying(others_absent)),
    Attack("lone certificate as chain", "the same, shown as a longer chain", alone_by_chain),
    Attack("lone certificate of a trainer", "the same beside honest work", alone_with_a_node),
    Attack("two of seven certify", "take the five others for absent", certifying(others_absent), 7, 2),
    Attack("absent and signing", "takes itself for absent, too, and signs", certifying(all_absent)),
    Attack("members certify", "all electors absent, keys of its own vote", certifying(all_absent, *keys(10)), keys=10),
    Attack("64 strangers certify", "by keys that are no electors", certifying(plain, *keys(64)), liars=0, keys=64),
    Attack("one vote five times", "the same signature as often as a quorum needs", certifying(repeated)),
    Attack("false signatures", "own votes, lent ones and invented ones", certifying(padded), 7, 2),
    Attack("votes of the last tip", "replayed under a record of its own", recycling(under_another_record)),
    Attack("votes of another attempt", "replayed under another number or absent list", recycling(under_another_ballot)),
    Attack("first votes as second", "a certificate of the wrong step", holding(forge(first_votes_as_second))),
    Attack("votes of a stranger", "of both steps, for all attempts", many_kinds_of_votes, liars=0, keys=1),
]
