"""False accusations, accusations by strangers, and statements that look like two where they are one."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import trio

from protocol.audit.evidence import TwoStatements, encode_evidence, evidence_hash
from protocol.transport.interface import Refused
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Accusation, Ready, pack
from tests.attacks.attack import Attack, Conduct
from tests.attacks.forgeries import keys, ready, sealed_with_nonce
from tests.attacks.ghosts import Ghost
from tests.attacks.stage import Stage, stranger_key
from tests.simulation.seat import Seat


class Accuser(Ghost):
    """A stranger that notes whether it is asked for a proof."""

    def __init__(self, stage: Stage, number: int = 0) -> None:
        super().__init__(stage.world, stranger_key(number))
        self.asked = 0

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        self.asked += kind == "evidence"
        raise Refused("an accuser knows nothing")


def nobody(number: int) -> PeerId:
    """A peer that does not exist."""
    return keys(1, f"nobody {number}")[0].peer_id


async def say_until_cancelled(say: Callable[[Accusation], Awaitable[None]], *accusations: Accusation) -> None:
    while True:
        for accusation in accusations:
            await say(accusation)
        await trio.sleep(3)


def accusation(accused: PeerId, proof: bytes) -> Accusation:
    return Accusation(accused=accused, evidence=evidence_hash(proof), size=len(proof))


@contextmanager
def delivering(stage: Stage, seat: Seat, proof: bytes | None) -> Iterator[None]:
    """This liar answers every question for evidence from `proof`; with zeros if it is None."""

    def read(name: Hash, offset: int, length: int) -> bytes:
        return bytes(length) if proof is None else proof[offset : offset + length]

    with patch.object(stage.node(seat)._ejections._store.evidence, "read", read):
        yield


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


async def strangers_accuse(stage: Stage) -> None:
    """By many keys that name the same proof in the same moment, and one more each time: they are not even asked for it."""
    accusers = [Accuser(stage, number) for number in range(22)]
    stage.expect("no stranger is asked", lambda: not any(one.asked for one in accusers))
    for number in itertools.count():
        said = accusation(nobody(number), bytes([number % 256]) * 100)
        for seat in stage.honest:
            for one in accusers:
                stage.node(seat).router.on_gossip(one.peer, pack(one.identity, stage.run, said).raw)
        await trio.sleep(2)


async def elector_accuses(stage: Stage) -> None:
    """An elector accuses nobodies with proofs of 64 MiB that are none; a true one is looked into all the same."""
    liar, guilty = stage.liars[0], stage.stranger(40)
    said = [Accusation(accused=nobody(name), evidence=bytes([name]) * 32, size=64 << 20) for name in range(32)]
    with delivering(stage, liar, None):
        stage.world.spawn(say_until_cancelled, partial(stage.gossip, liar), *said)
        await trio.sleep(8)
        stage.expect("the guilty one is ejected by all", lambda: stage.ejected(guilty.peer), 90)
        case = _two_of(guilty.identity, stage)
        for raw in (case.first, case.second):
            stage.node(stage.honest[0]).router.on_gossip(guilty.peer, raw)
        await trio.sleep_forever()


def proof_of_nothing(forge: Callable[[Stage, Seat, Ready], bytes]) -> Conduct:
    """An elector accuses an honest one."""

    async def conduct(stage: Stage) -> None:
        liar, victim = stage.liars[0], stage.honest[0]
        work = stage.node(victim)._rounds.work
        while work is None or work.ready is None:
            await trio.sleep(0.25)
            work = stage.node(victim)._rounds.work
        proof = forge(stage, victim, work.ready)
        with delivering(stage, liar, proof):
            await say_until_cancelled(partial(stage.gossip, liar), accusation(victim.peer, proof))

    return conduct


def two_signatures(stage: Stage, victim: Seat, own: Ready) -> bytes:
    """Its READY twice, under two nonces."""
    raw, twice = pack(victim.identity, stage.run, own).raw, sealed_with_nonce(victim.identity, stage.run, own, 123456789).raw
    return encode_evidence(TwoStatements(first=raw, second=twice))


def false_signature(stage: Stage, victim: Seat, own: Ready) -> bytes:
    """Its READY beside one that it has not signed."""
    forged = pack(victim.identity, stage.run, own.model_copy(update={"tokens": max(1, own.tokens - 1)}))
    false = forged.raw.replace(forged.signature, bytes(64))
    return encode_evidence(TwoStatements(first=pack(victim.identity, stage.run, own).raw, second=false))


def lie_of_another(stage: Stage, victim: Seat, own: Ready) -> bytes:
    return encode_evidence(_two_of(stage.stranger(30).identity, stage))


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
    Attack("strangers accuse", "22 keys in the same moment", strangers_accuse, liars=0, keys=22),
    Attack("an elector accuses", "32 peers, with proofs of 64 MiB", elector_accuses, keys=1),
    *(
        Attack(f"proof of nothing: {name}", "against an honest elector", proof_of_nothing(forge))
        for name, forge in (
            ("two signatures", two_signatures),
            ("a false signature", false_signature),
            ("the lie of another", lie_of_another),
        )
    ),
    Attack("sacrificed keys", "300 keys that contradict themselves", sacrificed_keys, liars=0, keys=300, quick=False),
]
