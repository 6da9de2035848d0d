"""Proposers that keep quiet, keep things back, or propose other things than they should."""

from __future__ import annotations

from collections.abc import Sequence

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
from tests.attacks.attack import Attack
from tests.attacks.exchanges import averaging_wrongly, expect_ejected
from tests.attacks.stage import Stage, listed_run
from tests.simulation.exchange_liars import Noisy, Repeating, exchanging
from tests.simulation.forgeries import keys, member
from tests.simulation.forgers import Altering, Forger, Withholding, half, lying, nobody, one
from tests.simulation.liars import blow_up, record_of


async def play(stage: Stage, *forgers: Forger) -> None:
    """The liars' machines are these forgers', one each; the last one for all that are left."""
    cast = {seat.peer: forgers[min(number, len(forgers) - 1)] for number, seat in enumerate(stage.liars)}
    with lying(cast):
        await trio.sleep_forever()


async def proposes_nothing(stage: Stage) -> None:
    await play(stage, Withholding(Proposal, RecordProposal, PrevoteCertificate, Commit, favoured=nobody))


async def proposes_to_one(stage: Stage) -> None:
    await play(stage, Withholding(Proposal, RecordProposal, favoured=one))


async def proposes_to_half(stage: Stage) -> None:
    await play(stage, Withholding(Proposal, RecordProposal, favoured=half))


async def keeps_the_motion(stage: Stage) -> None:
    await play(stage, Withholding(RecordProposal, favoured=nobody))


async def keeps_the_motion_and_repeats(stage: Stage) -> None:
    with exchanging(Repeating, {seat.peer for seat in stage.liars}):
        await keeps_the_motion(stage)


async def keeps_the_motion_and_makes_noise(stage: Stage) -> None:
    with exchanging(Noisy, {seat.peer for seat in stage.liars}):
        await keeps_the_motion(stage)


async def motion_to_half(stage: Stage) -> None:
    await play(stage, Withholding(RecordProposal, favoured=half))


async def keeps_the_proof(stage: Stage) -> None:
    await play(stage, Withholding(PrevoteCertificate, favoured=nobody))


async def proof_to_one(stage: Stage) -> None:
    await play(stage, Withholding(PrevoteCertificate, favoured=one))


async def keeps_the_commit(stage: Stage) -> None:
    await play(stage, Withholding(Commit, favoured=nobody))


async def commit_to_one(stage: Stage) -> None:
    await play(stage, Withholding(Commit, favoured=one))


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
    """The certificates are shown when others have gone on for ten rounds (simD)."""
    pocket = Pocket()
    with lying({stage.liars[0].peer: pocket}):
        while True:
            await trio.sleep(1)
            for round, commit in list(pocket.kept.items()):
                if stage.rounds() > round + 10:
                    await stage.tell(stage.liars[0], stage.honest_peers, commit)


# -- other plans ----------------------------------------------------------------------------------------------------------


def _with_plan(proposal: Proposal, plan: Plan) -> Proposal:
    return proposal.model_copy(update={"plan": plan})


def owned_by_us(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """All chunks are ours."""
    ours = [member.peer for member in proposal.plan.members].index(machine.me)
    return _with_plan(proposal, proposal.plan.model_copy(update={"owners": bytes([ours]) * len(proposal.plan.owners)}))


def turned_owners(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """The owners in another order."""
    return _with_plan(proposal, proposal.plan.model_copy(update={"owners": proposal.plan.owners[::-1]}))


def without(proposal: Proposal, gone: Sequence[str]) -> Proposal:
    """The plan without these members."""
    plan = proposal.plan
    members = [each for each in plan.members if each.peer not in gone]
    owners = bytes(owner % len(members) for owner in plan.owners)
    return _with_plan(proposal, plan.model_copy(update={"members": members, "owners": owners}))


def without_an_elector(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """One elector that is ready is left out."""
    victim = next(peer for peer in machine.base.electors if peer != machine.me)
    return without(proposal, [victim])


def with_another_digest(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """It stands on a state that nobody has (simL)."""
    return _with_plan(proposal, proposal.plan.model_copy(update={"state_digest": b"\x77" * 32}))


def with_fewer_rolls(machine: RoundMachine, proposal: Proposal) -> Proposal:
    """Justified by one roll, as often as it takes."""
    return proposal.model_copy(update={"rolls": proposal.rolls[:1] * len(proposal.rolls)})


async def other_owners(stage: Stage) -> None:
    await play(stage, Altering(Proposal, owned_by_us, to_itself=True))


async def two_plans(stage: Stage) -> None:
    await play(stage, Altering(Proposal, turned_owners, halves=True))


async def leaves_one_out(stage: Stage) -> None:
    await play(stage, Altering(Proposal, without_an_elector, to_itself=True))


async def another_state(stage: Stage) -> None:
    await play(stage, Altering(Proposal, with_another_digest))


async def too_few_rolls(stage: Stage) -> None:
    await play(stage, Altering(Proposal, with_fewer_rolls))


async def padded(stage: Stage) -> None:
    """Eleven keys that the run's list does not name, each with a READY of its own (simB)."""
    unlisted = keys(11, "unlisted")
    for key in unlisted:
        stage.world.judge.liars[key.peer_id] = None

    def pad(machine: RoundMachine, proposal: Proposal) -> Proposal:
        plan = proposal.plan
        base = Base(plan.round, plan.fragment, machine.base.tip, ())
        more = [member(key, stage.run, base, plan.state_digest) for key in unlisted]
        return _with_plan(proposal, _padded(plan, more))

    def only_listed() -> bool:
        node, listed = stage.node(), stage.world.signed.manifest.allowlist
        return all(m.peer in listed for round in range(node.rounds) for m in node.commit_at(round).record.members)

    stage.expect("no record names a key that is not on the list", only_listed, within_s=1.0)
    await play(stage, Altering(Proposal, pad, to_itself=True))


async def padded_without_readys(stage: Stage) -> None:
    """Keys that said nothing, under the signature of another member's READY."""
    invented = keys(11, "silent")

    def pad(machine: RoundMachine, proposal: Proposal) -> Proposal:
        like = proposal.plan.members[0]
        more = [like.model_copy(update={"peer": key.peer_id}) for key in invented]
        return _with_plan(proposal, _padded(proposal.plan, more))

    def nobody_invented() -> bool:
        node, names = stage.node(), {key.peer_id for key in invented}
        return all(m.peer not in names for round in range(node.rounds) for m in node.commit_at(round).record.members)

    stage.expect("no record names a key that was not ready", nobody_invented, within_s=1.0)
    await play(stage, Altering(Proposal, pad, to_itself=True))


def _padded(plan: Plan, more: Sequence[Member]) -> Plan:
    members = sorted([*plan.members, *more], key=lambda each: each.peer)
    places = [each.peer for each in members]
    owners = bytes(places.index(plan.members[owner].peer) for owner in plan.owners)
    return plan.model_copy(update={"members": members, "owners": owners})


# -- other motions ------------------------------------------------------------------------------------------------------


def made_up(stage: Stage, *, signed: bool) -> Altering:
    """Instead of a proposal, at once a motion whose every chunk the proposer averaged itself, as it says."""
    liar = stage.liars[0]

    def motion(machine: RoundMachine, proposal: Proposal) -> RecordProposal:
        plan = owned_by_us(machine, proposal).plan
        mask = mask_of(range(len(plan.members)), len(plan.members))
        index = [ChunkEntry(hash=chunk_hash(bytes([chunk % 256])), mask=mask) for chunk in range(len(plan.owners))]
        results = [ChunkResult(plan=plan_hash(plan), chunk=chunk, entry=entry) for chunk, entry in enumerate(index)]
        signatures = [pack(liar.identity, stage.run, each).signature if signed else bytes(64) for each in results]
        provenance = Provenance(owners=plan.owners, signers=plan.owners, signatures=signatures)
        return RecordProposal(
            attempt=proposal.attempt,
            absent=proposal.absent,
            record=record_of(plan, index),
            index=index,
            provenance=provenance,
            rolls=proposal.rolls,
            proof=None,
        )

    return Altering(Proposal, motion)


async def motion_before_exchange(stage: Stage) -> None:
    await play(stage, made_up(stage, signed=True))


async def unsigned_motion_before_exchange(stage: Stage) -> None:
    await play(stage, made_up(stage, signed=False))


def unsigned(machine: RoundMachine, motion: RecordProposal) -> RecordProposal:
    """False signatures for all chunks (simJ)."""
    signatures = [bytes(64)] * len(motion.provenance.signatures)
    return motion.model_copy(update={"provenance": motion.provenance.model_copy(update={"signatures": signatures})})


async def false_signatures(stage: Stage) -> None:
    await play(stage, Altering(RecordProposal, unsigned))


async def false_signatures_of_false_averages(stage: Stage) -> None:
    """What it averages as an owner is spoilt as well."""
    expect_ejected(stage)
    with lying({stage.liars[0].peer: Altering(RecordProposal, unsigned)}):
        await averaging_wrongly(stage, blow_up)


async def false_signatures_in_members(stage: Stage) -> None:
    def forged(machine: RoundMachine, proposal: Proposal) -> Proposal:
        members = [each.model_copy(update={"signature": bytes(64)}) for each in proposal.plan.members]
        return _with_plan(proposal, proposal.plan.model_copy(update={"members": members}))

    await play(stage, Altering(Proposal, forged))


async def two_motions(stage: Stage) -> None:
    """One half hears of the exchange's result, the other of a result that leaves a member out of every mask."""

    def other(machine: RoundMachine, motion: RecordProposal) -> RecordProposal:
        count = len(motion.record.members)
        index = [each.model_copy(update={"mask": mask_of(range(count - 1), count)}) for each in motion.index]
        record = motion.record.model_copy(update={"result_root": index_root(index)})
        return motion.model_copy(update={"record": record, "index": index})

    await play(stage, Altering(RecordProposal, other, halves=True))


async def two_records_in_turn(stage: Stage) -> None:
    """The same ballot's motion again and again, with another record each time."""
    turn_of = [0]

    def other(machine: RoundMachine, motion: RecordProposal) -> RecordProposal:
        turn_of[0] += 1
        index = [ChunkEntry(hash=chunk_hash(bytes([turn_of[0] % 256])), mask=each.mask) for each in motion.index]
        record = motion.record.model_copy(update={"result_root": index_root(index)})
        return motion.model_copy(update={"record": record, "index": index})

    await play(stage, Altering(RecordProposal, other))


async def calls_a_live_elector_absent(stage: Stage) -> None:
    def absent(machine: RoundMachine, proposal: Proposal) -> Proposal:
        victim = next(peer for peer in machine.base.electors if peer != machine.me)
        return proposal.model_copy(update={"absent": [victim]})

    await play(stage, Altering(Proposal, absent))


ATTACKS = [
    Attack("proposes nothing", "in its attempts", proposes_nothing),
    Attack("two propose nothing", "of seven electors", proposes_nothing, 7, 2),
    Attack("proposes to one", "and to nobody else", proposes_to_one),
    Attack("proposes to half", "the others hear nothing", proposes_to_half),
    Attack("keeps the motion", "the exchange is done in vain", keeps_the_motion),
    Attack("keeps it and repeats", "pushes its part again every 2 s", keeps_the_motion_and_repeats),
    Attack("keeps it and makes noise", "pushes worthless parts", keeps_the_motion_and_makes_noise),
    Attack("motion to half", "the others hear of no motion", motion_to_half),
    Attack("keeps the proof", "first votes lead nowhere", keeps_the_proof),
    Attack("proof to one", "one elector is locked", proof_to_one),
    Attack("keeps the commit", "but goes on itself", keeps_the_commit),
    Attack("commit to one", "the others hear it from that one", commit_to_one),
    Attack("certificate shown late", "ten rounds later", certificate_shown_late),
    Attack("other owners", "all chunks are the proposer's", other_owners),
    Attack("two plans", "one for each half", two_plans),
    Attack("leaves an elector out", "that is ready", leaves_one_out),
    Attack("calls an elector absent", "that is alive", calls_a_live_elector_absent),
    Attack("another state", "a digest that is nobody's", another_state),
    Attack("too few rolls", "one roll many times", too_few_rolls),
    Attack("padded plan", "keys that the list does not name", padded, 4, 1, 11, run=listed_run),
    Attack("padded without READYs", "keys that said nothing", padded_without_readys, keys=11),
    Attack("motion before the exchange", "signed averages of nothing", motion_before_exchange),
    Attack("unsigned motion", "the same without signatures", unsigned_motion_before_exchange),
    Attack("false signatures in motions", "over right averages", false_signatures),
    Attack("false signatures, false averages", "to save itself from being convicted", false_signatures_of_false_averages),
    Attack("false signatures in plans", "of the members' READYs", false_signatures_in_members),
    Attack("two motions", "one for each half", two_motions),
    Attack("another record each time", "in one ballot", two_records_in_turn),
]
