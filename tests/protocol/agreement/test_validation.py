"""Plans and motions that cannot be of this round, each with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.agreement.ballot import flaw_of_plan, flaw_of_record_proposal, is_in, plan_of
from protocol.allreduce.assignment import plan_hash
from protocol.chain.base import fragment_of
from protocol.chain.records import index_root
from protocol.wire.hashes import ZERO_HASH
from tests.protocol.council import (
    BASE,
    INDEX,
    PEERS,
    PROVENANCE,
    SETTINGS,
    STATE,
    a_plan,
    a_ready,
    a_record,
    members,
)

ROOT = b"\x05" * 32
MOST = SETTINGS.manifest.tokens_per_round
ILL_SORTED = "members that are not sorted, too few or too many"


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"members": members(*PEERS[:4])}, None),
        ({"state_digest": ZERO_HASH, "members": members(*PEERS[:3], state_digest=ZERO_HASH)}, None),
        ({"round": 4}, "its plan is for another round"),
        ({"base": ZERO_HASH}, "its plan is for another round"),
        ({"fragment": 1}, "its plan is for fragment 1, not 0"),
        ({"members": members(PEERS[1], PEERS[0], PEERS[2])}, f"its plan has {ILL_SORTED}"),
        ({"members": members(PEERS[0], PEERS[0], PEERS[1])}, f"its plan has {ILL_SORTED}"),
        ({"members": members(PEERS[0])}, "a chunk of its plan has an owner that is not a member"),
        ({"members": members(PEERS[0]), "owners": bytes(3)}, f"its plan has {ILL_SORTED}"),
        ({"members": members(*PEERS)}, f"its plan has {ILL_SORTED}"),
        ({"members": members(*PEERS[:3], tokens=MOST)}, None),
        (
            {"members": members(*PEERS[:3], tokens=MOST + 1)},
            "its plan has a member that claims more tokens than its contribution can have",
        ),
        ({"owners": b"\0\1"}, "its plan has 2 chunks, not 3"),
        ({"owners": b"\0\1\2\0"}, "its plan has 4 chunks, not 3"),
        ({"owners": b"\0\1\3"}, "a chunk of its plan has an owner that is not a member"),
    ],
)
def test_plans(changes: dict[str, Any], flaw: str | None) -> None:
    assert flaw_of_plan(SETTINGS, BASE, a_plan(**changes)) == flaw


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"previous": ZERO_HASH}, "a record that does not stand on this tip"),
        ({"round": 6}, "a record that does not stand on this tip"),
        ({"fragment": 1}, "a record of another fragment or codec than the round's"),
        ({"codec": "fp32"}, "a record of another fragment or codec than the round's"),
        ({"members": members(*PEERS)}, ILL_SORTED),
        (
            {"members": members(*PEERS[:3], tokens=MOST + 1)},
            "a member that claims more tokens than its contribution can have",
        ),
        ({"result_root": ZERO_HASH}, "a record whose chunks do not match its result root"),
    ],
)
def test_records_put_to_the_vote(changes: dict[str, Any], flaw: str | None) -> None:
    assert flaw_of_record_proposal(SETTINGS, BASE, a_record(**changes), INDEX, PROVENANCE) == flaw


@pytest.mark.parametrize(("fragments", "round", "fragment"), [(1, 0, 0), (1, 5, 0), (4, 3, 3), (4, 5, 1)])
def test_the_fragments_take_turns(fragments: int, round: int, fragment: int) -> None:
    base = replace(BASE, round=round, fragment=fragment_of(round, fragments))
    assert base.fragment == fragment
    plans = [
        a_plan(round=round, fragment=number, members=members(*PEERS[:3], round=round, fragment=number))
        for number in range(fragments)
    ]
    flaws = [flaw_of_plan(SETTINGS, base, plan) for plan in plans]
    assert [number for number, flaw in enumerate(flaws) if flaw is None] == [fragment]


def test_a_record_of_fewer_chunks_than_the_run_has() -> None:
    fewer = INDEX[:2]
    record = a_record(result_root=index_root(fewer))
    assert (
        flaw_of_record_proposal(SETTINGS, BASE, record, fewer, PROVENANCE)
        == "a record whose chunks do not match its result root"
    )


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"owners": b"\0\1"}, "its provenance is not of this many chunks"),
        ({"signers": b"\0\1\2\0"}, "its provenance is not of this many chunks"),
        ({"signatures": [bytes(64)] * 2}, "its provenance is not of this many chunks"),
        ({"owners": b"\0\1\3"}, "its provenance names an owner or a signer that is not a member"),
        ({"signers": b"\3\1\2"}, "its provenance names an owner or a signer that is not a member"),
    ],
)
def test_provenances_put_to_the_vote(changes: dict[str, Any], flaw: str | None) -> None:
    assert flaw_of_record_proposal(SETTINGS, BASE, a_record(), INDEX, PROVENANCE.model_copy(update=changes)) == flaw


def test_the_plan_of_a_record_is_the_one_that_was_exchanged_by() -> None:
    assert plan_hash(plan_of(a_record(), PROVENANCE)) == plan_hash(a_plan())
    assert plan_of(a_record(), PROVENANCE).state_digest == STATE


@pytest.mark.parametrize(
    ("peer", "ready", "there"),
    [
        (PEERS[1], a_ready(), True),
        (PEERS[1], None, False),
        (PEERS[3], a_ready(), False),
        (PEERS[1], a_ready(root=ROOT), False),
        (PEERS[1], a_ready(tokens=99), False),
        (PEERS[1], a_ready(serial=a_ready().serial + 1), False),
        (PEERS[1], a_ready(incarnation=a_ready().incarnation + 1), False),
    ],
    ids=["as we said", "we said nothing", "no member", "another contribution", "other tokens", "made again", "another life"],
)
def test_a_plan_has_our_contribution(peer: Any, ready: Any, there: bool) -> None:
    assert is_in(a_plan(), peer, ready) is there


NOT_READY = "a member that did not say READY"


@pytest.mark.parametrize(
    "changes",
    [
        {"signature": bytes(64)},
        {"peer": PEERS[3]},
        {"tokens": 101},
        {"loss": 1.0},
        {"root": ROOT},
        {"serial": 2},
        {"admission": b"let me in"},
    ],
    ids=["no signature", "another's READY", "more tokens", "another loss", "another root", "a later one", "a pass"],
)
def test_a_member_that_did_not_sign_this_ready_is_in_no_plan_and_no_record(changes: dict[str, Any]) -> None:
    first, second, third = members(*PEERS[:3])
    forged = [first, second, third.model_copy(update=changes)]
    assert flaw_of_plan(SETTINGS, BASE, a_plan(members=forged)) == f"its plan has {NOT_READY}"
    assert flaw_of_record_proposal(SETTINGS, BASE, a_record(members=forged), INDEX, PROVENANCE) == NOT_READY


@pytest.mark.parametrize("changes", [{"round": 4}, {"base": ZERO_HASH}, {"fragment": 1}, {"state_digest": ZERO_HASH}])
def test_a_ready_for_another_round_or_state_makes_no_member(changes: dict[str, Any]) -> None:
    strays = members(*PEERS[:3], **changes)
    assert flaw_of_plan(SETTINGS, BASE, a_plan(members=strays)) == f"its plan has {NOT_READY}"
