"""Who ratifies a provisional record, what binds it then, and which votes count."""

from __future__ import annotations

import pytest

from protocol.agreement.ballot import (
    RATIFYING,
    Tally,
    blank,
    cast_first,
    cast_second,
    has_ratified,
    objection_to_ratify,
    objection_to_vote,
    ratify,
    vote_to_ratify,
)
from protocol.chain.records import is_full, record_hash, verify_votes
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Record, Signature, Step, VoterState
from tests.protocol.council import (
    BASE,
    OTHER_RECORD,
    PEERS,
    RECORD,
    SETTINGS,
    a_lock,
    a_motion,
    signature_of,
)

NAME, OTHER = record_hash(RECORD), record_hash(OTHER_RECORD)
DAN, STRANGER = PEERS[3:]


def locked(record: Record, *absent: PeerId) -> VoterState:
    """After a second vote for this record in attempt 2."""
    motion = a_motion(2, *absent, record=record)
    kept, _ = cast_first(blank(BASE), motion)
    return cast_second(kept, motion, a_lock(2, *absent, record=record).proof)[0]


@pytest.mark.parametrize(
    ("kept", "may"),
    [
        (None, True),
        (blank(BASE), True),
        (locked(RECORD), True),
        (locked(OTHER_RECORD), False),
        (locked(OTHER_RECORD, DAN), True),
        (ratify(None, BASE, NAME)[0], True),
        (ratify(None, BASE, OTHER)[0], False),
    ],
    ids=["nothing said", "blank", "locked on it", "locked", "a lock of a part", "again", "ratified another"],
)
def test_nobody_ratifies_beside_its_lock_of_the_whole_electorate(kept: VoterState | None, may: bool) -> None:
    assert (objection_to_ratify(kept, NAME) is None) is may


def test_who_has_ratified_says_nothing_else_on_that_tip() -> None:
    before = locked(RECORD)
    kept, vote = ratify(before, BASE, NAME)
    assert has_ratified(kept) and not has_ratified(before) and not has_ratified(None)
    assert (vote.attempt, vote.step, vote.absent, vote.record_hash) == (RATIFYING, Step.SECOND, [], NAME)
    assert kept.lock == before.lock and decode_body(VoterState, kept.encode(), max_bytes=1 << 20) == kept
    for step in Step:
        for attempt in (0, 2, 3, 1000):
            assert objection_to_vote(kept, step, attempt, [], NAME) is not None
    assert ratify(kept, BASE, NAME) == (kept, vote), "again, the same"


def signatures(peers: list[PeerId], record: Hash) -> list[Signature]:
    vote = vote_to_ratify(BASE, record)
    return [Signature(peer=peer, signature=signature_of(peer, vote)) for peer in peers]


def test_a_quorum_of_electors_makes_a_full_certificate() -> None:
    tally = Tally(SETTINGS.run, BASE, NAME)
    assert tally.certificate is None and not tally.is_enough
    tally.add(signatures([PEERS[2], PEERS[0]], NAME))
    tally.add(signatures([PEERS[0]], NAME))
    assert not tally.is_enough and tally.has(PEERS[0]) and not tally.has(PEERS[1])
    tally.add(signatures(PEERS[:4], NAME))
    assert tally.is_enough and tally.certificate is not None and is_full(tally.certificate)
    verify_votes(SETTINGS.run, BASE, RECORD, tally.certificate, Step.SECOND)
    assert decode_body(Certificate, tally.certificate.encode()) == tally.certificate


def test_votes_of_strangers_for_other_records_and_forged_ones_count_for_nothing() -> None:
    tally = Tally(SETTINGS.run, BASE, NAME)
    tally.add(signatures([STRANGER], NAME))
    tally.add(signatures(PEERS, OTHER))
    tally.add([Signature(peer=peer, signature=bytes(64)) for peer in PEERS])
    assert tally.certificate is None
