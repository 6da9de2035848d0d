"""Evidence about tips that are not known yet: it is fetched again, and nobody is blamed for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from protocol.audit.ejection import AGAIN_S, AccusationOutcome
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


def test_evidence_about_an_unknown_tip_is_fetched_again_when_we_may_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(table: Table) -> None:
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

    on_table(tmp_path, check)


def test_evidence_on_disk_about_an_unknown_tip_stays_there(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        table.replica.store.evidence.save(evidence_hash(UNFOUNDED_RAW), UNFOUNDED_RAW)
        await table.ejections.load()
        assert not table.has_ejected() and table.replica.store.evidence.names() == [evidence_hash(UNFOUNDED_RAW)]

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
