"""Peers that want to read contributions before they commit to their own, to copy them, or to know or choose the next tip."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from protocol.allreduce.assignment import plan_hash
from protocol.allreduce.runner import ExchangeAsk, PushHeader
from protocol.node.exchanges import RunningExchange
from protocol.transport.interface import NetworkError
from protocol.wire.envelope import decode_body
from protocol.wire.identity import PeerId
from protocol.wire.messages import Plan, Proposal, Ready, ViewChange, member_of, pack
from protocol.wire.questions import SLICE_BYTES, PartReply, PartRequest
from tests.attacks.attack import Attack
from tests.attacks.crowds import gather_from
from tests.attacks.ghosts import Ghost
from tests.attacks.stage import Stage
from tests.simulation.seat import Seat

ASK_S = 0.2
"""Seconds between two looks at the READYs: a round takes about a second."""


@dataclass
class Answers:
    """Answers of honest peers to the question for a part.

    early: askers that got one before a plan was taken up.  stranger: askers that are neither members nor electors.  given:
    number of all answers, also to honest auditors.  asked: number of questions.
    """

    early: list[PeerId] = field(default_factory=list)
    stranger: list[PeerId] = field(default_factory=list)
    given: int = 0
    asked: int = 0


def running(stage: Stage, seat: Seat) -> list[RunningExchange]:
    """The exchanges of this honest peer's round."""
    running = stage.node(seat)._rounds.running
    return [*running.exchanges._running.values()] if running is not None else []


def watch_answers(stage: Stage) -> Answers:
    """Look at what every honest peer answers, and expect that nobody reads too early, or as a stranger."""
    answers = Answers()
    for seat in stage.honest:
        handlers = stage.network(seat).handlers
        handlers.on_request = _watched(stage, seat, answers, handlers.on_request)
    stage.expect("nobody reads a contribution before a plan", lambda: not answers.early)
    stage.expect("no stranger reads a contribution", lambda: not answers.stranger)
    stage.expect("somebody has asked", lambda: answers.asked > 0)
    return answers


def _watched(stage: Stage, seat: Seat, answers: Answers, answer: Any) -> Callable[[PeerId, str, bytes], Awaitable[bytes]]:
    async def on_request(peer: PeerId, kind: str, data: bytes) -> bytes:
        answers.asked += kind == "part"
        reply: bytes = await answer(peer, kind, data)
        if kind == "part":
            plans = [each.exchange.machine.plan for each in running(stage, seat)]
            named = {member.peer for plan in plans for member in plan.members} | {*stage.node(seat)._history.base.electors}
            answers.given += 1
            answers.early += [] if plans else [peer]
            answers.stranger += [] if peer in named else [peer]
        return reply

    return on_request


# ------------------------------------------------------------------------------------------------------------------------


async def read(network: Any, peer: PeerId, root: bytes, sizes: list[int]) -> list[tuple[list[bytes], bytes]]:
    """Ask for all chunks of a contribution, and return (proof, bytes) of those that are shown.  sizes: of the chunks."""
    found = list[tuple[list[bytes], bytes]]()
    for chunk, size in enumerate(sizes):
        proof, data = list[bytes](), b""
        while len(data) < size:
            length = min(SLICE_BYTES, size - len(data))
            question = PartRequest(root=root, chunk=chunk, offset=len(data), length=length)
            try:
                reply = decode_body(PartReply, await network.request(peer, "part", question.encode(), timeout_s=5))
            except NetworkError:
                return found
            proof, data = [*reply.proof], data + reply.data
        found.append((proof, data))
    return found


def sizes_of(stage: Stage) -> list[int]:
    """The sizes of the chunks of a contribution."""
    return [span.size for span in stage.world.signed.manifest.layouts.contribution]


def readys_of(stage: Stage, ear: Ghost) -> Iterator[tuple[PeerId, Ready]]:
    """The newest READY of each honest peer that `ear` has heard."""
    return ((peer, ready) for peer, (ready, _) in [*ear.readys.items()] if peer in stage.honest_peers)


async def peek(stage: Stage, ear: Ghost, network: Any, change: Callable[[Ready], Ready] = lambda ready: ready) -> None:
    """Ask each honest peer for its contribution as soon as it is READY, and again and again for as long as the round lasts.

    ear: hears the READYs.  network: of the peer that asks.  change: the READY whose contribution it asks for.
    """
    async with trio.open_nursery() as nursery:
        while True:
            for peer, ready in readys_of(stage, ear):
                nursery.start_soon(read, network, peer, change(ready).root, sizes_of(stage))
            await trio.sleep(ASK_S)


async def stranger_copies(stage: Stage) -> None:
    """A stranger asks for every contribution, and commits to what it has read."""
    watch_answers(stage)
    ghost, copied = stage.stranger(), set[bytes]()
    stage.world.spawn(ghost.live)

    async def copy(peer: PeerId, ready: Ready) -> None:
        if len(await read(ghost.network, peer, ready.root, sizes_of(stage))) == len(sizes_of(stage)):
            copied.add(ready.root)
            await ghost.gossip(ghost.ready_for(ready).model_copy(update={"root": ready.root}))

    stage.expect("nothing was copied", lambda: not copied)
    async with trio.open_nursery() as nursery:
        while True:
            for peer, ready in readys_of(stage, ghost):
                nursery.start_soon(copy, peer, ready)
            await trio.sleep(ASK_S)


async def liar_peeks(stage: Stage) -> None:
    """It votes, and reads as a voter may once there is a plan."""
    watch_answers(stage)
    await peek(stage, stage.stranger(), stage.network(stage.liars[0]))


async def newcomer_peeks(keys: int, stage: Stage) -> None:
    """One key is READY itself, with a contribution that nobody has, so that plans name it; it asks, or another key."""
    watch_answers(stage)
    ready, *others = (stage.stranger(number) for number in range(keys))
    stage.world.spawn(ready.live)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peek, stage, ready, [ready, *others][-1].network)
        nursery.start_soon(be_ready, stage, ready, ready.ready_for)


async def be_ready(stage: Stage, ghost: Ghost, make: Callable[[Ready], Ready]) -> None:
    """Say one READY in each round."""
    said = set[bytes]()
    while True:
        for _, ready in readys_of(stage, ghost):
            if ready.base not in said:
                said.add(ready.base)
                await ghost.gossip(make(ready))
        await trio.sleep(ASK_S)


async def old_roots(stage: Stage) -> None:
    """Of the round before: nobody shows a contribution whose round is over."""
    watch_answers(stage)
    ghost, before = stage.stranger(), dict[int, bytes]()

    def last(ready: Ready) -> Ready:
        before.setdefault(ready.round, ready.root)
        return ready.model_copy(update={"root": before.get(ready.round - 1, ready.root)})

    await peek(stage, ghost, ghost.network, last)


async def names_itself(stage: Stage) -> None:
    """In a plan of its own, with the READYs of all honest peers, and view changes that it signed."""
    watch_answers(stage)
    ghost, own = stage.stranger(), list[Plan]()
    stage.expect("nobody takes up a stranger's plan", lambda: not took_up)
    took_up = list[Plan]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peek, stage, ghost, ghost.network)
        while True:
            for _, ready in readys_of(stage, ghost):
                if all(plan.base != ready.base for plan in own):
                    own.append(await propose(stage, ghost, ready))
            plans = [each.exchange.machine.plan for seat in stage.honest for each in running(stage, seat)]
            took_up += [plan for plan in plans if plan in own]
            await trio.sleep(ASK_S)


async def propose(stage: Stage, ghost: Ghost, example: Ready) -> Plan:
    """Tell every honest peer a plan with all peers that are ready as `example` is, and the ghost; return the plan."""
    mine = ghost.ready_for(example)
    said = {peer: heard for peer, heard in ghost.readys.items() if heard[0].base == example.base}
    said[ghost.peer] = mine, pack(ghost.identity, stage.run, mine).signature
    plan = Plan(
        round=example.round,
        fragment=example.fragment,
        base=example.base,
        members=[member_of(peer, *said[peer]) for peer in sorted(said)],
        owners=bytes(chunk % len(said) for chunk in range(len(sizes_of(stage)))),
        state_digest=example.state_digest,
    )
    held = bytes((len(stage.node()._history.base.electors) + 7) // 8)
    view_change = ViewChange(
        round=plan.round, base=plan.base, attempt=0, absent=[], held=held, plan=None, lock=None, reduced=None
    )
    proposal = Proposal(attempt=0, absent=[], plan=plan, view_changes=[pack(ghost.identity, stage.run, view_change).raw])
    for peer in stage.honest_peers:
        stage.world.spawn(ghost.tell, peer, proposal)
    return plan


async def asks_for_pushes(stage: Stage) -> None:
    """It has overheard the plan, and asks every member for its part of every chunk, and for the averages."""
    ghost, seen, pushed = stage.stranger(), list[tuple[PeerId, Proposal]](), list[PeerId]()
    gather_from(stage, seen)
    stage.expect("nothing is pushed to a stranger", lambda: not pushed)
    stage.expect("it has asked", lambda: bool(seen))

    async def open_push(peer: PeerId, header: bytes, size: int) -> None:
        await trio.lowlevel.checkpoint()
        pushed.append(peer)

    ghost.open_push = open_push  # type: ignore[method-assign]

    async def ask(peer: PeerId, question: ExchangeAsk) -> None:
        try:
            await ghost.network.request(peer, "exchange", question.encode(), timeout_s=5)
        except NetworkError:
            return

    async with trio.open_nursery() as nursery:
        while True:
            for _, proposal in seen[-1:]:
                plan = proposal.plan
                for chunk in range(len(plan.owners)):
                    question = ExchangeAsk(plan=plan_hash(plan), fragment=plan.fragment, chunk=chunk)
                    for peer in stage.honest_peers:
                        nursery.start_soon(ask, peer, question)
            await trio.sleep(ASK_S)


# -- committing to what others have made ----------------------------------------------------------------------------------


def expect_uncounted(stage: Stage, peer: PeerId) -> None:
    """Expect that plans name this peer, and that no record has an average with a part of its."""
    history = stage.node(stage.honest[0])._history

    def counted() -> list[int]:
        commits = [history.commit_at(round) for round in range(history.length)]
        named = [[member.peer for member in commit.record.members] for commit in commits]
        return [commit.averaged()[peers.index(peer)] for commit, peers in zip(commits, named, strict=True) if peer in peers]

    stage.expect("it is a member", lambda: bool(counted()))
    stage.expect("what it shows never counts", lambda: not any(counted()))


async def repeats_a_root(stage: Stage) -> None:
    """It commits to another member's contribution without having read it, reads it as a member, and gives it as its own."""
    ghost, seen = stage.stranger(), list[tuple[PeerId, Proposal]]()
    watch_answers(stage)
    gather_from(stage, seen)
    stage.world.spawn(ghost.live)
    expect_uncounted(stage, ghost.peer)

    async def give(plan: Plan) -> None:
        mine = next(member for member in plan.members if member.peer == ghost.peer)
        author = next(member for member in plan.members if member.root == mine.root and member.peer != ghost.peer)
        parts = await read(ghost.network, PeerId(author.peer), author.root, sizes_of(stage))
        for chunk, (proof, data) in enumerate(parts):
            header = PushHeader(plan=plan_hash(plan), fragment=plan.fragment, chunk=chunk, proof=proof, statement=None)
            owner = PeerId(plan.members[plan.owners[chunk]].peer)
            try:
                await ghost.network.push(owner, header.encode(), memoryview(data), timeout_s=5)
            except NetworkError:
                return

    given = set[bytes]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            be_ready, stage, ghost, lambda ready: ghost.ready_for(ready).model_copy(update={"root": ready.root})
        )
        while True:
            for _, proposal in [*seen]:
                plan = proposal.plan
                if plan_hash(plan) not in given and any(member.peer == ghost.peer for member in plan.members):
                    given.add(plan_hash(plan))
                    nursery.start_soon(give, plan)
            await trio.sleep(ASK_S)


async def ready_again(stage: Stage) -> None:
    """As soon as it may read what the others have made, it says READY anew, with another number that nobody can check."""
    liar, ear, new = stage.liars[0], stage.stranger(), dict[bytes, int]()
    history = stage.node(stage.honest[0])._history

    def chosen() -> bool:
        members = [
            (commit.record.previous, member)
            for commit in map(history.commit_at, range(history.length))
            for member in commit.record.members
        ]
        return any(member.peer == liar.peer and new.get(base) == member.serial for base, member in members)

    stage.expect("it was ready twice", lambda: bool(new))
    stage.expect("no record has the later READY", lambda: not chosen())
    while True:
        known = ear.readys.get(liar.peer)
        if known is not None and known[0].base not in new and any(running(stage, seat) for seat in stage.honest):
            ready = known[0]
            if any(each.exchange.machine.plan.base == ready.base for seat in stage.honest for each in running(stage, seat)):
                new[ready.base] = ready.serial + 1000
                again = {"serial": ready.serial + 1000, "norm": ready.norm + 1.0}
                await stage.gossip(liar, ready.model_copy(update=again))
        await trio.sleep(ASK_S / 10)


ATTACKS = [
    Attack("peeks and copies", "a stranger, and commits to a copy", stranger_copies, 4, 0, 1),
    Attack("an elector peeks", "before there is a plan", liar_peeks),
    Attack("a newcomer peeks", "that is READY itself", partial(newcomer_peeks, 1), 4, 0, 1),
    Attack("two keys peek", "one is a member, the other asks", partial(newcomer_peeks, 2), 4, 0, 2),
    Attack("peeks at old rounds", "and at running ones", old_roots, 4, 0, 1),
    Attack("peeks by its own plan", "with all READYs and its own", names_itself, 4, 0, 1),
    Attack("asks for pushes", "as an overheard plan's member", asks_for_pushes, 4, 0, 1),
    Attack("repeats a root", "and shows another member's parts", repeats_a_root, 4, 0, 1),
    Attack("ready again", "once it has read the others", ready_again),
]
