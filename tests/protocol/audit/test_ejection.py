"""Ejecting liars: accusations are looked into, and proofs are judged, kept, and passed on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.audit.ejection import (
    AGAIN_S,
    MAX_PENDING,
    SPACING_S,
    STRANGER_BYTES,
    STRANGER_PLACES,
    STRANGERS_BYTES_PER_S,
    AccusationOutcome,
    Accusations,
    Ejections,
    deadline_s,
)
from protocol.audit.evidence import (
    OneStatement,
    ProvenLie,
    TwoStatements,
    encode_evidence,
    evidence_hash,
)
from protocol.chain.base import Base
from protocol.chain.outer_state import OuterState
from protocol.chain.replica import Replica
from protocol.chain.store import Store
from protocol.disk import StoreFull
from protocol.events.events import Dropped, Event, Notice, PeerEjected
from protocol.membership.liveness import Membership
from protocol.transport.handlers import Guard
from protocol.transport.interface import Refused
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Accusation, pack, unpack
from protocol.wire.questions import EvidenceRequest
from tests.protocol import council
from tests.protocol.answering import ask
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, TheseMembers, a_first_ready, a_heartbeat, a_session, at_once
from tests.simulation.world import simulated_run

pytestmark = pytest.mark.usefixtures("virtual_time")

LIAR, ACCUSER, OTHER = BOB.peer_id, ANN.peer_id, Identity.from_seed(b"\x09" * 32).peer_id


def ready(tokens: int, author: Identity = BOB) -> bytes:
    """The liar's READY with this many tokens."""
    return pack(author, simulated_run().run, a_first_ready(round=1, tokens=tokens)).raw


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
        self.network.answers[ACCUSER] = partial(self.answer, ACCUSER)

    async def look_into(self, told: Accusation) -> ProvenLie | None:
        """As when `ACCUSER` has said it."""
        assert self.ejections.hear(ACCUSER, told) is AccusationOutcome.NEW
        return await self.ejections.look_into(told)

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


async def test_an_accusation_with_proof_ejects(table: Table) -> None:
    verdict = await table.look_into(accusation())
    assert verdict is not None and table.has_ejected()
    assert table.ejections.hear(ACCUSER, accusation()) is AccusationOutcome.UNWANTED, "it is known"


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
    assert await table.look_into(told) is None
    assert not table.has_ejected()
    assert [event.peer for event in table.events if isinstance(event, Dropped)] == [ACCUSER]
    await trio.sleep(86_400)
    assert table.ejections.hear(ACCUSER, accusation()) is AccusationOutcome.UNWANTED


async def test_accusations_of_ourselves_or_of_the_accuser_are_not_looked_into(table: Table) -> None:
    await trio.lowlevel.checkpoint()
    assert table.ejections.hear(ACCUSER, accusation(accused=ME.peer_id)) is AccusationOutcome.UNWANTED
    assert table.ejections.hear(LIAR, accusation()) is AccusationOutcome.UNWANTED


@pytest.mark.parametrize("answers", [True, False])
async def test_accusations_of_one_proof_are_one_case_and_the_next_accuser_is_asked_if_one_fails(
    table: Table, answers: bool
) -> None:
    """Honest accusers cause it: both heard of the lie, and both say so."""
    table.network.answers[OTHER] = partial(table.answer, OTHER)
    if not answers:
        del table.network.answers[ACCUSER]
    assert table.ejections.hear(ACCUSER, accusation()) is AccusationOutcome.NEW
    assert table.ejections.hear(OTHER, accusation()) is AccusationOutcome.JOINED
    assert await table.ejections.look_into(accusation()) is not None
    assert table.has_ejected() and table.asked == [ACCUSER if answers else OTHER]


async def test_an_accuser_that_trickles_loses_its_place_at_the_deadline(table: Table) -> None:
    async def trickle(kind: str, data: bytes) -> bytes:
        await trio.sleep(14)
        return bytes(decode_body(EvidenceRequest, data).length)

    table.network.answers[ACCUSER] = trickle
    told = Accusation(accused=LIAR, evidence=bytes(32), size=8 << 20)
    began = trio.current_time()
    assert await table.look_into(told) is None
    assert trio.current_time() - began == pytest.approx(deadline_s(8 << 20))
    assert table.ejections.hear(ACCUSER, accusation()) is AccusationOutcome.UNWANTED


async def test_a_member_takes_the_turn_of_a_stranger_that_delays_its_proof(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(kind: str, data: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    table.network.answers[OTHER] = never
    monkeypatch.setattr(table.replica.history, "has_member", lambda peer: peer == ACCUSER)
    began = trio.current_time()
    assert table.ejections.hear(OTHER, accusation()) is AccusationOutcome.NEW
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.ejections.look_into, accusation())
        await trio.testing.wait_all_tasks_blocked()
        assert table.ejections.hear(ACCUSER, accusation()) is AccusationOutcome.JOINED
    assert table.has_ejected() and trio.current_time() == began


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


# -- evidence about unknown tips: it is fetched again, and nobody is blamed for it ----------------------------------------

UNFOUNDED = OneStatement(statement=pack(BOB, simulated_run().run, council.a_motion(0, rolls=[b"none"])).raw)
"""BOB moves without the rolls that it needs, on a tip that is not in our chain."""
UNFOUNDED_RAW = encode_evidence(UNFOUNDED)


def learn_tip(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our chain grows up to the tip, where BOB is the only elector."""
    base = Base(5, 0, council.TIP, (LIAR,))
    monkeypatch.setattr(table.replica.history, "base_at", lambda *tip: base if tip == (5, base.tip) else None)


async def test_evidence_about_an_unknown_tip_is_fetched_again_when_we_may_know_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.held = UNFOUNDED_RAW
    told = accusation(UNFOUNDED_RAW)
    assert await table.look_into(told) is None and not table.has_ejected()
    assert not any(isinstance(event, Dropped) for event in table.events), "the accuser is not to blame"
    assert any("do not know yet" in event.text for event in table.events if isinstance(event, Notice))
    assert table.ejections.hear(ACCUSER, told) is AccusationOutcome.UNWANTED, "it is too early"
    await trio.sleep(AGAIN_S)
    learn_tip(table, monkeypatch)
    assert await table.look_into(told) is not None and table.has_ejected()
    assert table.replica.store.evidence.names() == [evidence_hash(UNFOUNDED_RAW)]


async def test_evidence_on_disk_about_an_unknown_tip_stays_there(table: Table) -> None:
    table.replica.store.evidence.save(evidence_hash(UNFOUNDED_RAW), UNFOUNDED_RAW)
    await table.ejections.load()
    assert not table.has_ejected() and table.replica.store.evidence.names() == [evidence_hash(UNFOUNDED_RAW)]


# -- places of accusations ------------------------------------------------------------------------------------------------

MEMBER = Identity.from_seed(b"\x0a" * 32).peer_id


def claim(number: int, size: int = 100) -> Accusation:
    return Accusation(accused=BOB.peer_id, evidence=number.to_bytes(32, "big"), size=size)


def stranger(number: int) -> PeerId:
    return PeerId(f"stranger {number}")


async def test_one_accuser_has_one_accusation_pending() -> None:
    await trio.lowlevel.checkpoint()
    accusations = Accusations()
    assert accusations.hear(ANN.peer_id, claim(1), is_member=False) is AccusationOutcome.NEW
    assert accusations.hear(ANN.peer_id, claim(2), is_member=False) is AccusationOutcome.UNWANTED
    assert accusations.hear(ANN.peer_id, claim(1), is_member=False) is AccusationOutcome.UNWANTED
    with accusations.open(claim(1)):
        pass
    assert accusations.hear(ANN.peer_id, claim(2), is_member=False) is AccusationOutcome.NEW


async def test_strangers_that_fill_their_places_keep_no_member_out() -> None:
    accusations = Accusations()
    for number in range(MAX_PENDING):
        assert accusations.hear(stranger(number), claim(number), is_member=False) is AccusationOutcome.NEW
    assert accusations.hear(ANN.peer_id, claim(200), is_member=False) is AccusationOutcome.UNWANTED
    assert accusations.hear(MEMBER, claim(200), is_member=True) is AccusationOutcome.NEW
    async with trio.open_nursery() as nursery:
        for _ in range(STRANGER_PLACES + 3):
            nursery.start_soon(_hold, accusations)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(0.1):
            async with accusations.room(64 << 20, is_member=True):
                pass
        nursery.cancel_scope.cancel()


async def _hold(accusations: Accusations) -> None:
    async with accusations.room(1, is_member=False):
        await trio.sleep_forever()


async def test_all_strangers_together_have_a_budget_of_bytes() -> None:
    accusations, size = Accusations(), STRANGER_BYTES // 4
    assert accusations.hear(stranger(0), claim(0, STRANGER_BYTES + 1), is_member=False) is AccusationOutcome.UNWANTED
    heard = [accusations.hear(stranger(number), claim(number, size), is_member=False) for number in range(8)]
    assert heard == [AccusationOutcome.NEW] * 4 + [AccusationOutcome.UNWANTED] * 4
    assert accusations.hear(stranger(9), claim(0, size), is_member=False) is AccusationOutcome.JOINED, "it is fetched once"
    assert accusations.hear(MEMBER, claim(10, 64 << 20), is_member=True) is AccusationOutcome.NEW
    await trio.sleep(size / STRANGERS_BYTES_PER_S)
    assert accusations.hear(stranger(11), claim(11, size), is_member=False) is AccusationOutcome.NEW


async def test_who_fails_again_waits_twice_as_long() -> None:
    accusations, waits = Accusations(), []
    for _ in range(3):
        assert accusations.hear(ANN.peer_id, claim(1), is_member=False) is AccusationOutcome.NEW
        with accusations.open(claim(1)) as case, case.turn() as turn:
            assert turn == (ANN.peer_id, False)
            accusations.failed(case, ANN.peer_id)
        began = trio.current_time()
        while accusations.hear(ANN.peer_id, claim(1), is_member=False) is not AccusationOutcome.NEW:
            await trio.sleep(1)
        with accusations.open(claim(1)):
            pass
        waits.append(round(trio.current_time() - began))
    assert waits == [30, 60, 120]
