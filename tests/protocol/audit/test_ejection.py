"""Ejecting on proof: what we found ourselves, what others tell, and what lies on disk from an earlier life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.audit.ejection import ANNOUNCE_EVERY_S, MAX_WAITING, Ejections
from protocol.audit.evidence import TwoStatements, encode_evidence, evidence_hash
from protocol.events import Dropped, Event, Notice, PeerEjected
from protocol.membership.liveness import Membership
from protocol.network.interface import Refused
from protocol.state.outer_state import OuterState
from protocol.state.replica import Replica
from protocol.state.store import Store
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation, Ready, decode_body, pack, unpack
from protocol.wire.questions import EvidenceRequest
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, TheseMembers, a_heartbeat, a_session, at_once
from tests.simulation.world import simulated_run

LIAR, ACCUSER = BOB.peer_id, ANN.peer_id


def ready(tokens: int) -> bytes:
    """The liar's READY with this many tokens."""
    return pack(
        BOB,
        simulated_run().run,
        Ready(
            round=1,
            fragment=0,
            base=ZERO_HASH,
            incarnation=1,
            serial=0,
            tokens=tokens,
            steps=1,
            loss=1.0,
            norm=1.0,
            root=ZERO_HASH,
            state_digest=ZERO_HASH,
        ),
    ).raw


PROOF = TwoStatements(first=ready(8), second=ready(16))
RAW = encode_evidence(PROOF)
NO_PROOF = encode_evidence(TwoStatements(first=ready(8), second=ready(8)))


def accusation(raw: bytes = RAW, accused: PeerId = LIAR) -> Accusation:
    return Accusation(accused=accused, evidence=evidence_hash(raw), size=len(raw))


class Table:
    """We have heard both others.  Evidence is asked of `ACCUSER`, who answers from `held`."""

    def __init__(self, folder: Path, network: TableNetwork | None = None) -> None:
        signed = simulated_run()
        self.run, self.events, self.network = signed.run, list[Event](), network or TableNetwork()
        self.membership = Membership(ME.peer_id, 0.0, TheseMembers())
        for peer in (ACCUSER, LIAR):
            self.membership.on_connected(peer, 0.0)
            self.membership.on_heartbeat(peer, a_heartbeat(), 0.0, peer)
        self.replica = Replica.open(signed, Store(folder), OuterState(signed.manifest))
        session = a_session(signed.run, self.network, self.events)
        self.ejections = Ejections(session, self.replica, self.membership, at_once)
        self.held = RAW
        self.network.answers[ACCUSER] = self._answer

    async def _answer(self, kind: str, data: bytes) -> bytes:
        assert kind == "evidence"
        await trio.lowlevel.checkpoint()
        question = decode_body(EvidenceRequest, data)
        return self.held[question.offset : question.offset + question.length]

    def has_ejected(self) -> bool:
        """Whether all that follows from an ejection has happened, or nothing of it."""
        signs = {
            LIAR in self.ejections,
            LIAR in self.network.forgotten,
            self.membership.has_left(LIAR),
            any(isinstance(event, PeerEjected) for event in self.events),
        }
        assert len(signs) == 1
        return signs.pop()

    def accused(self) -> list[PeerId]:
        """By the accusations that we have published."""
        bodies = [unpack(raw, self.run)[1] for raw in self.network.published]
        return [PeerId(body.accused) for body in bodies if isinstance(body, Accusation)]


def on_table(folder: Path, check: Callable[[Table], Awaitable[None]]) -> None:
    async def main() -> None:
        table = Table(folder)
        try:
            await check(table)
        finally:
            table.replica.state.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_what_looked_like_proof_and_is_none_ejects_nobody(tmp_path: Path) -> None:
    """It is made of what others sent; whatever that is, it must not end this peer."""

    async def check(table: Table) -> None:
        assert await table.ejections.convict(TwoStatements(first=ready(8), second=ready(8))) is None
        assert await table.ejections.convict(TwoStatements(first=ready(8), second=b"no statement")) is None
        assert not table.has_ejected() and len([each for each in table.events if isinstance(each, Notice)]) == 2

    on_table(tmp_path, check)


def test_a_lie_that_we_found_ejects_its_author_once_and_is_persisted(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        verdict = await table.ejections.convict(PROOF)
        assert verdict is not None and verdict.peer == LIAR and table.has_ejected()
        assert table.ejections.reason(LIAR) == verdict.reason
        assert table.replica.store.evidence.names() == [evidence_hash(RAW)]
        assert await table.ejections.convict(PROOF) is None
        assert len(table.network.forgotten) == 1

    on_table(tmp_path, check)


def test_a_restarted_peer_judges_again_what_lies_on_disk(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        for raw in (RAW, NO_PROOF):
            table.replica.store.evidence.save(evidence_hash(raw), raw)
        await table.ejections.load()
        assert table.has_ejected()
        [notice] = [event.text for event in table.events if isinstance(event, Notice)]
        assert notice.startswith("a proof on disk proves nothing")

    on_table(tmp_path, check)


def test_an_accusation_with_proof_ejects(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        assert table.ejections.wants(ACCUSER, accusation())
        verdict = await table.ejections.look_into(ACCUSER, accusation())
        assert verdict is not None and table.has_ejected()
        assert not table.ejections.wants(ACCUSER, accusation()), "it is known"
        assert await table.ejections.look_into(ACCUSER, accusation()) is None

    on_table(tmp_path, check)


@pytest.mark.parametrize(
    "held, told",
    [
        (NO_PROOF, accusation(NO_PROOF)),
        (b"x" * 100, accusation(b"x" * 100)),
        (RAW, accusation(accused=ACCUSER)),
        (b"y" * len(RAW), accusation()),
        (RAW[:-1], accusation()),
    ],
    ids=["it proves nothing", "rubbish", "it is about somebody else", "another hash", "another size"],
)
def test_an_accuser_without_proof_is_not_believed_again(tmp_path: Path, held: bytes, told: Accusation) -> None:
    async def check(table: Table) -> None:
        table.held = held
        assert await table.ejections.look_into(ACCUSER, told) is None
        assert not table.has_ejected()
        assert [event.peer for event in table.events if isinstance(event, Dropped)] == [ACCUSER]
        assert not table.ejections.wants(ACCUSER, accusation())

    on_table(tmp_path, check)


def test_an_accuser_that_is_gone_may_accuse_again(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        del table.network.answers[ACCUSER]
        assert await table.ejections.look_into(ACCUSER, accusation()) is None
        assert not table.has_ejected() and table.ejections.wants(ACCUSER, accusation())

    on_table(tmp_path, check)


def test_accusations_of_ourselves_or_of_the_accuser_are_not_looked_into(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        await trio.lowlevel.checkpoint()
        assert not table.ejections.wants(ACCUSER, accusation(accused=ME.peer_id))
        assert not table.ejections.wants(LIAR, accusation())

    on_table(tmp_path, check)


def test_only_so_many_accusations_are_looked_into_at_a_time(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        async def never(kind: str, data: bytes) -> bytes:
            await trio.sleep_forever()
            raise AssertionError

        table.network.answers[ACCUSER] = never
        async with trio.open_nursery() as nursery:
            for number in range(MAX_WAITING):
                told = accusation(bytes([number]))
                assert table.ejections.wants(ACCUSER, told)
                nursery.start_soon(table.ejections.look_into, ACCUSER, told)
            await trio.testing.wait_all_tasks_blocked()
            assert not table.ejections.wants(ACCUSER, accusation())
            nursery.cancel_scope.cancel()
        assert table.ejections.wants(ACCUSER, accusation())

    on_table(tmp_path, check)


def test_new_accusations_are_published_at_once_and_all_of_them_again_and_again(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(table.ejections.announce)
            await trio.testing.wait_all_tasks_blocked()
            assert table.accused() == []
            await table.ejections.convict(PROOF)
            await trio.testing.wait_all_tasks_blocked()
            assert table.accused() == [LIAR]
            await trio.sleep(3 * ANNOUNCE_EVERY_S + 1)
            assert table.accused() == [LIAR] * 4
            nursery.cancel_scope.cancel()

    on_table(tmp_path, check)


def test_a_proof_is_served_in_slices(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        await table.ejections.convict(PROOF)
        whole = b""
        while len(whole) < len(RAW):
            question = EvidenceRequest(evidence=evidence_hash(RAW), offset=len(whole), length=100)
            whole += await table.ejections.answer(question.encode())
        assert whole == RAW
        for bad in (b"odd", EvidenceRequest(evidence=Hash(ZERO_HASH), offset=0, length=1).encode()):
            with pytest.raises(Refused):
                await table.ejections.answer(bad)

    on_table(tmp_path, check)
