"""The census of copies: whose answers count, and what damaged answers do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.corpora.copies import COPIES
from protocol.corpora.store import BlockCache, BlockStore
from protocol.disk import Disk
from protocol.events.events import Dropped, Event
from protocol.node.copies import CopyCensus
from protocol.run.manifest import Admission
from protocol.wire.identity import Identity, PeerId
from protocol.wire.questions import MAX_HOLDINGS_BYTES, HoldingsReply, HoldingsRequest
from tests.protocol.chains import a_run
from tests.protocol.corpora.corpora import a_corpus
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, a_session, at_once

CORPUS = a_corpus((80_000,), block_tokens=4096, shard_blocks=8)
COUNT = len(CORPUS.all_blocks())
ALL = (1 << COUNT) - 1
FILES = 100
CID = Identity.from_seed(bytes([4]) * 32)
MEMBERS = (ANN.peer_id, BOB.peer_id)


class Room:
    """A census among ANN and BOB, whom a record names, and CID, who is a stranger; all are live unless they are `gone`."""

    def __init__(self, folder: Path, admission: Admission) -> None:
        self.network, self.events, self.gone = TableNetwork(), list[Event](), set[PeerId]()
        shards = CORPUS.shards
        self.cache = BlockCache(Disk(durable=False), folder, shards, 1 << 30)
        self.cache.load()
        corpora: Any = SimpleNamespace(
            store=BlockStore(self.cache, [], shards),
            manifest=SimpleNamespace(
                admission=admission,
                organiser=ME.peer_id,
                files={"corpus": SimpleNamespace(size=FILES)},
                reference_bytes=0,
                initial_bytes=0,
                base=None,
                state_bytes=0,
                genesis=None,
                data=SimpleNamespace(format="text", corpora=[None], mirrors=[]),
            ),
        )
        session = a_session(a_run(ANN).run, self.network, self.events)
        membership: Any = self
        self.census = CopyCensus(session, corpora, membership, at_once, lambda: True, lambda: True)

    def live_peers(self) -> list[PeerId]:
        return [peer for peer in self.network.answers if peer not in self.gone]

    def is_live(self, peer: PeerId) -> bool:
        return peer not in self.gone

    def has_member(self, peer: PeerId) -> bool:
        return peer in MEMBERS

    def answers(self, peer: PeerId, blocks: int | bytes, *, files: bool = True) -> None:
        raw = blocks if isinstance(blocks, bytes) else blocks.to_bytes((COUNT + 7) // 8, "little")

        async def answer(kind: str, data: bytes) -> bytes:
            assert kind == "holdings"
            return HoldingsReply(files=files, start=True, blocks=raw).encode()

        self.network.answers[peer] = answer


@asynccontextmanager
async def a_room(folder: Path, admission: Admission) -> AsyncIterator[Room]:
    room = Room(folder, admission)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.census.run)
        yield room
        nursery.cancel_scope.cancel()


@pytest.fixture
def room(tmp_path: Path, virtual_time: None) -> AbstractAsyncContextManager[Room]:
    return a_room(tmp_path, Admission.OPEN)


async def test_copies_are_counted_by_bytes_and_the_dead_no_longer_count(room: Room) -> None:
    for block in CORPUS.all_blocks()[:2]:
        room.cache.put(block, CORPUS.bytes_of(block))
    room.answers(ANN.peer_id, ALL)
    room.answers(BOB.peer_id, 1, files=False)
    await trio.sleep(40)
    told, mean = room.census.status(), sum(block.size for block in CORPUS.all_blocks()) / COUNT
    assert told is not None and (told.peers, told.answered, told.wanted) == (3, 3, COPIES)
    assert told.total_bytes == FILES + round(COUNT * mean) and told.missing_bytes == 0
    assert told.lone_bytes == round((COUNT - 2) * mean) and told.here_only_bytes == 0
    assert told.short_bytes == FILES + round((COUNT - 1) * mean)
    room.gone.add(ANN.peer_id)
    told = room.census.status()
    assert told is not None and told.missing_bytes == round((COUNT - 2) * mean) and told.wanted == 2
    assert told.here_only_bytes == FILES + round(mean), "the files and a block"
    lost = CORPUS.all_blocks()[5]
    assert room.census.shown().lacks(lost) and room.census.last_holders(lost) == [ANN.peer_id]


async def test_strangers_of_an_open_run_do_not_count_but_keep_a_block_from_being_lost(room: Room, tmp_path: Path) -> None:
    room.answers(CID.peer_id, ALL)
    await trio.sleep(40)
    told, others = room.census.status(), room.census.others()
    assert told is not None and told.peers == 1 and told.missing_bytes > 0
    assert not others.peers and not others.counts.at_least[0] and others.shown == ALL
    assert not any(map(room.census.shown().lacks, CORPUS.all_blocks()))
    async with a_room(tmp_path / "invite", Admission.INVITE) as admitted:
        admitted.answers(CID.peer_id, ALL)
        await trio.sleep(40)
        assert admitted.census.others().counts.at_least == (ALL, 0, 0)


async def test_damaged_answers_are_dropped_and_silent_peers_delay_nobody(room: Room) -> None:
    room.answers(ANN.peer_id, bytes(MAX_HOLDINGS_BYTES))
    room.answers(BOB.peer_id, ALL)

    async def silent(kind: str, data: bytes) -> bytes:
        await trio.sleep_forever()
        return b""

    room.network.answers[CID.peer_id] = silent
    with trio.move_on_after(5):
        await room.census.counted.wait()
    (dropped,) = {event.peer for event in room.events if isinstance(event, Dropped)}
    assert dropped == ANN.peer_id


async def test_a_peer_answers_with_what_it_has(room: Room) -> None:
    block = CORPUS.all_blocks()[3]
    room.cache.put(block, CORPUS.bytes_of(block))
    await trio.sleep(1)
    raw = await room.census.answer_holdings(ANN.peer_id, HoldingsRequest())
    reply = HoldingsReply.model_validate(HoldingsReply(files=True, start=True, blocks=(8).to_bytes(3, "little")))
    assert raw == reply.encode()
