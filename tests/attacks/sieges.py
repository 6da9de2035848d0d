"""Attacks by strangers on the memory and the event loop of a real peer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import trio

from protocol.chain.base import fragment_of
from protocol.chain.records import genesis_tip
from protocol.events.status import WhyIdle
from protocol.transport.interface import MAX_REQUEST_BYTES, NetworkError, Refused
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import Identity
from protocol.wire.messages import Accusation, Certificate, Lock, Ready, Signature, ViewChange, pack
from protocol.wire.presence import Heartbeat, Phase, Role
from tests.attacks.forgeries import keys
from tests.attacks.questions import dear_questions
from tests.attacks.siege import Conduct, Siege, forward
from tests.attacks.statements import large_record_proposal, record_proposal
from tests.e2e.attacks import Cast
from tests.fuzz.mutations import BOMBS
from tests.protocol.transport.recorder import stack

SECONDS = 15.0
"""Of an attack that could go on for ever."""
LINKS_OF_ONE = 8
STATEMENT_EVERY_S = 0.1
"""Just below what one peer may send, of the largest statements."""
SMALL_EVERY_S = 0.015


async def _say(cast: Cast, raw: bytes) -> None:
    """A statement of the round; what the peer answers does not matter while it is connected."""
    assert cast.network is not None
    try:
        await cast.network.request(cast.target, "round", raw, timeout_s=10)
    except Refused:
        pass
    except NetworkError:
        if cast.out:
            raise
    cast.sent += 1


def _sent(siege: Siege, what: str) -> str:
    closed = sum(cast.out for cast in siege.casts)
    return f"{sum(cast.sent for cast in siege.casts)} {what}" + (f", {closed} strangers out" if closed else "")


async def signatures(siege: Siege) -> str:
    """Large statements whose signatures are good, every one another."""

    async def sign(cast: Cast) -> None:
        for number in range(1000):
            await _say(cast, large_record_proposal(cast.identity, cast.run, number))
            await trio.sleep(STATEMENT_EVERY_S)

    await siege.all(sign, SECONDS)
    return _sent(siege, "statements of 740 kB")


async def decoding(siege: Siege) -> str:
    """The statement that takes longest to decode, by all at once, and bombs."""

    async def send(cast: Cast) -> None:
        raw = large_record_proposal(cast.identity, cast.run, 0)
        for bomb in (*BOMBS[:4], *[raw] * 1000):
            await _say(cast, bomb)

    await siege.all(send, SECONDS)
    return _sent(siege, "statements and bombs")


async def accusations(siege: Siege) -> str:
    """Accusations of many peers, each with a proof of its own."""

    async def accuse(cast: Cast) -> None:
        nobodies = keys(16, f"nobody of {cast.identity.peer_id}")
        said = [Accusation(accused=key.peer_id, evidence=key.public_key, size=8 << 20) for key in nobodies]
        raw = [(key, pack(cast.identity, cast.run, each).raw) for key, each in zip(nobodies, said, strict=True)]
        while True:
            await forward(cast, raw)

    await siege.all(accuse, SECONDS)
    return _sent(siege, "accusations")


def _beat(addresses: list[str]) -> Heartbeat:
    return Heartbeat(
        incarnation=1,
        seq=1,
        name="",
        role=Role.TRAINER,
        phase=Phase.COMPUTING,
        why_idle=WhyIdle.BUSY,
        round=0,
        tip=ZERO_HASH,
        steps=0,
        loss=0.0,
        tokens_per_s=0.0,
        up_bytes_per_s=0.0,
        down_bytes_per_s=0.0,
        addresses=addresses,
        version="0",
    )


async def addresses(siege: Siege) -> str:
    """Keys that claim addresses at which nobody answers, eight each."""

    def claims(cast: Cast) -> Iterator[tuple[Identity, bytes]]:
        for number, key in enumerate(keys(1024)):
            hosts = [f"/ip4/127.0.{number % 250}.{each + 1}/tcp/9/p2p/{key.peer_id}" for each in range(8)]
            yield key, pack(key, cast.run, _beat(hosts)).raw

    await forward(siege.casts[0], claims(siege.casts[0]))
    await trio.sleep(SECONDS)
    return _sent(siege, "keys with 8 addresses")


async def links(siege: Siege) -> str:
    """As many bulk links as there may be, and heartbeats of strangers."""
    held: list[Any] = []

    async def dial(cast: Cast) -> None:
        assert cast.network is not None
        for _ in range(LINKS_OF_ONE):
            held.append(await stack(cast.network).bulk._dial(cast.target))

    def beats(number: int, cast: Cast) -> Iterator[tuple[Identity, bytes]]:
        each = 2048 // len(siege.casts)
        for key in keys(each, f"of {number}"):
            yield key, pack(key, cast.run, _beat([])).raw

    await siege.all(dial, SECONDS)
    async with trio.open_nursery() as nursery:
        for number, cast in enumerate(siege.casts):
            nursery.start_soon(forward, cast, beats(number, cast))
    said = f"{len(held)} links, {_sent(siege, 'heartbeats')}"
    for link in held:
        link.close()
    return said


async def questions(siege: Siege) -> str:
    """Questions of 2 MiB without their last byte, 16 of each stranger."""
    length = struct.pack(">I", MAX_REQUEST_BYTES)

    async def ask(cast: Cast) -> None:
        stream = await cast.stream("request")
        cast.sent += 1
        for piece in (length, *[bytes(1 << 16)] * (MAX_REQUEST_BYTES // (1 << 16) - 1), bytes((1 << 16) - 1)):
            await stream.write(piece)
        await trio.sleep_forever()

    async def ask_all(cast: Cast) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(_until_refused, partial(ask, cast))

    await siege.all(ask_all, SECONDS)
    return _sent(siege, "questions of 2 MiB")


async def _until_refused(ask: Callable[[], Any]) -> None:
    try:
        await ask()
    except Exception:  # noqa: BLE001 - whatever the library raises when a stream is reset
        return


def _ready(siege: Siege, serial: int, tokens: int = 8) -> Ready:
    return Ready(
        round=0,
        fragment=fragment_of(0, 1),
        base=genesis_tip(siege.run),
        incarnation=1,
        serial=serial,
        tokens=tokens,
        steps=1,
        loss=1.0,
        norm=1.0,
        root=ZERO_HASH,
        state_digest=ZERO_HASH,
    )


async def floods(siege: Siege) -> str:
    """READYs of free keys by the one, view changes by the next, locks by the third."""

    async def flood(cast: Cast) -> None:
        which = siege.casts.index(cast) % 3
        for number in range(10**6):
            if which == 0:
                crowd = keys(200)
                await forward(cast, ((key, pack(key, cast.run, _ready(siege, number)).raw) for key in crowd))
            else:
                body = _view_change(siege, number) if which == 1 else _lock(cast, siege, number)
                await _say(cast, pack(cast.identity, cast.run, body).raw)
                await trio.sleep(SMALL_EVERY_S)

    await siege.all(flood, SECONDS)
    return _sent(siege, "READYs, view changes and locks")


def _view_change(siege: Siege, attempt: int) -> Body:
    return ViewChange(
        round=0, base=genesis_tip(siege.run), attempt=attempt, absent=[], held=b"", plan=None, lock=None, reduced=None
    )


def _lock(cast: Cast, siege: Siege, attempt: int) -> Body:
    by = cast.identity.peer_id
    said = record_proposal(by, attempt, chunks=64, round=0, previous=genesis_tip(siege.run))
    proof = Certificate(attempt=attempt, absent=[], votes=[Signature(peer=by, signature=bytes(64))])
    return Lock(record=said.record, index=said.index, provenance=said.provenance, proof=proof)


async def every_question(siege: Siege) -> str:
    """Every question that there is, of one kind after the other, 16 of each stranger at a time."""
    kinds = list(dear_questions(siege.casts[0].identity, siege.run, ZERO_HASH, ZERO_HASH))

    for form in kinds:  # false statements come last, because strangers are banned for them

        async def ask(cast: Cast, form: str = form) -> None:
            make, kind = dear_questions(cast.identity, siege.run, ZERO_HASH, ZERO_HASH)[form], form.partition(",")[0]

            async def ask_on() -> None:
                assert cast.network is not None
                while not cast.out:
                    cast.sent += 1
                    try:
                        await cast.network.request(cast.target, kind, make(cast.sent), timeout_s=10)
                    except NetworkError:
                        await trio.sleep(0.01)

            async with trio.open_nursery() as nursery:
                for _ in range(16):
                    nursery.start_soon(ask_on)

        await siege.all(ask, SECONDS / len(kinds))
    return _sent(siege, f"questions of {len(kinds)} forms")


SIEGES: dict[str, tuple[str, Conduct, int]] = {
    "siege: signatures": ("large statements, each signed for itself", signatures, 3),
    "siege: slow to decode": ("the largest, and bombs", decoding, 4),
    "siege: accusations": ("of strangers", accusations, 3),
    "siege: 1024 keys with addresses": ("eight each, at which nobody answers", addresses, 1),
    "siege: 256 links, 2048 heartbeats": ("of strangers", links, 32),
    "siege: huge questions": ("2 MiB each, without the last byte", questions, 12),
    "siege: every question": ("of one kind after the other", every_question, 32),
    "siege: READYs, view changes, locks": ("as many as a peer may send", floods, 3),
}
"""How, by whom, and by how many strangers."""
