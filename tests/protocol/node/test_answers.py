"""Which questions are answered, and to whom."""

from __future__ import annotations

import pytest

from protocol.allreduce.runner import ExchangeAsk
from protocol.run.admission import make_hello
from protocol.run.manifest import Admission, sign
from protocol.transport.interface import Offence, Refused
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import Identity
from protocol.wire.presence import Goodbye, Role
from protocol.wire.questions import EvidenceRequest, PartRequest
from tests.protocol.answering import BEFORE_HELLO, QUESTIONS
from tests.protocol.chains import a_run, in_run
from tests.protocol.node.stage import Stage
from tests.protocol.peers import ANN, BOB

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


async def test_founders_are_no_strangers_before_the_first_record(stage: Stage) -> None:
    assert stage.router.has_member(ANN.peer_id) and not stage.router.has_member(BOB.peer_id)
    assert not stage.membership.has_member(ANN.peer_id)


async def test_unknown_and_oversized_questions_are_refused(stage: Stage) -> None:
    assert str(await refusal(stage, "gossip")) == "no such question"
    for kind in (kind for kind, form in QUESTIONS.items() if form is not None):
        assert str(await refusal(stage, kind, bytes(1 << 20))) == "the question is too long"


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        ("exchange", ExchangeAsk(plan=ZERO_HASH, fragment=0, chunk=0), "no such exchange here"),
        ("part", PartRequest(root=ZERO_HASH, chunk=0, offset=0, length=1), "that contribution is not here"),
        ("evidence", EvidenceRequest(evidence=ZERO_HASH, offset=0, length=1), "that proof is not here"),
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
