"""What well-formed statements cost whoever decodes and remembers them, and what an answer may do to a daemon."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import trio

from peer.control.client import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, SOCKET_NAME, pack_frame
from peer.control.event_log import EventLog
from peer.control.server import ControlServer
from protocol.network.libp2p.book import Book
from protocol.wire.body import MAX_CHUNKS
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkEntry, Motion, Provenance, Record, pack, unpack
from tests.attacks.attack import Outcome
from tests.protocol.example_status import status
from tests.protocol.members import a_member
from tests.protocol.peers import TheseMembers
from tests.simulation.forgeries import keys

MAX_GROWTH = 160 << 20
MAX_STALL_S = 0.1
"""Of one statement, on a core of its own."""
BY = Identity.from_seed(b"\x01" * 32)
RUN = Hash(b"\x07" * 32)


@dataclass(frozen=True)
class Burden:
    """An attack on one process.  load: raises AssertionError where it is not borne; returns a phrase about what it cost."""

    name: str
    how: str
    load: Callable[[], str]
    keys: int = 0


def _large_motion(number: int) -> bytes:
    place = a_member(BY.peer_id)
    record = Record(
        round=1,
        fragment=0,
        previous=ZERO_HASH,
        members=[place],
        codec="int8",
        result_root=ZERO_HASH,
        state_digest=ZERO_HASH,
    )
    index = [ChunkEntry(hash=os.urandom(32), mask=b"\x01") for _ in range(MAX_CHUNKS)]
    provenance = Provenance(owners=bytes(MAX_CHUNKS), signers=bytes(MAX_CHUNKS), signatures=[bytes(64)] * MAX_CHUNKS)
    motion = Motion(
        attempt=number, absent=[], record=record, index=index, provenance=provenance, rolls=[b"\x00"], proof=None
    )
    return pack(BY, RUN, motion).raw


def remembered_statements() -> str:
    """Two hundred large statements, all dropped after they were opened."""
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    for number in range(200):
        try:
            unpack(_large_motion(number), RUN)
        except Malformed:
            continue
    gc.collect()
    grown = process.memory_info().rss - before
    assert grown < MAX_GROWTH, f"{grown >> 20} MiB are remembered"
    return f"{grown / 1e6:+.0f} MB"


def decoding() -> str:
    """One of the largest statements."""
    raw = _large_motion(0)
    best = 1e9
    for _ in range(5):
        began = time.thread_time()
        try:
            unpack(raw, RUN)
        except Malformed:
            pass
        best = min(best, time.thread_time() - began)
    assert best < MAX_STALL_S, f"{best * 1000:.0f} ms for {len(raw)} bytes"
    return f"{best * 1000:.0f} ms"


def large_answer() -> str:
    """A control answer over the limit of its frame: the server says so, and serves the next client."""

    async def huge(fields: dict[str, Any]) -> dict[str, Any]:
        return {"much": "x" * (MAX_ANSWER_BYTES + 1)}

    async def ask(folder: Path) -> int:
        stream = await trio.open_unix_socket(str(folder / SOCKET_NAME))
        async with stream:
            await stream.send_all(pack_frame({"do": "huge"}, max_bytes=MAX_REQUEST_BYTES))
            return len(await stream.receive_some(1000))

    async def main(folder: Path) -> str:
        server = ControlServer(folder, EventLog(), {"huge": huge}, status)
        await server.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            told = [await ask(folder) for _ in range(3)]
            nursery.cancel_scope.cancel()
        assert all(told), "the server said nothing"
        return f"{told[0]} bytes of refusal"

    with tempfile.TemporaryDirectory() as folder:
        return trio.run(main, Path(folder))


def full_book() -> str:
    """Five thousand keys claim addresses; a member and a friend have places all the same."""
    member, friend = (keys(1, mark)[0].peer_id for mark in ("member", "friend"))
    book = Book(TheseMembers(member), lambda peer: False)
    for key in range(5000):
        book.add(PeerId(f"key {key}"), f"claimed/{key}", claimed=True, now=0.0)
    book.add(member, "claimed/member", claimed=True, now=0.0)
    book.add(friend, "given/friend", claimed=False, now=0.0)
    assert member in book and friend in book, "crowded out"
    return f"{len(book)} entries"


BURDENS = [
    Burden("200 large statements", "all dropped when they were opened", remembered_statements),
    Burden("the largest statement", "decoded", decoding),
    Burden("a control answer too large", "for its frame", large_answer),
    Burden("5000 claimed addresses", "for one address book", full_book, 5000),
]


def bear(burden: Burden) -> Outcome:
    """What comes of it, in a process that has done little before."""
    outcome = Outcome(burden.name, burden.how, 0, burden.keys)
    try:
        outcome.details = burden.load()
    except AssertionError as error:
        outcome.failure = str(error)
    return outcome
