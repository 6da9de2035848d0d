"""Ejecting liars: accusations are looked into, and proofs are judged, kept, and passed on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.audit.ejection import AGAIN_S, BYTES_AT_ONCE, PROOFS_AT_ONCE, SMALL_BYTES, SPACING_S, Ejections, deadline_s
from protocol.audit.evidence import ProvenLie, TwoStatements, encode_evidence, evidence_hash
from protocol.chain.outer_state import OuterState
from protocol.chain.replica import Replica
from protocol.chain.store import Store
from protocol.disk import StoreFull
from protocol.events.events import Dropped, Event, Notice, PeerEjected
from protocol.membership.liveness import Membership
from protocol.transport.handlers import Guard, Statement
from protocol.transport.interface import Acceptance, Refused
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Accusation, pack, unpack
from protocol.wire.questions import EvidenceRequest
from tests.protocol.answering import ask
from tests.protocol.chains import a_run
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, TheseMembers, a_first_ready, a_heartbeat, a_session, at_once

pytestmark = pytest.mark.usefixtures("virtual_time")

CAT = Identity.from_seed(b"\x09" * 32)
LIAR, ACCUSER, OTHER = BOB.peer_id, ANN.peer_id, CAT.peer_id
MORE = [Identity.from_seed(bytes([number]) * 32) for number in range(0x10, 0x10 + PROOFS_AT_ONCE)]
SIGNED = a_run(ANN, BOB, CAT, *MORE)
"""All of them are electors."""


def ready(tokens: int, author: Identity = BOB) -> bytes:
    """The liar's READY with this many tokens."""
    return pack(author, SIGNED.run, a_first_ready(round=1, tokens=tokens)).raw


PROOF = TwoStatements(first=ready(8), second=ready(16))
RAW = encode_evidence(PROOF)
NO_PROOF = encode_evidence(TwoStatements(first=ready(8), second=ready(8)))


def accusation(raw: bytes = RAW, accused: PeerId = LIAR) -> Accusation:
    return Accusation(accused=accused, evidence=evidence_hash(raw), size=len(raw))


def claim(number: int, size: int = 100) -> Accusation:
    """An accusation whose proof nobody holds."""
    return Accusation(accused=LIAR, evidence=number.to_bytes(32, "big"), size=size)


class Table:
    """We have heard both others.  `ACCUSER` and `OTHER` are electors, and answer from `held`."""

    def __init__(self, folder: Path, network: TableNetwork | None = None) -> None:
        signed = SIGNED
        self.run, self.events, self.network = signed.run, list[Event](), network or TableNetwork()
        self.verdicts: list[ProvenLie] = []
        self.membership = Membership(ME.peer_id, 0.0, TheseMembers())
        for peer in (ACCUSER, LIAR):
            self.membership.on_connected(peer, 0.0)
            self.membership.on_heartbeat(peer, a_heartbeat(), 0.0, peer)
        self.replica = Replica.open(signed, Store(folder), OuterState(signed.manifest))
        session = a_session(signed.run, self.network, self.events)
        guard = Guard(session)
        self.ejections = Ejections(session, guard, self.replica, self.membership, at_once)
        self.ejections.listeners.append(self.verdicts.append)
        self.held = RAW
        self.asked: list[PeerId] = []
        for peer in (ACCUSER, OTHER):
            self.network.answers[peer] = partial(self.answer, peer)

    def hear(self, told: Accusation, accuser: Identity = ANN) -> bool:
        """Return True if the accusation is accepted.  The guard is closed, so `examine` is left to the test."""
        said = Statement(accuser.peer_id, told, pack(accuser, self.run, told), accuser.peer_id)
        return self.ejections.hear_accusation(said) is Acceptance.ACCEPT

    async def examine(self, told: Accusation) -> None:
        """As when `ACCUSER` has said it."""
        assert self.hear(told)
        await self.ejections.examine(ACCUSER)

    async def answer(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        assert kind == "evidence"
        self.asked.append(peer)
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


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path)
    yield made
    made.replica.state.close()


async def test_what_looked_like_proof_and_is_none_ejects_nobody(table: Table) -> None:
    """It is made of what others sent; whatever that is, it must not end this peer."""
    assert await table.ejections.convict(TwoStatements(first=ready(8), second=ready(8))) is None
    assert await table.ejections.convict(TwoStatements(first=ready(8), second=b"no statement")) is None
    assert not table.has_ejected() and len([each for each in table.events if isinstance(each, Notice)]) == 2


async def test_a_lie_that_we_found_ejects_its_author_once_and_is_persisted(table: Table) -> None:
    verdict = await table.ejections.convict(PROOF)
    assert verdict is not None and verdict.peer == LIAR and table.has_ejected()
    assert table.ejections.reason(LIAR) == verdict.reason
    assert table.replica.store.evidence.names() == [evidence_hash(RAW)]
    assert await table.ejections.convict(PROOF) is None
    assert len(table.network.forgotten) == 1


async def test_a_restarted_peer_judges_again_what_lies_on_disk(table: Table) -> None:
    for raw in (RAW, NO_PROOF):
        table.replica.store.evidence.save(evidence_hash(raw), raw)
    await table.ejections.load()
    assert table.has_ejected()
    [notice] = [event.text for event in table.events if isinstance(event, Notice)]
    assert notice.startswith("a proof on disk proves nothing")


@pytest.mark.parametrize(
    "held, told",
    [
        (NO_PROOF, accusation(NO_PROOF)),
        (b"x" * 100, accusation(b"x" * 100)),
        (RAW, accusation(accused=OTHER)),
        (b"y" * len(RAW), accusation()),
        (RAW[:-1], accusation()),
    ],
    ids=["it proves nothing", "rubbish", "it is about somebody else", "another hash", "another size"],
)
async def test_an_accuser_without_proof_is_not_believed_again(table: Table, held: bytes, told: Accusation) -> None:
    table.held = held
    await table.examine(told)
    assert not table.has_ejected()
    assert [event.peer for event in table.events if isinstance(event, Dropped)] == [ACCUSER]
    await trio.sleep(86_400)
    assert not table.hear(accusation())


async def test_accusations_of_ourselves_of_the_accuser_or_by_a_stranger_are_not_examined(table: Table) -> None:
    await trio.lowlevel.checkpoint()
    assert not table.hear(accusation(accused=ME.peer_id))
    assert not table.hear(accusation(), BOB)
    assert not table.hear(accusation(), Identity.from_seed(b"\x77" * 32))
    assert table.asked == []


async def test_a_proof_is_fetched_once_and_from_another_accuser_if_the_first_fails(table: Table) -> None:
    """Honest accusers cause it: both heard of the lie, and both say so, again and again."""
    del table.network.answers[ACCUSER]
    assert table.hear(accusation()) and table.hear(accusation(), CAT)
    await table.ejections.examine(ACCUSER)
    assert not table.has_ejected() and not table.hear(accusation()), "it waits"
    assert table.hear(accusation(), CAT)
    await table.ejections.examine(OTHER)
    assert table.has_ejected() and table.asked == [OTHER]


async def test_an_accuser_that_trickles_loses_its_place_at_the_deadline(table: Table) -> None:
    async def trickle(kind: str, data: bytes) -> bytes:
        await trio.sleep(14)
        return bytes(decode_body(EvidenceRequest, data).length)

    table.network.answers[ACCUSER] = trickle
    began = trio.current_time()
    await table.examine(claim(1, 8 << 20))
    assert trio.current_time() - began == pytest.approx(deadline_s(8 << 20))
    assert not table.hear(accusation())


async def test_the_proofs_fetched_at_a_time_are_bounded_in_number_and_bytes_and_one_from_each_accuser(table: Table) -> None:
    await trio.lowlevel.checkpoint()
    assert table.hear(claim(0)) and not table.hear(claim(1)) and not table.hear(claim(0))
    assert not table.hear(claim(1, BYTES_AT_ONCE), CAT) and table.hear(claim(1, BYTES_AT_ONCE // 2), CAT)
    heard = [table.hear(claim(2 + number), each) for number, each in enumerate(MORE)]
    assert heard == [True] * (PROOFS_AT_ONCE - 2) + [False] * 2
    await table.ejections.examine(ACCUSER)
    assert table.hear(claim(9), MORE[-1])


async def test_one_large_proof_does_not_keep_small_ones_out(table: Table) -> None:
    await trio.lowlevel.checkpoint()
    assert table.hear(claim(0, BYTES_AT_ONCE)) and table.hear(claim(1, SMALL_BYTES), CAT)
    assert not table.hear(claim(2, SMALL_BYTES + 1), MORE[0])


async def test_a_full_list_forgets_strangers_and_never_members(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sacrifices free keys neither fills the list nor pushes out a liar that was in the chain."""
    monkeypatch.setattr("protocol.audit.ejection.MAX_EJECTED", 20)
    monkeypatch.setattr(table.replica.history, "has_member", lambda peer: peer == LIAR)
    await table.ejections.convict(PROOF)
    keys = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(1, 20 + 40)]
    for key in keys:
        proof = TwoStatements(first=ready(8, key), second=ready(16, key))
        assert await table.ejections.convict(proof) is not None
    names = table.replica.store.evidence.names()
    assert LIAR in table.ejections and evidence_hash(RAW) in names and len(names) == 20
    assert [key.peer_id in table.ejections for key in keys] == [False] * 40 + [True] * 19
    table.network.published.clear()
    with trio.move_on_after(60):
        await table.ejections.run()
    assert table.accused()[0] == LIAR and len(table.accused()) <= 60 / SPACING_S, "others take few messages of one author"


async def test_a_list_full_of_members_takes_no_stranger(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.audit.ejection.MAX_EJECTED", 1)
    members = [LIAR, ANN.peer_id]
    monkeypatch.setattr(table.replica.history, "has_member", lambda peer: peer in members)
    await table.ejections.convict(PROOF)
    stranger = Identity.from_seed(bytes(32))
    assert await table.ejections.convict(TwoStatements(first=ready(8, stranger), second=ready(16, stranger))) is None
    assert await table.ejections.convict(TwoStatements(first=ready(8, ANN), second=ready(16, ANN))) is not None


async def test_a_full_disk_does_not_keep_a_liar_in(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: Hash, raw: bytes) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(table.replica.store.evidence, "save", fail)
    assert await table.ejections.convict(PROOF) is not None and table.has_ejected()


async def test_new_accusations_are_published_at_once_and_all_of_them_again_and_again(table: Table) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.ejections.run)
        await trio.testing.wait_all_tasks_blocked()
        assert table.accused() == []
        await table.ejections.convict(PROOF)
        await trio.testing.wait_all_tasks_blocked()
        assert table.accused() == [LIAR]
        await trio.sleep(3 * AGAIN_S + 1)
        assert table.accused() == [LIAR] * 4
        nursery.cancel_scope.cancel()


async def test_a_proof_is_served_in_slices(table: Table) -> None:
    await table.ejections.convict(PROOF)
    whole = b""
    while len(whole) < len(RAW):
        question = EvidenceRequest(evidence=evidence_hash(RAW), offset=len(whole), length=100)
        whole += await ask(table.ejections, ACCUSER, "evidence", question.encode())
    assert whole == RAW
    for bad in (b"odd", EvidenceRequest(evidence=Hash(ZERO_HASH), offset=0, length=1).encode()):
        with pytest.raises(Refused):
            await ask(table.ejections, ACCUSER, "evidence", bad)
