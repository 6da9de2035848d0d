"""Evidence about tips that are not known yet: it waits, and nobody is blamed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.audit.ejection import MAX_POSTPONED, AccusationOutcome
from protocol.audit.evidence import (
    ContraryRecordProposal,
    OneStatement,
    TwoStatements,
    encode_evidence,
    evidence_hash,
)
from protocol.chain.base import Base
from protocol.events.events import Dropped, Notice
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import Identity
from protocol.wire.messages import Step, pack
from tests.protocol import council
from tests.protocol.audit.test_ejection import ACCUSER, LIAR, OTHER, Table, accusation, on_table, ready
from tests.protocol.peers import BOB
from tests.simulation.world import simulated_run

UNFOUNDED = OneStatement(statement=pack(BOB, simulated_run().run, council.a_motion(0, rolls=[b"none"])).raw)
"""BOB moves without the rolls that it needs, on a tip that is not in our chain."""
UNFOUNDED_RAW = encode_evidence(UNFOUNDED)


def learn_tip(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our chain grows up to the tip, where BOB is the only elector."""
    base = Base(5, 0, council.TIP, (LIAR,))
    monkeypatch.setattr(table.replica.history, "base_at", lambda *tip: base if tip == (5, base.tip) else None)


def test_evidence_about_an_unknown_tip_is_judged_when_we_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(table: Table) -> None:
        table.held = UNFOUNDED_RAW
        told = accusation(UNFOUNDED_RAW)
        assert await table.look_into(told) is None and not table.has_ejected()
        assert not any(isinstance(event, Dropped) for event in table.events), "the accuser is not to blame"
        assert any("do not know yet" in event.text for event in table.events if isinstance(event, Notice))
        assert table.ejections.hear(ACCUSER, told) is AccusationOutcome.UNWANTED, "it is here"
        assert table.ejections.hear(ACCUSER, accusation()) is AccusationOutcome.NEW
        await table.ejections.look_again()
        assert not table.has_ejected()
        learn_tip(table, monkeypatch)
        await table.ejections.look_again()
        assert table.has_ejected() and table.replica.store.evidence.names() == [evidence_hash(UNFOUNDED_RAW)]

    on_table(tmp_path, check)


def test_postponed_evidence_is_bounded_and_peers_of_the_chain_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(table: Table) -> None:
        keys = [Identity.from_seed(bytes([100 + number]) * 32) for number in range(2 * MAX_POSTPONED)]
        unfounded = [
            encode_evidence(OneStatement(statement=pack(key, table.run, council.a_motion(0, rolls=[b"none"])).raw))
            for key in keys
        ]
        monkeypatch.setattr(table.replica.history, "has_member", lambda peer: peer == LIAR)
        for raw, key in [(UNFOUNDED_RAW, BOB), *zip(unfounded, keys, strict=True)]:
            table.held = raw
            assert await table.look_into(accusation(raw, key.peer_id)) is None
        kept = table.ejections.hear(ACCUSER, accusation(UNFOUNDED_RAW))
        assert kept is AccusationOutcome.UNWANTED, "strangers displace no evidence against a member"
        assert table.ejections.hear(ACCUSER, accusation(unfounded[0], keys[0].peer_id)) is AccusationOutcome.NEW, "forgotten"

    on_table(tmp_path, check)


def test_evidence_on_disk_about_an_unknown_tip_waits_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(table: Table) -> None:
        table.replica.store.evidence.save(evidence_hash(UNFOUNDED_RAW), UNFOUNDED_RAW)
        await table.ejections.load()
        assert not table.has_ejected()
        learn_tip(table, monkeypatch)
        await table.ejections.look_again()
        assert table.has_ejected()

    on_table(tmp_path, check)


def test_evidence_about_an_unknown_tip_against_somebody_else_is_a_false_accusation(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        table.held = UNFOUNDED_RAW
        assert await table.look_into(accusation(UNFOUNDED_RAW, OTHER)) is None
        assert [event.peer for event in table.events if isinstance(event, Dropped)] == [ACCUSER]

    on_table(tmp_path, check)


def test_evidence_with_false_signatures_is_dropped_whatever_its_kind(tmp_path: Path) -> None:
    """It is made of what others sent."""

    async def check(table: Table) -> None:
        forged = UNFOUNDED.statement[:-1] + bytes([UNFOUNDED.statement[-1] ^ 1])
        certificate = council.votes_for(council.RECORD, council.PEERS[:3], 0)
        for case in (
            OneStatement(statement=forged),
            OneStatement(statement=b""),
            TwoStatements(first=forged, second=UNFOUNDED.statement),
            ContraryRecordProposal(motion=forged, record_hash=ZERO_HASH, step=Step.FIRST, certificate=certificate),
            ContraryRecordProposal(motion=ready(8), record_hash=ZERO_HASH, step=Step.FIRST, certificate=certificate),
        ):
            assert await table.ejections.convict(case) is None
        assert not table.has_ejected()

    on_table(tmp_path, check)
