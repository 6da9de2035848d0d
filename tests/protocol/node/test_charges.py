"""Who pays for the work of an answer, and who waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from protocol.events.events import Event
from protocol.node.node import Node
from protocol.offload import Offload, charged, charging
from protocol.run.manifest import Admission
from protocol.run.settings import NodeSettings
from protocol.transport.answer_budget import AnswerBudget
from protocol.transport.task_group import TaskGroup
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from tests.attacks.statements import large_record_proposal
from tests.protocol.chains import a_replica, a_run, grow
from tests.protocol.peers import ANN, BOB, TableNetwork, a_session, at_once

pytestmark = pytest.mark.usefixtures("virtual_time")

STRANGERS = [Identity.from_seed(bytes([number]) * 32) for number in range(100, 108)]
RUN = a_run(ANN, BOB)
"""Founded by Ann and Bob, so strangers are all others."""


LISTED = {
    Admission.OPEN: [],
    Admission.INVITE: [],
    Admission.ALLOWLIST: sorted(each.peer_id for each in (ANN, BOB, STRANGERS[0])),
}


class Ledger:
    """A `Payer` that lists the work for which it pays."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    async def run(self, offload: Offload, function: Callable[..., Any], *arguments: Any) -> Any:
        self.paid.append(function.__name__)
        return await offload(function, *arguments)


def beside_a_node(folder: Path, check: Callable[[Node], Awaitable[None]]) -> None:
    """Run `check` in virtual time, while a node with its real parts handles traffic; no round runs."""

    async def main() -> None:
        signed, events = RUN, list[Event]()
        replica = a_replica(signed, folder)
        session = a_session(signed.run, TableNetwork(), events)
        node = Node(session, replica, None, NodeSettings("me", Role.TRAINER, "0", 1), at_once)
        try:
            async with node.router.open() as nursery:
                await check(node)
                nursery.cancel_scope.cancel()
        finally:
            replica.state.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.slow
@pytest.mark.parametrize("in_debt", [False, True])
def test_a_member_waits_for_no_turn_of_strangers_with_large_statements(tmp_path: Path, in_debt: bool) -> None:
    """The turn of a stranger, or of a member in debt, may be minutes away; statements are decoded one at a time."""

    async def check(node: Node) -> None:
        budget = AnswerBudget(node.router, node.router.has_allowance)
        run = RUN.run
        before = [BOB] if in_debt else STRANGERS
        for each in before:
            budget.charge(each.peer_id, 1000.0)

        async def tell(teller: Identity) -> None:
            with charging(budget.payer(teller.peer_id)):
                await node.router.on_request(teller.peer_id, "round", large_record_proposal(teller, run, 0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(budget.run)
            for each in before:
                nursery.start_soon(tell, each)
            await trio.sleep(1.0)
            began = trio.current_time()
            await tell(ANN)
            assert trio.current_time() == began
            nursery.cancel_scope.cancel()

    beside_a_node(tmp_path, check)


@pytest.mark.parametrize("admission", Admission)
async def test_members_that_are_no_longer_active_have_an_allowance_where_keys_cost_an_admission(
    tmp_path: Path, admission: Admission
) -> None:
    replica = a_replica(a_run(ANN, BOB, admission=admission, allowlist=LISTED[admission]), tmp_path)
    session = a_session(replica.signed.run, TableNetwork(), list[Event]())
    node = Node(session, replica, None, NodeSettings("me", Role.TRAINER, "0", 1), at_once)
    newcomer, passer = (each.peer_id for each in STRANGERS[:2])
    founders = [ANN.peer_id, BOB.peer_id]

    def have() -> list[PeerId]:
        return [peer for peer in (*founders, newcomer, passer) if node.router.has_allowance(peer)]

    assert have() == (founders if admission is not Admission.ALLOWLIST else [*founders, newcomer])
    grow(replica, 1, [ANN, STRANGERS[0]], voters=[ANN, BOB])
    assert have() == [*founders, newcomer]
    grow(replica, 1, [ANN, BOB], voters=[ANN, BOB])
    assert have() == (founders if admission is Admission.OPEN else [*founders, newcomer])
    assert node.router.has_member(newcomer) and not node.router.has_member(passer)
    assert node._swarm.reliability.is_proven(newcomer) is (admission is not Admission.OPEN)
    replica.state.close()


async def in_a_group(work: Callable[[], Awaitable[None]], group: TaskGroup, nursery: trio.Nursery) -> None:
    group.start(work)


async def in_a_nursery(work: Callable[[], Awaitable[None]], group: TaskGroup, nursery: trio.Nursery) -> None:
    nursery.start_soon(work)


async def two_tasks_deep(work: Callable[[], Awaitable[None]], group: TaskGroup, nursery: trio.Nursery) -> None:
    group.start(in_a_nursery, work, group, nursery)


async def while_the_answer_goes_on(work: Callable[[], Awaitable[None]], group: TaskGroup, nursery: trio.Nursery) -> None:
    group.start(work)
    await trio.sleep(1.0)


@pytest.mark.parametrize("begin", [in_a_group, in_a_nursery, two_tasks_deep, while_the_answer_goes_on])
async def test_work_that_an_answer_begins_and_does_not_await_is_ours(begin: Callable[..., Awaitable[None]]) -> None:
    """Averages that a goodbye completes, for example, and the conviction of a liar."""
    ledger, offload, done, group = Ledger(), charged(at_once), list[str](), TaskGroup()

    def awaited() -> None:
        done.append("awaited")

    def begun() -> None:
        done.append("begun")

    async def work() -> None:
        await offload(begun)

    async with group.open() as nursery:
        with charging(ledger):
            await begin(work, group, nursery)
            await offload(awaited)
        await offload(awaited)
    assert sorted(done) == ["awaited", "awaited", "begun"]
    assert ledger.paid == ["awaited"]
