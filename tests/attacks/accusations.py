"""False accusations, accusations that take time, and statements that look like two where they are one."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from protocol.audit.evidence import TwoStatements, encode_evidence, evidence_hash
from protocol.transport.interface import Refused
from protocol.wire.envelope import decode_body
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Accusation, Ready, pack
from protocol.wire.questions import EvidenceRequest
from tests.attacks.attack import Attack
from tests.attacks.exchanges import expect_ejected
from tests.attacks.stage import Stage
from tests.simulation.forgeries import keys, ready
from tests.simulation.liars import Ghost
from tests.simulation.nonces import sealed_with_nonce

SLOTS = 16
"""Accusations that are looked into at a time."""


class Accuser(Ghost):
    """Serves proofs by name, each slice after `delay_s`; zeros of the size that is asked for, where it has none."""

    proofs: dict[bytes, bytes] = {}
    delay_s = 0.0

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        self.asked.append((kind, data))
        if kind != "evidence":
            raise Refused("an accuser knows nothing else")
        question = decode_body(EvidenceRequest, data)
        await trio.sleep(self.delay_s)
        proof = self.proofs.get(question.evidence, bytes(64 << 20) if self.delay_s else b"")
        return proof[question.offset : question.offset + question.length]


def accuser(stage: Stage, number: int = 0) -> Accuser:
    """A stranger that accuses."""
    made = Accuser(stage.world, bytes([0x60 + number]))
    stage.world.judge.liars[made.peer] = None
    made.proofs = {}
    return made


def nobody(number: int) -> PeerId:
    """A peer that does not exist."""
    return keys(1, f"nobody {number}")[0].peer_id


async def say_until_cancelled(ghost: Ghost, accusations: Sequence[Accusation], every_s: float) -> None:
    while True:
        for accusation in accusations:
            await ghost.gossip(accusation)
        await trio.sleep(every_s)


def _two_of(identity: Identity, stage: Stage) -> TwoStatements:
    base = stage.node()._history.base
    first, second = (pack(identity, stage.run, ready(base, b"\x01" * 32, serial=7, tokens=tokens)).raw for tokens in (8, 16))
    return TwoStatements(first=first, second=second)


async def one_ready_signed_twice(stage: Stage) -> None:
    """The same READY under two nonces: it contradicts nothing (simG)."""
    ghost = stage.stranger()
    body = ready(stage.node()._history.base, b"\x01" * 32)
    while True:
        for nonce in (12345678901234567, 98765432109876543):
            await ghost.network.publish(sealed_with_nonce(ghost.identity, stage.run, body, nonce).raw)
            await trio.sleep(1)


async def plus_and_minus_zero(stage: Stage) -> None:
    """Two READYs that differ in the sign of a zero."""
    ghost = stage.stranger()
    body = ready(stage.node()._history.base, b"\x01" * 32)
    while True:
        for loss in (0.0, -0.0):
            await ghost.gossip(body.model_copy(update={"loss": loss}))
            await trio.sleep(1)


async def contradicts_itself(stage: Stage) -> None:
    """An elector says two different READYs for one slot: it is ejected."""
    expect_ejected(stage)
    liar, base = stage.liars[0], stage.node()._history.base
    for tokens in (8, 16):
        await stage.gossip(liar, ready(base, b"\x01" * 32, serial=7, tokens=tokens))
        await trio.sleep(0.5)
    await trio.sleep_forever()


async def one_proof_two_accusers(stage: Stage) -> None:
    """Two accusations that name the same proof, in the same moment (simH)."""
    accusers = [accuser(stage, number) for number in (0, 1)]
    number = 0
    while True:
        number += 1
        said = Accusation(accused=nobody(0), evidence=bytes([number % 256]) * 32, size=100)
        for seat in stage.honest:
            for one in accusers:
                stage.node(seat).router.on_gossip(one.peer, pack(one.identity, stage.run, said).raw)
        accusers = (
            [accuser(stage, 2 + 2 * (number % 10)), accuser(stage, 3 + 2 * (number % 10))] if number < 10 else accusers
        )
        await trio.sleep(2)


async def a_true_proof_from_two(stage: Stage) -> None:
    """The same with a proof that is true, as honest accusers cause it."""
    guilty = stage.stranger(9)
    proof = encode_evidence(_two_of(guilty.identity, stage))
    accusers = [accuser(stage, number) for number in (0, 1)]
    said = Accusation(accused=guilty.peer, evidence=evidence_hash(proof), size=len(proof))
    for one in accusers:
        one.proofs = {said.evidence: proof}
    stage.expect("the guilty one is ejected", lambda: stage.ejected(guilty.peer))
    for seat in stage.honest:
        for one in accusers:
            stage.node(seat).router.on_gossip(one.peer, pack(one.identity, stage.run, said).raw)
    await trio.sleep_forever()


async def slow_proofs(stage: Stage) -> None:
    """All places for accusations are filled by one that answers slowly (simO); a true accusation is looked into all the
    same."""
    slow, guilty, honest_one = accuser(stage), stage.stranger(9), stage.honest[0]
    slow.delay_s = 15.0
    false = [Accusation(accused=nobody(n), evidence=bytes([n]) * 32, size=64 << 20) for n in range(2 * SLOTS)]
    stage.world.spawn(say_until_cancelled, slow, false, 3.0)
    await trio.sleep(8)
    node = stage.node(honest_one)
    case = _two_of(guilty.identity, stage)
    stage.expect("the guilty one is ejected by all", lambda: stage.ejected(guilty.peer), 90)
    for raw in (case.first, case.second):
        node.router.on_gossip(guilty.peer, raw)
    await trio.sleep_forever()


async def many_slow_accusers(stage: Stage) -> None:
    """The same with sixteen keys, each with one accusation."""
    guilty, honest_one = stage.stranger(40), stage.honest[0]
    for number in range(SLOTS):
        slow = accuser(stage, number)
        slow.delay_s = 15.0
        false = [Accusation(accused=nobody(number), evidence=bytes([number]) * 32, size=64 << 20)]
        stage.world.spawn(say_until_cancelled, slow, false, 3.0)
    await trio.sleep(8)
    case = _two_of(guilty.identity, stage)
    stage.expect("the guilty one is ejected by all", lambda: stage.ejected(guilty.peer), 90)
    for raw in (case.first, case.second):
        stage.node(honest_one).router.on_gossip(guilty.peer, raw)
    await trio.sleep_forever()


async def _with_proof(stage: Stage, proofs: Sequence[tuple[PeerId, bytes]]) -> None:
    """Accuse with each of these, by a key of its own."""
    for number, (accused, proof) in enumerate(proofs):
        one = accuser(stage, number)
        name = evidence_hash(proof)
        one.proofs = {name: proof}
        said = Accusation(accused=accused, evidence=name, size=len(proof))
        stage.world.spawn(say_until_cancelled, one, [said], 5.0)
        await trio.sleep(0.5)
    await trio.sleep_forever()


async def proofs_of_nothing(stage: Stage) -> None:
    """Against an honest elector: garbage, two equal statements, statements with false signatures, somebody else's lie."""
    victim = stage.honest[0]
    ready_of = stage.node(victim)._round.work
    while ready_of is None or ready_of.ready is None:
        await trio.sleep(0.25)
        ready_of = stage.node(victim)._round.work
    own: Ready = ready_of.ready
    raw = pack(victim.identity, stage.run, own).raw
    other = own.model_copy(update={"tokens": max(1, own.tokens - 1)})
    forged = pack(victim.identity, stage.run, other)
    false = forged.raw.replace(forged.signature, bytes(64))
    elsewhere = encode_evidence(_two_of(stage.stranger(30).identity, stage))
    twice = sealed_with_nonce(victim.identity, stage.run, own, 123456789).raw
    await _with_proof(
        stage,
        [
            (victim.peer, b"\x00" * 100),
            (victim.peer, encode_evidence(TwoStatements(first=raw, second=raw))),
            (victim.peer, encode_evidence(TwoStatements(first=raw, second=twice))),
            (victim.peer, encode_evidence(TwoStatements(first=raw, second=false))),
            (victim.peer, elsewhere),
        ],
    )


async def sacrificed_keys(stage: Stage) -> None:
    """Hundreds of keys are thrown away, each with two READYs for one slot."""
    speaker = stage.stranger()
    for identity in keys(300, "sacrificed"):
        stage.world.judge.liars[identity.peer_id] = None
        case = _two_of(identity, stage)
        await speaker.network.publish(case.first)
        await speaker.network.publish(case.second)
        await trio.sleep(0.1)
    await trio.sleep_forever()


ATTACKS = [
    Attack("one READY signed twice", "under two nonces", one_ready_signed_twice, liars=0, keys=1),
    Attack("plus and minus zero", "two READYs that are equal", plus_and_minus_zero, liars=0, keys=1),
    Attack("two READYs for one slot", "by an elector", contradicts_itself),
    Attack("one proof, two accusers", "in the same moment", one_proof_two_accusers, liars=0, keys=22),
    Attack("a true proof from two", "in the same moment", a_true_proof_from_two, liars=0, keys=3),
    Attack("slow proofs", "32 accusations by one", slow_proofs, liars=0, keys=2),
    Attack("many slow accusers", "16 keys", many_slow_accusers, liars=0, keys=17),
    Attack("proofs of nothing", "against an honest elector", proofs_of_nothing, liars=0, keys=5),
    Attack("sacrificed keys", "300 keys that contradict themselves", sacrificed_keys, liars=0, keys=300, quick=False),
]
