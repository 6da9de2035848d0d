"""Proposers that keep quiet, keep things back, or propose other things than they should."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from protocol.agreement.events import Committed, RoundEffect, Send
from protocol.agreement.machine import RoundMachine
from protocol.allreduce.assignment import plan_hash
from protocol.chain.base import Base
from protocol.chain.records import index_root
from protocol.wire.hashes import chunk_hash
from protocol.wire.messages import (
    ChunkEntry,
    ChunkResult,
    Commit,
    Member,
    Plan,
    PrevoteCertificate,
    Proposal,
    Provenance,
    RecordProposal,
    mask_of,
    pack,
)
from tests.attacks.attack import Attack, exchange, forge, holding, proven
from tests.attacks.exchange_liars import Noisy, Repeating, blow_up
from tests.attacks.exchanges import averaging_wrongly
from tests.attacks.forgeries import keys, member, record_of
from tests.attacks.forgers import Altering, Forger, Withholding, half, lying, one
from tests.attacks.stage import Stage, listed_run


class Pocket(Forger):
    """Keeps every certificate of its own to itself, and does not even commit the record.  kept: by round."""

    def __init__(self) -> None:
        self.kept: dict[int, Commit] = {}

    def instead(self, machine: RoundMachine, effect: RoundEffect) -> Sequence[RoundEffect]:
        body = effect.body if isinstance(effect, Send) else None
        if isinstance(body, Commit) and body.record.round not in self.kept:
            self.kept[body.record.round] = body
            return []
        if isinstance(effect, Committed) and effect.commit == self.kept.get(effect.commit.record.round):
            return []
        return [effect]


async def certificate_shown_late(stage: Stage) -> None:
    """The certificates are shown when others have gone on for five rounds (simD)."""
    pocket = Pocket()
    with lying({stage.liars[0].peer: pocket}):
        while True:
            await trio.sleep(1)
            for round, commit in list(pocket.kept.items()):
                if stage.rounds() > round + 5:
                    await stage.tell(stage.liars[0], stage.honest_peers, commit)


# -- other plans ----------------------------------------------------------------------------------------------------------


def with_plan(proposal: Proposal, **changes: object) -> Proposal:
    """The proposal of a plan that is changed like this."""
    return proposal.model_copy(update={"plan": proposal.plan.model_copy(update=changes)})


def owned_by_us(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """All chunks are ours."""
    ours = [member.peer for member in proposal.plan.members].index(machine.me)
    return with_plan(proposal, owners=bytes([ours]) * len(proposal.plan.owners))


def turned_owners(proposal: Proposal) -> Proposal:
    """The owners in another order."""
    return with_plan(proposal, owners=proposal.plan.owners[::-1])


def victim_of(machine: RoundMachine) -> str:
    """An elector that is ready, and not us."""
    return next(peer for peer in machine.base.electors if peer != machine.me)


def without_an_elector(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """One elector that is ready is left out."""
    members = [each for each in proposal.plan.members if each.peer != victim_of(machine)]
    return with_plan(proposal, members=members, owners=bytes(owner % len(members) for owner in proposal.plan.owners))


def with_unsigned_members(machine: RoundMachine, proposal: Proposal) -> Proposal:
    members = [each.model_copy(update={"signature": bytes(64)}) for each in proposal.plan.members]
    return with_plan(proposal, members=members)


def padded(make: Callable[[Stage, Base, Plan], list[Member]]) -> Callable[[Stage], Altering]:
    """Its plans name members that they must not name, and that no record may name."""

    def forger(stage: Stage) -> Altering:
        named: set[str] = set()

        def pad(machine: RoundMachine, proposal: Proposal) -> Proposal:
            plan = proposal.plan
            more = make(stage, Base(plan.round, plan.fragment, machine.base.tip, ()), plan)
            named.update(each.peer for each in more)
            members = sorted([*plan.members, *more], key=lambda each: each.peer)
            places = [each.peer for each in members]
            owners = bytes(places.index(plan.members[owner].peer) for owner in plan.owners)
            return with_plan(proposal, members=members, owners=owners)

        stage.expect("no record names such a member", lambda: named.isdisjoint(stage.in_records()), within_s=1.0)
        return Altering(Proposal, pad, to_itself=True)

    return forger


def unlisted(stage: Stage, base: Base, plan: Plan) -> list[Member]:
    """Eleven keys that the run's list does not name, each with a READY of its own (simB)."""
    made = keys(11, "unlisted")
    stage.world.judge.liars |= dict.fromkeys(key.peer_id for key in made)
    return [member(key, stage.run, base, plan.state_digest) for key in made]


def silent(stage: Stage, base: Base, plan: Plan) -> list[Member]:
    """Keys that said nothing, under the signature of another member's READY."""
    return [plan.members[0].model_copy(update={"peer": key.peer_id}) for key in keys(11, "silent")]


# -- other record proposals -------------------------------------------------------------------------------------------------


def made_up(*, signed: bool) -> Callable[[Stage], Altering]:
    """Instead of a proposal, at once a record proposal whose every chunk the proposer averaged itself, as it says."""

    def forger(stage: Stage) -> Altering:
        liar, roots = stage.liars[0], set[bytes]()

        def record_proposal(machine: RoundMachine, proposal: Proposal) -> RecordProposal:
            plan = owned_by_us(machine, proposal).plan
            mask = mask_of(range(len(plan.members)), len(plan.members))
            index = [ChunkEntry(hash=chunk_hash(bytes([chunk % 256])), mask=mask) for chunk in range(len(plan.owners))]
            results = [ChunkResult(plan=plan_hash(plan), chunk=chunk, entry=entry) for chunk, entry in enumerate(index)]
            signatures = [pack(liar.identity, stage.run, each).signature if signed else bytes(64) for each in results]
            roots.add(index_root(index))
            return RecordProposal(
                attempt=proposal.attempt,
                absent=proposal.absent,
                record=record_of(plan, index),
                index=index,
                provenance=Provenance(owners=plan.owners, signers=plan.owners, signatures=signatures),
                view_changes=proposal.view_changes,
                proof=None,
            )

        def recorded() -> set[bytes]:
            node = stage.node()
            return {node.commit_at(round).record.result_root for round in range(node.rounds)}

        stage.expect("nobody voted for it", lambda: roots.isdisjoint(recorded()), within_s=1.0)
        return Altering(Proposal, record_proposal)

    return forger


def unsigned(machine: RoundMachine, record_proposal: RecordProposal) -> RecordProposal:
    """False signatures for all chunks (simJ)."""
    signatures = [bytes(64)] * len(record_proposal.provenance.signatures)
    return record_proposal.model_copy(
        update={"provenance": record_proposal.provenance.model_copy(update={"signatures": signatures})}
    )


async def false_signatures_of_false_averages(stage: Stage) -> None:
    """What it averages as an owner is spoilt as well."""
    with forge(Altering(RecordProposal, unsigned))(stage):
        await averaging_wrongly(stage, blow_up)


def with_index(record_proposal: RecordProposal, index: list[ChunkEntry]) -> RecordProposal:
    record = record_proposal.record.model_copy(update={"result_root": index_root(index)})
    return record_proposal.model_copy(update={"record": record, "index": index})


def with_one_left_out(machine: RoundMachine, record_proposal: RecordProposal) -> RecordProposal:
    """A result that leaves a member out of every mask."""
    count = len(record_proposal.record.members)
    return with_index(
        record_proposal,
        [each.model_copy(update={"mask": mask_of(range(count - 1), count)}) for each in record_proposal.index],
    )


def another_each_time(stage: Stage) -> Altering:
    """The same ballot's record proposal again and again, with another record each time."""
    turn = [0]

    def other(machine: RoundMachine, record_proposal: RecordProposal) -> RecordProposal:
        turn[0] += 1
        return with_index(
            record_proposal,
            [ChunkEntry(hash=chunk_hash(bytes([turn[0] % 256])), mask=e.mask) for e in record_proposal.index],
        )

    return Altering(RecordProposal, other)


PROPOSED = (Proposal, RecordProposal)
quiet = holding(forge(Withholding(Proposal, RecordProposal, PrevoteCertificate, Commit)))
keeps_record_proposals = forge(Withholding(RecordProposal))

ATTACKS = [
    Attack("proposes nothing", "in its attempts", quiet),
    Attack("two propose nothing", "of seven electors", quiet, 7, 2),
    Attack("proposes to one", "and to nobody else", holding(forge(Withholding(*PROPOSED, favoured=one)))),
    Attack("proposes to half", "the others hear nothing", holding(forge(Withholding(*PROPOSED, favoured=half)))),
    Attack("keeps the record proposal", "the exchange is done in vain", holding(keeps_record_proposals)),
    Attack("keeps it and repeats", "pushes its part again every 2 s", holding(exchange(Repeating), keeps_record_proposals)),
    Attack("keeps it and makes noise", "pushes worthless parts", holding(exchange(Noisy), keeps_record_proposals)),
    Attack(
        "record proposal to half",
        "the others hear of no record proposal",
        holding(forge(Withholding(RecordProposal, favoured=half))),
    ),
    Attack("keeps the proof", "first votes lead nowhere", holding(forge(Withholding(PrevoteCertificate)))),
    Attack("proof to one", "one elector is locked", holding(forge(Withholding(PrevoteCertificate, favoured=one)))),
    Attack("keeps the commit", "but goes on itself", holding(forge(Withholding(Commit)))),
    Attack("commit to one", "the others hear it from that one", holding(forge(Withholding(Commit, favoured=one)))),
    Attack("certificate shown late", "five rounds later", certificate_shown_late),
    *(
        Attack(name, how, holding(forge(Altering(Proposal, change, to_itself=True))))
        for name, how, change in (
            ("other owners", "all chunks are the proposer's", owned_by_us),
            ("leaves an elector out", "that is ready", without_an_elector),
        )
    ),
    *(
        Attack(name, how, holding(forge(Altering(Proposal, change))))
        for name, how, change in (
            (
                "calls an elector absent",
                "that is alive",
                lambda machine, proposal: proposal.model_copy(update={"absent": [victim_of(machine)]}),
            ),
            (
                "another state",
                "a digest that is nobody's (simL)",
                lambda machine, proposal: with_plan(proposal, state_digest=b"\x77" * 32),
            ),
            (
                "too few view changes",
                "one view change many times",
                lambda machine, proposal: proposal.model_copy(
                    update={"view_changes": proposal.view_changes[:1] * len(proposal.view_changes)}
                ),
            ),
            ("false signatures in plans", "of the members' READYs", with_unsigned_members),
        )
    ),
    Attack(
        "two plans",
        "one for each half",
        holding(proven, forge(Altering(Proposal, lambda machine, proposal: turned_owners(proposal), halves=True))),
    ),
    Attack("padded plan", "keys that the list does not name", holding(forge(padded(unlisted))), 4, 1, 11, run=listed_run),
    Attack("padded without READYs", "keys that said nothing", holding(forge(padded(silent))), keys=11),
    Attack("record proposal before the exchange", "signed averages of nothing", holding(forge(made_up(signed=True)))),
    Attack("unsigned record proposal", "the same without signatures", holding(forge(made_up(signed=False)))),
    Attack(
        "false signatures in record proposals", "over right averages", holding(forge(Altering(RecordProposal, unsigned)))
    ),
    Attack("false signatures, false averages", "to save itself from being convicted", false_signatures_of_false_averages),
    Attack(
        "record proposal with one view change",
        "of the quorum that it needs",
        holding(
            forge(
                Altering(
                    RecordProposal,
                    lambda machine, record_proposal: record_proposal.model_copy(
                        update={"view_changes": record_proposal.view_changes[:1]}
                    ),
                )
            )
        ),
    ),
    Attack(
        "two record proposals",
        "one for each half",
        holding(proven, forge(Altering(RecordProposal, with_one_left_out, halves=True))),
    ),
    Attack("another record each time", "in one ballot", holding(forge(another_each_time))),
]
