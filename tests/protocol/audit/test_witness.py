"""What one peer notices of the contradictions among what it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from protocol.audit.evidence import ContraryRecordProposal, Evidence, Law, OneStatement, judge
from protocol.audit.witness import KEPT_BYTES, KEPT_STATEMENTS, Witness
from protocol.chain.base import Base
from protocol.chain.records import record_hash
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Finish, PrevoteCertificate, Record, Step, pack
from tests.protocol.council import (
    BASE,
    IDENTITIES,
    INDEX,
    OTHER_INDEX,
    OTHER_RECORD,
    PEERS,
    RECORD,
    RUN,
    TIP,
    a_ballot,
    a_motion,
    a_roll,
    a_vote,
    name_of,
    signed,
    votes_for,
)

LEADER = a_ballot(2).proposer
LIAR, ANN, BOB = (peer for peer in BASE.electors if peer != LEADER)
EVE = PEERS[4]
LAW = Law(RUN, 1, chunk_layouts(LADDER["int4"], 600, 256), "clip", 4)


class Chain:
    """Stands in for the history: so many rounds, of whose tips two are known."""

    def __init__(self) -> None:
        self.length = BASE.round
        self.bases = {(BASE.round, bytes(TIP)): BASE}

    def base_at(self, round: int, tip: bytes) -> Base | None:
        return self.bases.get((round, tip))

    def grow(self) -> Base:
        """One more round."""
        self.length += 1
        base = replace(BASE, round=self.length, tip=Hash(bytes([self.length]) * 32))
        self.bases[base.round, base.tip] = base
        return base


class Table:
    """A witness, and what it found."""

    def __init__(self) -> None:
        self.chain = Chain()
        as_history: Any = self.chain
        self.witness = Witness(RUN, as_history, 4)

    def hear(self, sender: PeerId, body: Body) -> list[Evidence]:
        return self.witness.hear(sender, body, pack(IDENTITIES[sender], RUN, body))

    def verdicts(self, sender: PeerId, body: Body) -> list[PeerId]:
        """Whom the evidence convicts; all of it has to."""
        return [judge(LAW, case, BASE).peer for case in self.hear(sender, body)]


def proof(record: Record, *voters: PeerId, attempt: int = 2) -> PrevoteCertificate:
    certificate = votes_for(record, voters, attempt)
    return PrevoteCertificate(round=5, base=TIP, record_hash=record_hash(record), certificate=certificate)


def commit(record: Record, *voters: PeerId, attempt: int = 2) -> Commit:
    index = INDEX if record == RECORD else OTHER_INDEX
    return Commit(record=record, index=index, certificate=votes_for(record, voters, attempt, step=Step.SECOND))


def test_a_round_of_honest_electors_shows_no_lie() -> None:
    table = Table()
    certified = proof(RECORD, LEADER, ANN, BOB)
    carried = a_motion(
        3, rolls=[signed(peer, a_roll(3, lock=name_of(2))) for peer in BASE.electors], proof=certified.certificate
    )
    heard: list[tuple[PeerId, Body]] = [
        *[(peer, a_roll(2)) for peer in BASE.electors],
        *[(peer, a_roll(2, held=[ANN])) for peer in BASE.electors],
        (LEADER, a_motion(2)),
        *[(peer, a_vote(2)) for peer in BASE.electors],
        (LEADER, certified),
        *[(peer, a_vote(2, step=Step.SECOND)) for peer in BASE.electors],
        *[(peer, a_roll(3, lock=name_of(2))) for peer in BASE.electors],
        (a_ballot(3).proposer, carried),
        *[(peer, a_vote(3, step=Step.SECOND)) for peer in BASE.electors],
        (LEADER, commit(RECORD, LEADER, ANN, BOB)),
        (LEADER, Finish(round=5, base=TIP)),
    ]
    for sender, body in heard:
        assert table.hear(sender, body) == [] == table.hear(sender, body)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (a_vote(2), a_vote(2, record=OTHER_RECORD)),
        (a_vote(2, step=Step.SECOND), a_roll(3)),
        (a_roll(3), a_vote(2, step=Step.SECOND)),
        (a_roll(3, lock=name_of(2)), a_roll(4)),
    ],
)
def test_two_single_statements(first: Body, second: Body) -> None:
    table = Table()
    assert table.verdicts(LIAR, first) == [] and table.verdicts(ANN, second) == []
    assert table.verdicts(LIAR, second) == [LIAR]


def test_one_statement() -> None:
    assert isinstance(Table().hear(LIAR, a_roll(2, lock=name_of(2)))[0], OneStatement)
    unproven = a_motion(2, rolls=[signed(peer, a_roll(2, lock=name_of(1))) for peer in BASE.electors])
    assert Table().verdicts(LEADER, unproven) == [LEADER]


@pytest.mark.parametrize("late", [False, True], ids=["the vote first", "the certificate first"])
@pytest.mark.parametrize(
    ("shown", "step"),
    [
        (proof(OTHER_RECORD, LIAR, ANN, BOB), Step.FIRST),
        (commit(OTHER_RECORD, LIAR, ANN, BOB), Step.SECOND),
        (
            a_motion(
                4,
                rolls=[signed(peer, a_roll(4, lock=name_of(2))) for peer in BASE.electors],
                proof=votes_for(RECORD, [LIAR, ANN, BOB], 2),
            ),
            Step.FIRST,
        ),
    ],
    ids=["a proof", "a commit", "the proof in a motion"],
)
def test_a_vote_beside_a_certificate(shown: Body, step: Step, late: bool) -> None:
    table, bringer = Table(), a_ballot(4).proposer
    record = RECORD if not isinstance(shown, PrevoteCertificate | Commit) else OTHER_RECORD
    single = a_vote(2, record=OTHER_RECORD if record == RECORD else RECORD, step=step)
    heard: list[tuple[PeerId, Body]] = [(LIAR, single), (bringer, shown)]
    found = [case for sender, body in (heard[::-1] if late else heard) for case in table.hear(sender, body)]
    assert [judge(LAW, case, BASE).peer for case in found] == [LIAR]


def test_two_certificates_name_all_who_signed_both() -> None:
    table = Table()
    assert table.hear(ANN, commit(RECORD, LIAR, ANN, BOB)) == []
    assert table.verdicts(BOB, commit(OTHER_RECORD, LIAR, BOB, LEADER)) == sorted([LIAR, BOB])


@pytest.mark.parametrize("late", [False, True], ids=["the motion first", "the certificate first"])
def test_a_motion_beside_a_certificate_of_its_ballot(late: bool) -> None:
    table = Table()
    heard: list[tuple[PeerId, Body]] = [(LEADER, a_motion(2)), (ANN, proof(OTHER_RECORD, LIAR, ANN, BOB))]
    found = [case for sender, body in (heard[::-1] if late else heard) for case in table.hear(sender, body)]
    assert [type(case) for case in found] == [ContraryRecordProposal] and judge(LAW, found[0], BASE).peer == LEADER


def test_a_forged_certificate_frames_nobody() -> None:
    table = Table()
    table.hear(LIAR, a_vote(2))
    forged = proof(OTHER_RECORD, LIAR, ANN, BOB)
    votes = [each.model_copy(update={"signature": bytes(64)}) for each in forged.certificate.votes]
    forged = forged.model_copy(update={"certificate": forged.certificate.model_copy(update={"votes": votes})})
    assert table.hear(ANN, forged) == []
    assert table.hear(BOB, a_vote(2)) == []


def test_only_electors_are_heard_on_the_newest_two_tips() -> None:
    table = Table()
    for body in (a_vote(2), a_vote(2, record=OTHER_RECORD)):
        assert table.hear(EVE, body) == [], "a stranger's vote counts nowhere"
    table.hear(LIAR, a_vote(2))
    next_base = table.chain.grow()
    assert table.verdicts(LIAR, a_vote(2, record=OTHER_RECORD)) == [LIAR], "the last votes may still come"
    table.hear(ANN, a_vote(2, on=next_base))
    table.chain.grow()
    table.hear(ANN, a_vote(2, on=next_base))
    assert table.hear(LIAR, a_vote(2, record=OTHER_RECORD)) == [], "the round is long over"
    elsewhere = replace(BASE, tip=Hash(ZERO_HASH))
    for record in (RECORD, OTHER_RECORD):
        assert table.hear(LIAR, a_vote(2, record=record, on=elsewhere)) == [], "who the electors are is not known"


def test_what_is_kept_is_bounded() -> None:
    table = Table()
    for attempt in range(10 * KEPT_STATEMENTS):
        table.hear(LIAR, a_vote(attempt))
        table.hear(LIAR, proof(RECORD, LIAR, ANN, BOB, attempt=attempt))
    testimony = table.witness._testimonies[LIAR]
    assert len(testimony.statements) == KEPT_STATEMENTS
    assert sum(len(each.raw) for each in testimony.statements.values()) <= KEPT_BYTES
    newest = 10 * KEPT_STATEMENTS - 1
    assert table.verdicts(LIAR, a_vote(newest, record=OTHER_RECORD))[0] == LIAR
