"""False accusations, accusations that take time, and statements that look like two where they are one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import trio

from protocol.audit.evidence import TwoStatements, encode_evidence, evidence_hash
from protocol.transport.interface import Refused
from protocol.wire.envelope import decode_body
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Accusation, Ready, pack
from protocol.wire.questions import EvidenceRequest
from tests.attacks.attack import Attack, Conduct
from tests.attacks.forgeries import keys, ready, sealed_with_nonce
from tests.attacks.ghosts import Ghost
from tests.attacks.stage import Stage, stranger_key

SLOTS = 16
"""Accusations that are looked into at a time."""


class Accuser(Ghost):
    """Serves proofs by name, each slice after `delay_s`; zeros of the size that is asked for, where it has none."""

    delay_s = 0.0

    def __init__(self, stage: Stage, number: int = 0) -> None:
        super().__init__(stage.world, stranger_key(number))
        self.proofs: dict[bytes, bytes] = {}

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind != "evidence":
            raise Refused("an accuser knows nothing else")
        question = decode_body(EvidenceRequest, data)
        await trio.sleep(self.delay_s)
        proof = self.proofs.get(question.evidence, bytes(64 << 20) if self.delay_s else b"")
        return proof[question.offset : question.offset + question.length]

    def has(self, accused: PeerId, proof: bytes) -> Accusation:
        """The accusation that this proof is for."""
        name = evidence_hash(proof)
        self.proofs[name] = proof
        return Accusation(accused=accused, evidence=name, size=len(proof))


def nobody(number: int) -> PeerId:
    """A peer that does not exist."""
    return keys(1, f"nobody {number}")[0].peer_id


def say_to_all(stage: Stage, accusers: Sequence[Accuser], said: Accusation) -> None:
    """All of them accuse, in the same moment."""
    for seat in stage.honest:
        for one in accusers:
            stage.node(seat).router.on_gossip(one.peer, pack(one.identity, stage.run, said).raw)


async def say_until_cancelled(ghost: Ghost, accusations: Sequence[Accusation], every_s: float) -> None:
    while True:
        for accusation in accusations:
            await ghost.gossip(accusation)
        await trio.sleep(every_s)


def _two_of(identity: Identity, stage: Stage) -> TwoStatements:
    base = stage.node()._history.base
    first, second = (pack(identity, stage.run, ready(base, b"\x01" * 32, serial=7, tokens=tokens)).raw for tokens in (8, 16))
    return TwoStatements(first=first, second=second)


def one_ready_twice(make: Callable[[Stage, Ghost, Ready], list[bytes]]) -> Conduct:
    """A stranger says these statements in turn, which contradict nothing."""

    async def conduct(stage: Stage) -> None:
        ghost = stage.stranger()
        statements = make(stage, ghost, ready(stage.node()._history.base, b"\x01" * 32))
        while True:
            for raw in statements:
                await ghost.network.publish(raw)
                await trio.sleep(1)

    return conduct


def two_nonces(stage: Stage, ghost: Ghost, body: Ready) -> list[bytes]:
    """The same READY under two nonces (simG)."""
    nonces = (12345678901234567, 98765432109876543)
    return [sealed_with_nonce(ghost.identity, stage.run, body, nonce).raw for nonce in nonces]


def two_zeros(stage: Stage, ghost: Ghost, body: Ready) -> list[bytes]:
    """Two READYs that differ in the sign of a zero."""
    bodies = [body.model_copy(update={"loss": loss}) for loss in (0.0, -0.0)]
    return [pack(ghost.identity, stage.run, each).raw for each in bodies]


async def contradicts_itself(stage: Stage) -> None:
    """An elector says two different READYs for one slot: it is ejected."""
    stage.expect_ejected()
    liar, base = stage.liars[0], stage.node()._history.base
    for tokens in (8, 16):
        await stage.gossip(liar, ready(base, b"\x01" * 32, serial=7, tokens=tokens))
        await trio.sleep(0.5)
    await trio.sleep_forever()


async def one_proof_two_accusers(stage: Stage) -> None:
    """Two accusations that name the same proof, in the same moment (simH)."""
    pairs = [[Accuser(stage, number), Accuser(stage, number + 1)] for number in range(0, 22, 2)]
    for number in itertools.count():
        said = Accusation(accused=nobody(0), evidence=bytes([number % 256]) * 32, size=100)
        say_to_all(stage, pairs[min(number, len(pairs) - 1)], said)
        await trio.sleep(2)


async def a_true_proof_from_two(stage: Stage) -> None:
    """The same with a proof that is true, as honest accusers cause it."""
    guilty, accusers = stage.stranger(40), [Accuser(stage, number) for number in (0, 1)]
    proof = encode_evidence(_two_of(guilty.identity, stage))
    stage.expect("the guilty one is ejected", lambda: stage.ejected(guilty.peer))
    for one in accusers:
        said = one.has(guilty.peer, proof)
    say_to_all(stage, accusers, said)
    await trio.sleep_forever()


def slow_proofs(accusers: int, each: int) -> Conduct:
    """All places for accusations are filled by some that answer slowly (simO); a true one is looked into all the same."""

    async def conduct(stage: Stage) -> None:
        guilty, honest_one = stage.stranger(40), stage.honest[0]
        for number in range(accusers):
            slow = Accuser(stage, number)
            slow.delay_s = 15.0
            names = range(number * each, (number + 1) * each)
            false = [Accusation(accused=nobody(name), evidence=bytes([name]) * 32, size=64 << 20) for name in names]
            stage.world.spawn(say_until_cancelled, slow, false, 3.0)
        await trio.sleep(8)
        stage.expect("the guilty one is ejected by all", lambda: stage.ejected(guilty.peer), 90)
        case = _two_of(guilty.identity, stage)
        for raw in (case.first, case.second):
            stage.node(honest_one).router.on_gossip(guilty.peer, raw)
        await trio.sleep_forever()

    return conduct


async def proofs_of_nothing(stage: Stage) -> None:
    """Against an honest elector: garbage, two equal statements, statements with false signatures, somebody else's lie."""
    victim = stage.honest[0]
    ready_of = stage.node(victim)._rounds.work
    while ready_of is None or ready_of.ready is None:
        await trio.sleep(0.25)
        ready_of = stage.node(victim)._rounds.work
    own: Ready = ready_of.ready
    raw = pack(victim.identity, stage.run, own).raw
    other = own.model_copy(update={"tokens": max(1, own.tokens - 1)})
    forged = pack(victim.identity, stage.run, other)
    false = forged.raw.replace(forged.signature, bytes(64))
    elsewhere = encode_evidence(_two_of(stage.stranger(30).identity, stage))
    twice = sealed_with_nonce(victim.identity, stage.run, own, 123456789).raw
    proofs = [
        b"\x00" * 100,
        *(encode_evidence(TwoStatements(first=raw, second=second)) for second in (raw, twice, false)),
        elsewhere,
    ]
    for number, proof in enumerate(proofs):
        one = Accuser(stage, number)
        stage.world.spawn(say_until_cancelled, one, [one.has(victim.peer, proof)], 5.0)
        await trio.sleep(0.5)
    await trio.sleep_forever()


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
    Attack("one READY signed twice", "under two nonces", one_ready_twice(two_nonces), liars=0, keys=1),
    Attack("plus and minus zero", "two READYs that are equal", one_ready_twice(two_zeros), liars=0, keys=1),
    Attack("two READYs for one slot", "by an elector", contradicts_itself),
    Attack("one proof, two accusers", "in the same moment", one_proof_two_accusers, liars=0, keys=22),
    Attack("a true proof from two", "in the same moment", a_true_proof_from_two, liars=0, keys=3),
    Attack("slow proofs", "32 accusations by one", slow_proofs(1, 2 * SLOTS), liars=0, keys=2),
    Attack("many slow accusers", "16 keys", slow_proofs(SLOTS, 1), liars=0, keys=17),
    Attack("proofs of nothing", "against an honest elector", proofs_of_nothing, liars=0, keys=5),
    Attack("sacrificed keys", "300 keys that contradict themselves", sacrificed_keys, liars=0, keys=300, quick=False),
]
