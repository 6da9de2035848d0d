"""A swarm under well-formed garbage: statements, questions, pushes and answers with valid signatures and the wrong sense.

One member of the swarm and some strangers say whatever the grammar makes, to every handler of every peer.  What the swarm
decides meanwhile is not judged here (its electors may lie); no handler may raise, and no peer may end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from protocol.allreduce.runner import PushHeader
from protocol.audit.evidence import slots, tip_of
from protocol.events.events import Event, HandlerFailed
from protocol.transport.interface import Acceptance, Handlers, Landing, Refused
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import STATEMENTS, Extension, pack, unpack
from protocol.wire.rollouts import Amendment
from tests.fuzz.examples import BODIES
from tests.fuzz.examples import QUESTIONS as EXAMPLES
from tests.fuzz.grammar import Grammar, Words, every_class
from tests.protocol.answering import QUESTIONS
from tests.simulation.judge import Violation
from tests.simulation.rollout_trainer import RolloutTrainer
from tests.simulation.rollouts import ROLES, rl_run
from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

PEERS = 4
CAST = [role for role, count in ROLES.items() for _ in range(count)]
"""Of a run with rollouts."""
ORGANISER = Identity.from_seed(b"\x2a" * 32)
"""The run's organiser: its extensions and its amendments of the tasks are believed."""
STRANGERS = 40
A_WORLD = 3000
"""Statements against one swarm; the next one has another seed."""
AT_ONCE = 6
MAX_FAILURES = 10
"""Worlds that failed; more say nothing new."""
PAUSE_S = 0.05


@dataclass
class Tally:
    """statements: of each kind and way.  failures: sentences."""

    statements: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    failures: list[str] = field(default_factory=list)


class Mouth:
    """Says what the grammar makes, with the keys of a member and of strangers, and answers so what the member is asked."""

    def __init__(self, world: World, member: Seat, random: Random, tally: Tally) -> None:
        self._careful = random.random() < 0.7
        """The member never contradicts itself, and is heard to the end."""
        self._world, self._random, self._tally = world, random, tally
        self._keys = [Identity.from_seed(random.randbytes(32)) for _ in range(STRANGERS)]
        self._member = member.identity
        self._words = Words([seat.peer for seat in world.seats] + [key.peer_id for key in self._keys[:4]])
        self._grammar = Grammar(self._words, random)
        self._classes = list(every_class())
        self._replies = {kind: _reply(form, self._classes) for kind, form in QUESTIONS.items() if form is not None}
        for example in (*BODIES, *EXAMPLES):
            self._words.hear(example)
        world.judge.liars.update({key.peer_id: None for key in (*self._keys, self._member)})

    # -- listening ----------------------------------------------------------------------------------------------------

    def hear(self, data: bytes) -> None:
        """Learn the words of what honest peers say."""
        try:
            _, body, envelope = unpack(data, self._world.signed.run)
        except Malformed:
            return
        self._words.hear(body)
        self._words.hear(envelope.signature)
        self._words.raw = [*self._words.raw[-100:], data]

    # -- speaking -----------------------------------------------------------------------------------------------------

    async def speak(self, seat: Seat) -> None:
        """Say one thing to one peer."""
        assert seat.node is not None
        handlers, random = seat.node.router, self._random
        key = self._speaker()
        kind = random.choice(sorted(STATEMENTS))
        way = random.choice(["gossip", "round", "round", "round", "question", "question", "push", "goodbye"])
        if kind in (Amendment.KIND, Extension.KIND):
            key = random.choice([key, ORGANISER])
        with trio.move_on_after(random.choice([0.1, 2.0, 8.0])):
            if way == "question":
                await self._ask(handlers, key)
            elif way == "push":
                await self._push(handlers, key)
            else:
                body = self._grammar.body(STATEMENTS[kind])
                if body is None or (key is self._member and self._careful and (slots(body) or tip_of(body))):
                    return
                raw = pack(key, self._world.signed.run, body).raw
                self._words.raw.append(raw)
                self._tally.statements[f"{kind} by {way}"] += 1
                if way == "gossip":
                    self._tally.accepted += handlers.on_gossip(key.peer_id, raw) is Acceptance.ACCEPT
                else:
                    await self._request(handlers, key.peer_id, way, raw)

    def _speaker(self) -> Identity:
        """The member, or a stranger; strangers are ejected, and others come."""
        if self._random.random() < 0.5:
            return self._member
        place = self._random.randrange(STRANGERS)
        if self._random.random() < 0.05:
            self._keys[place] = key = Identity.from_seed(self._random.randbytes(32))
            self._world.judge.liars[key.peer_id] = None
        return self._keys[place]

    async def _ask(self, handlers: Handlers, key: Identity) -> None:
        kind = self._random.choice(sorted(kind for kind, form in QUESTIONS.items() if form is not None))
        form = QUESTIONS[kind]
        assert form is not None
        body = self._grammar.body(form if self._random.random() < 0.9 else self._random.choice(self._classes))
        if body is not None:
            self._tally.statements[f"question {kind}"] += 1
            await self._request(handlers, key.peer_id, kind, body.encode())

    async def _request(self, handlers: Handlers, peer: PeerId, kind: str, data: bytes) -> None:
        try:
            await handlers.on_request(peer, kind, data)
            self._tally.accepted += 1
        except Refused:
            pass

    async def _push(self, handlers: Handlers, key: Identity) -> None:
        header = self._grammar.body(PushHeader)
        if header is None:
            return
        self._tally.statements["push"] += 1
        raw = header.encode()
        landing = await handlers.open_push(key.peer_id, raw, self._random.choice([0, 1, 1040, 1040, 4160]))
        if landing is not None:
            landing.buffer[:] = self._random.randbytes(len(landing.buffer))
            landing.complete()
            await handlers.finish_push(key.peer_id, raw, self._random.choice([None, landing]))

    async def answer(self, kind: str) -> bytes | None:
        """What the member answers to a question; None to leave it to its node."""
        reply = self._replies.get(kind)
        if self._random.random() < 0.5:
            return None
        self._tally.statements[f"answer to {kind}"] += 1
        body = self._grammar.body(reply) if reply is not None else None
        await trio.sleep(self._random.choice([0.0, 0.0, 0.3]))
        return body.encode() if body is not None else self._random.randbytes(self._random.choice([0, 1, 1040]))


def _reply(form: type[Body], classes: list[type[Body]]) -> type[Body] | None:
    """The class of the answer to a question, by its name."""
    name = form.__name__.removesuffix("Request") + "Reply"
    return next((cls for cls in classes if cls.__name__ == name), None)


class Tap:
    """Between the wire and a node: `hear` is told what arrives, and `answer` may answer in the node's place."""

    def __init__(
        self, node: Handlers, hear: Callable[[bytes], None], answer: Callable[[str], Awaitable[bytes | None]] | None = None
    ) -> None:
        self._node, self._hear, self._answer = node, hear, answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        self._hear(data)
        return self._node.on_gossip(forwarder, data)

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        self._hear(data)
        lie = await self._answer(kind) if self._answer is not None else None
        return lie if lie is not None else await self._node.on_request(peer, kind, data)

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        self._hear(header)
        return await self._node.open_push(peer, header, size)


def tap(
    world: World, seat: Seat, hear: Callable[[bytes], None], answer: Callable[[str], Awaitable[bytes | None]] | None = None
) -> None:
    """Put a `Tap` before the node of a seat."""
    end = world.wire.end(seat.peer)
    assert end is not None
    handlers: Any = Tap(end.handlers, hear, answer)
    end.handlers = handlers


def one_world(seed: int, statements: int, tally: Tally, *, rollouts: bool = False) -> None:
    """So many statements against one swarm; failures are added to `tally`.  rollouts: in a run with these."""
    wanted = tally.statements.total() + statements

    async def scenario(world: World) -> None:
        world.judge.on_event = only_failures  # type: ignore[method-assign]
        random = Random(seed)
        for seat, role in zip(world.seats, CAST if rollouts else (), strict=False):
            seat.role, seat.make_trainer = role, RolloutTrainer
        for seat in world.seats:
            world.start(seat)
        await world.until_round(1, within_s=120)
        mouth = Mouth(world, world.seats[-1], random, tally)
        for seat in world.seats:
            tap(world, seat, mouth.hear, mouth.answer if seat is world.seats[-1] else None)
        async with trio.open_nursery() as nursery:
            while tally.statements.total() < wanted:
                for _ in range(AT_ONCE):
                    nursery.start_soon(mouth.speak, random.choice(world.seats[:-1]))
                await trio.sleep(PAUSE_S)
            nursery.cancel_scope.cancel()
        assert all(seat.up for seat in world.seats), [seat.farewell for seat in world.seats]

    peers, signed = (len(CAST), rl_run()) if rollouts else (PEERS, None)
    run = simulate(peers, scenario, seed, signed=signed)
    if run.failure is not None:
        tally.failures.append(f"seed {seed}: {run.failure}")


def only_failures(peer: PeerId, node: object, event: Event, now: float) -> None:
    """In place of the judge: the electors may lie here."""
    if isinstance(event, HandlerFailed):
        raise Violation(f"a {event.what} of {event.peer} at {peer}: {event.reason}")


def fuzz(statements: int, seed: int = 1, *, rollouts: bool = False) -> Tally:
    """So many statements, in as many worlds as that takes."""
    tally = Tally()
    while tally.statements.total() < statements and len(tally.failures) < MAX_FAILURES:
        one_world(seed, min(A_WORLD, statements - tally.statements.total()), tally, rollouts=rollouts)
        seed += 1
    return tally
