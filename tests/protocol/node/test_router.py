"""The entrance of a node: what is forwarded, what is answered and to whom, who is greeted, and where failures end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from protocol.allreduce.runner import ExchangeAsk
from protocol.audit.ejection import Ejections
from protocol.chain.replica import Serving
from protocol.events.events import Dropped, HandlerFailed, Notice, PeerEjected
from protocol.membership.heartbeats import FailureDetector
from protocol.node import router
from protocol.node.commands import Extensions
from protocol.node.rounds import Rounds
from protocol.rollouts.rollouts import Rollouts
from protocol.run.admission import make_hello
from protocol.run.manifest import Admission, sign
from protocol.tasks.task_sets import TaskSets
from protocol.transport.handlers import Hears, answers, declarations
from protocol.transport.interface import Acceptance, Offence, Refused, Unreachable
from protocol.wire.envelope import MAX_GOSSIP_BYTES, Body
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import Identity
from protocol.wire.messages import STATEMENTS, Finish, Step, Vote
from protocol.wire.presence import Goodbye, Role
from protocol.wire.questions import EvidenceRequest, PartRequest, TipsRequest
from tests.protocol.answering import BEFORE_HELLO, QUESTIONS
from tests.protocol.chains import a_run, in_run
from tests.protocol.node.stage import Stage
from tests.protocol.peers import ANN, BOB, ME, a_heartbeat

HEARERS = (FailureDetector, Rounds, Ejections, TaskSets, Rollouts, Extensions)


def test_each_kind_that_travels_by_gossip_has_one_handler() -> None:
    declared = [each for component in HEARERS for _, each in declarations(component)]
    heard = [each.kind for each in declared if isinstance(each, Hears)]
    assert Counter(heard) == Counter(kind for kind in STATEMENTS.values() if kind.BY_GOSSIP)


async def test_a_failure_of_ours_costs_an_event_and_the_connection(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: object) -> bytes:
        raise KeyError("ours")

    def fail_at_once(*arguments: object) -> Acceptance:
        raise KeyError("ours")

    monkeypatch.setattr(Serving, "answer_tips", answers("tips", TipsRequest)(fail))
    monkeypatch.setattr(router, "unpack", fail_at_once)
    with pytest.raises(Refused, match="failed to answer the question"):
        await stage.router.on_request(ANN.peer_id, "tips", TipsRequest(start=0, count=1).encode())
    assert stage.router.on_gossip(ANN.peer_id, b"") is Acceptance.IGNORE
    assert [event.what for event in stage.events if isinstance(event, HandlerFailed)] == ["question 'tips'", "gossip"]
    assert stage.network.forgotten == [ANN.peer_id] * 2


async def test_a_statement_over_its_limit_does_not_wait_for_large_ones(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "_unpack", None)  # decodes one large statement at a time
    with pytest.raises(Offence):
        await stage.router.on_request(ANN.peer_id, "goodbye", bytes(MAX_GOSSIP_BYTES + 1))
    assert stage.guard.failures == 0


async def test_a_push_that_belongs_to_no_exchange_is_not_wanted(stage: Stage) -> None:
    assert await stage.router.open_push(ANN.peer_id, b"odd", 8) is None
    await stage.router.finish_push(ANN.peer_id, b"odd", None)
    assert stage.guard.failures == 0


async def test_whoever_is_connected_is_greeted_and_its_refusal_told(stage: Stage) -> None:
    async def refuse(kind: str, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        raise Refused(f"no {kind} here")

    stage.network.answers[ANN.peer_id] = refuse
    stage.router.on_peer_connected(ANN.peer_id)
    await trio.testing.wait_all_tasks_blocked()
    assert [event.text for event in stage.events if isinstance(event, Notice)] == ["no hello here"]


async def test_a_peer_that_is_gone_or_connected_anew_is_not_greeted_twice(stage: Stage) -> None:
    asked: list[float] = []

    async def silent(kind: str, data: bytes) -> bytes:
        asked.append(trio.current_time())
        raise Unreachable("no answer in time")

    stage.network.answers[ANN.peer_id] = silent
    stage.router.on_peer_connected(ANN.peer_id)
    await trio.sleep(100)
    begun = trio.current_time()
    stage.router.on_peer_connected(ANN.peer_id)
    await trio.sleep(100)
    assert [at - begun for at in asked if at >= begun] == [0, 1, 3, 7, 15, 31, 63]
    del stage.network.answers[ANN.peer_id]
    before = len(asked)
    await trio.sleep(1000)
    assert len(asked) == before and stage.guard.failures == 0


async def test_whatever_comes_over_a_connection_is_a_sign_of_life(stage: Stage) -> None:
    """Gossip of somebody else, a question, and each piece of a push; the peer sends no heartbeat any more."""
    stage.router.on_peer_connected(ANN.peer_id)
    stage.gossip(ANN, a_heartbeat())

    async def ask() -> None:
        await stage.router.on_request(ANN.peer_id, "tips", TipsRequest(start=0, count=1).encode())

    async def forward() -> None:
        stage.router.on_gossip(ANN.peer_id, stage.said(BOB, a_heartbeat()))

    async def push() -> None:
        await stage.router.open_push(ANN.peer_id, b"", 1)

    for come in (ask, forward, push):
        await trio.sleep(5.0)
        with suppress(Refused):
            await come()
        assert stage.membership.silent_s(ANN.peer_id, trio.current_time()) == 0.0, come
    await trio.sleep(5.0)
    assert stage.membership.silent_s(ANN.peer_id, trio.current_time()) == 5.0


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


ORGANISER = Identity.from_seed(b"\x2a" * 32)
ANNS_ALONE = sign(
    ORGANISER,
    a_run(ANN).manifest.model_copy(update={"admission": Admission.ALLOWLIST, "allowlist": [ANN.peer_id]}),
)
"""A run that lets nobody in but Ann."""


async def refusal(stage: Stage, kind: str, data: bytes = b"", asker: Identity = ANN) -> Refused:
    with pytest.raises(Refused) as caught:
        await stage.router.on_request(asker.peer_id, kind, data)
    return caught.value


@in_run(ANNS_ALONE)
async def test_a_greeting_is_answered_and_its_sender_welcome(stage: Stage) -> None:
    hello = make_hello(stage.run, Role.TRAINER, b"", "0").encode()
    assert await stage.router.on_request(ANN.peer_id, "hello", hello)
    await refusal(stage, "hello", hello, BOB)
    assert stage.network.welcomed == [ANN.peer_id]


@pytest.mark.parametrize("kind", sorted(set(QUESTIONS) - BEFORE_HELLO))
@in_run(ANNS_ALONE)
async def test_whoever_may_not_speak_may_not_ask(stage: Stage, kind: str) -> None:
    assert str(await refusal(stage, kind, asker=BOB)) == f"a hello must come first: {kind}"


@in_run(ANNS_ALONE)
async def test_the_manifest_is_for_everybody(stage: Stage) -> None:
    assert await stage.router.on_request(BOB.peer_id, "manifest", b"") == stage.replica.signed.raw


@pytest.mark.parametrize("kind", sorted(QUESTIONS))
async def test_a_liar_gets_no_answer(stage: Stage, kind: str) -> None:
    await stage.ejections.convict(stage.proof(ANN))
    assert "you were ejected from this run" in str(await refusal(stage, kind))


async def test_unknown_and_oversized_questions_are_refused(stage: Stage) -> None:
    assert str(await refusal(stage, "gossip")) == "no such question"
    for kind in (kind for kind, form in QUESTIONS.items() if form is not None):
        assert str(await refusal(stage, kind, bytes(1 << 20))) == "the question is too long"


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        ("exchange", ExchangeAsk(plan=ZERO_HASH, fragment=0, chunk=0), "no such exchange here"),
        ("part", PartRequest(root=ZERO_HASH, chunk=0, offset=0, length=1), "that contribution is not here"),
        ("evidence", EvidenceRequest(evidence=ZERO_HASH, offset=0, length=1), "this peer does not have that proof"),
    ],
)
async def test_what_is_not_here_is_refused_and_so_is_rubbish(stage: Stage, kind: str, question: Body, answer: str) -> None:
    assert str(await refusal(stage, kind, question.encode())) == answer
    assert not isinstance(await refusal(stage, kind, b"odd"), Offence)


@pytest.mark.parametrize("kind", ["round", "goodbye"])
async def test_a_statement_is_acknowledged_and_a_false_one_is_an_offence(stage: Stage, kind: str) -> None:
    true = stage.said(ANN, Goodbye(incarnation=1, seq=1))
    assert await stage.router.on_request(ANN.peer_id, kind, true) == b""
    for false in (b"odd", true[:-1], stage.said(BOB, Goodbye(incarnation=1, seq=1))):
        assert isinstance(await refusal(stage, kind, false), Offence)
