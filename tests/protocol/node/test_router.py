"""What a handler fails at ends at the entrance; connections are greeted and judged while it is open."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.audit.ejection import Ejections
from protocol.chain.replica import Serving
from protocol.events.events import HandlerFailed, Notice
from protocol.membership.heartbeats import FailureDetector
from protocol.node import router
from protocol.node.commands import Extensions
from protocol.node.rounds import RoundHandlers
from protocol.rollouts.rollouts import Rollouts
from protocol.run.manifest import SignedManifest
from protocol.tasks.task_sets import TaskSets
from protocol.transport.handlers import Hears, answers, declarations
from protocol.transport.interface import Acceptance, Offence, Refused, Unreachable
from protocol.wire.envelope import MAX_GOSSIP_BYTES
from protocol.wire.messages import STATEMENTS
from protocol.wire.questions import TipsRequest
from tests.protocol.node.stage import Stage
from tests.protocol.peers import ANN, BOB, a_heartbeat

HEARERS = (FailureDetector, RoundHandlers, Ejections, TaskSets, Rollouts, Extensions)


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


async def test_a_peer_too_busy_to_answer_a_greeting_is_greeted_again_while_it_is_connected(stage: Stage) -> None:
    asked: list[float] = []

    async def answer(kind: str, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        asked.append(trio.current_time())
        if len(asked) < 4:
            raise Unreachable("no answer in time")
        raise Refused("not here")

    stage.network.answers[ANN.peer_id] = answer
    stage.router.on_peer_connected(ANN.peer_id)
    await trio.sleep(1000)
    assert [at - asked[0] for at in asked] == [0, 1, 3, 7]
    assert [event.text for event in stage.events if isinstance(event, Notice)] == ["not here"]


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


@pytest.mark.usefixtures("virtual_time")
async def test_connections_count_while_it_is_open(tmp_path: Path, signed: SignedManifest) -> None:
    stage = Stage(tmp_path, signed)
    stage.router.on_peer_connected(ANN.peer_id)
    async with stage.router.open():
        stage.router.on_peer_connected(ANN.peer_id)
        stage.router.on_gossip(ANN.peer_id, stage.said(ANN, a_heartbeat()))
        assert stage.membership.is_live(ANN.peer_id)
    stage.router.on_peer_disconnected(ANN.peer_id)
    assert stage.membership.is_live(ANN.peer_id), "we close connections ourselves when we leave"
    stage.replica.state.close()


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
