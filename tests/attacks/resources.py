"""What well-formed statements cost whoever decodes and remembers them, and what strangers do to a daemon.

Some burdens are put on this process, and quick; the others on a real peer (`tests.attacks.sieges`), and take half a minute.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio

from peer.control.client import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, SOCKET_NAME, pack_frame
from peer.control.event_log import EventLog
from peer.control.server import ControlServer
from protocol.transport.dialer import Book
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import unpack
from tests.attacks.attack import Outcome
from tests.attacks.cost import Cost, watch_loop
from tests.attacks.forgeries import keys
from tests.attacks.siege import besieged
from tests.attacks.sieges import SIEGES
from tests.attacks.statements import large_record_proposal
from tests.protocol.example_status import status
from tests.protocol.peers import TheseMembers

BY = Identity.from_seed(b"\x01" * 32)
RUN = Hash(b"\x07" * 32)


@dataclass(frozen=True)
class Burden:
    """An attack on one process.  load: raises AssertionError where it is not borne.  real: on a peer process."""

    name: str
    how: str
    load: Callable[[], Cost]
    keys: int = 0
    real: bool = False


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def remembered_statements() -> Cost:
    """Two hundred large statements, all dropped after they were opened."""
    cost, before = Cost(), _resident()
    for number in range(200):
        _open(large_record_proposal(BY, RUN, number), cost)
    cost.grown = _resident() - before
    return cost


def decoding() -> Cost:
    """One of the largest statements; the quickest of five times, as others may want the processor."""
    raw, before, costs = large_record_proposal(BY, RUN, 0), _resident(), [Cost() for _ in range(5)]
    for each in costs:
        _open(raw, each)
    cost = min(costs, key=lambda each: each.busy_s)
    cost.grown, cost.details = _resident() - before, f"{len(raw)} bytes"
    return cost


def _open(raw: bytes, cost: Cost) -> None:
    with cost.step():
        try:
            unpack(raw, RUN)
        except Malformed:
            return


def large_answer() -> Cost:
    """A control answer over the limit of its frame: the server says so, and serves the next client."""

    async def huge(fields: dict[str, Any]) -> dict[str, Any]:
        return {"much": "x" * (MAX_ANSWER_BYTES + 1)}

    async def ask(folder: Path) -> int:
        stream = await trio.open_unix_socket(str(folder / SOCKET_NAME))
        async with stream:
            await stream.send_all(pack_frame({"do": "huge"}, max_bytes=MAX_REQUEST_BYTES))
            return len(await stream.receive_some(1000))

    async def main(folder: Path) -> Cost:
        cost, before = Cost(), _resident()
        server = ControlServer(folder, EventLog(), {"huge": huge}, status)
        await server.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            nursery.start_soon(watch_loop, cost.late)
            told = [await ask(folder) for _ in range(20)]
            nursery.cancel_scope.cancel()
        assert all(told), "the server said nothing"
        cost.grown, cost.details = _resident() - before, f"{told[0]} bytes of refusal"
        return cost

    with tempfile.TemporaryDirectory() as folder:
        return trio.run(main, Path(folder))


def full_book() -> Cost:
    """Five thousand keys claim addresses; a member and a friend have places all the same."""
    member, friend = (keys(1, mark)[0].peer_id for mark in ("member", "friend"))
    book, cost, before = Book(TheseMembers(member), lambda peer: False), Cost(), _resident()
    for key in range(5000):
        with cost.step():
            book.add(PeerId(f"key {key}"), f"claimed/{key}", claimed=True, now=0.0)
    book.add(member, "claimed/member", claimed=True, now=0.0)
    book.add(friend, "given/friend", claimed=False, now=0.0)
    assert member in book and friend in book, "crowded out"
    cost.grown, cost.details = _resident() - before, f"{len(book)} entries"
    return cost


BURDENS = [
    Burden("200 large statements", "all dropped when they were opened", remembered_statements),
    Burden("the largest statement", "decoded", decoding),
    Burden("a control answer too large", "for its frame", large_answer),
    Burden("5000 claimed addresses", "for one address book", full_book, 5000),
    *(
        Burden(name, how, partial(besieged, conduct, strangers), strangers, real=True)
        for name, (how, conduct, strangers) in SIEGES.items()
    ),
]


def bear(burden: Burden, *, timed: bool = True) -> Outcome:
    """What comes of it, in a process that has done little before.  timed: whether it may fail by what it takes of time."""
    outcome = Outcome(burden.name, burden.how, 0, burden.keys)
    try:
        outcome.cost = burden.load()
        outcome.details, outcome.failure = outcome.cost.details, outcome.cost.flaw(timed=timed)
    except AssertionError as error:
        outcome.failure = str(error)[:500]
    return outcome
