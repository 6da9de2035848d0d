"""What is forwarded of what others state, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.audit.evidence import encode_evidence, evidence_hash
from protocol.events.events import Dropped, PeerEjected
from protocol.membership.liveness import Liveness
from protocol.run.manifest import SignedManifest
from protocol.transport.interface import Acceptance
from protocol.wire.envelope import Body, decode_body
from protocol.wire.messages import Accusation, Finish, Step, Vote
from protocol.wire.presence import Goodbye
from protocol.wire.questions import EvidenceRequest
from tests.protocol.node.stage import Stage
from tests.protocol.peers import ANN, BOB, ME, a_heartbeat

BYE = Goodbye(incarnation=1, seq=9)
ACCEPT, IGNORE, REJECT = Acceptance.ACCEPT, Acceptance.IGNORE, Acceptance.REJECT


@pytest.mark.parametrize(
    "statement",
    [lambda stage: a_heartbeat(), lambda stage: stage.ready(), lambda stage: BYE],
    ids=["heartbeat", "READY", "goodbye"],
)
async def test_news_is_forwarded_once(stage: Stage, statement: Callable[[Stage], Body]) -> None:
    await trio.lowlevel.checkpoint()
    stage.router.on_peer_connected(ANN.peer_id)
    if statement(stage) == BYE:
        stage.gossip(ANN, a_heartbeat())
    assert [stage.gossip(ANN, statement(stage)) for _ in range(2)] == [ACCEPT, IGNORE]


async def test_rubbish_and_what_does_not_travel_by_gossip_are_held_against_the_forwarder(stage: Stage) -> None:
    await trio.lowlevel.checkpoint()
    finish = stage.said(ANN, Finish(round=0, base=stage.replica.history.tip))
    for data in (b"odd", finish, stage.said(ANN, BYE)[:-1]):
        assert stage.router.on_gossip(BOB.peer_id, data) is REJECT
    assert [(event.peer, event.what) for event in stage.events if isinstance(event, Dropped)] == [
        (BOB.peer_id, "gossip")
    ] * 3


async def test_our_own_statements_and_those_of_liars_are_not_forwarded(stage: Stage) -> None:
    await stage.ejections.convict(stage.proof(ANN))
    assert stage.gossip(ME, a_heartbeat()) is IGNORE
    assert stage.gossip(ANN, a_heartbeat(seq=2)) is IGNORE


async def test_a_peer_that_is_not_open_judges_no_forwarder_of_good_form(tmp_path: Path, signed: SignedManifest) -> None:
    await trio.lowlevel.checkpoint()
    stage = Stage(tmp_path, signed)
    assert stage.gossip(ANN, a_heartbeat()) is IGNORE and stage.membership.get(ANN.peer_id) is None
    stage.replica.state.close()


async def test_a_goodbye_that_came_to_us_alone_is_forwarded_when_it_comes_by_gossip(stage: Stage) -> None:
    stage.router.on_peer_connected(ANN.peer_id)
    stage.gossip(ANN, a_heartbeat())
    await stage.router.on_request(ANN.peer_id, "goodbye", stage.said(ANN, BYE))
    known = stage.membership.get(ANN.peer_id)
    assert known is not None and known.liveness is Liveness.LEFT
    assert [stage.gossip(ANN, BYE) for _ in range(2)] == [ACCEPT, IGNORE]


async def test_two_readys_for_one_slot_eject_their_author(stage: Stage) -> None:
    assert [stage.gossip(ANN, stage.ready(tokens=tokens)) for tokens in (8, 16)] == [ACCEPT, IGNORE]
    await trio.testing.wait_all_tasks_blocked()
    assert [event.peer for event in stage.events if isinstance(event, PeerEjected)] == [ANN.peer_id]


async def test_two_votes_brought_to_us_alone_eject_the_elector(stage: Stage) -> None:
    tip = stage.replica.history.tip
    for record_hash in (bytes([1]) * 32, bytes([2]) * 32):
        vote = Vote(round=0, base=tip, attempt=0, step=Step.FIRST, absent=[], record_hash=record_hash)
        await stage.router.on_request(ANN.peer_id, "round", stage.said(ANN, vote))
    await trio.testing.wait_all_tasks_blocked()
    assert [event.peer for event in stage.events if isinstance(event, PeerEjected)] == [ANN.peer_id]


async def test_an_accusation_is_forwarded_and_its_proof_fetched(stage: Stage) -> None:
    raw = encode_evidence(stage.proof(ANN))

    async def hand_over(kind: str, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        question = decode_body(EvidenceRequest, data)
        return raw[question.offset : question.offset + question.length]

    stage.network.answers[BOB.peer_id] = hand_over
    accusation = Accusation(accused=ANN.peer_id, evidence=evidence_hash(raw), size=len(raw))
    assert stage.gossip(BOB, accusation) is ACCEPT
    await trio.testing.wait_all_tasks_blocked()
    assert ANN.peer_id in stage.ejections and stage.gossip(BOB, accusation) is IGNORE
