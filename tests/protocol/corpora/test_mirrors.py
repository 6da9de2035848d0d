"""Mirrors: what one does wrong costs one request, and the others go on."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import trio

from protocol.blobs.blob import Blob
from protocol.blobs.mirrors import ABSENT_S, MOST_REST_S, TOLD_FAILURES, Mirrors, RangeClient
from protocol.corpora.manifest import Shard
from protocol.disk import StoreFull
from protocol.events.events import Event, Notice
from protocol.wire.hashes import Hash
from tests.protocol.blobs.peers import PEERS
from tests.protocol.corpora import web
from tests.protocol.corpora.corpora import Corpus, a_corpus
from tests.protocol.corpora.web import Manner, Site, Web, files_of, on_the_web

CORPUS = a_corpus()
(FIRST, *_) = CORPUS.shards.values()
URLS = [f"http://mirror{number}.test/corpus/shards" for number in range(3)]


class Reader:
    """Mirrors of a web, and what they gave.  asked: names, in order."""

    def __init__(self, web: Web, corpus: Corpus = CORPUS, count: int = 3) -> None:
        self.corpus, self.events = corpus, list[Event]()
        self.sites = [
            web.add(f"mirror{number}.test", f"93.184.216.{number}", Site(files_of(corpus, "/corpus")))
            for number in range(count)
        ]
        self.mirrors = Mirrors(URLS[:count], RangeClient(dialer=web), PEERS[0], self.events.append)
        self.got: dict[int, bytes] = {}
        self.asked: list[str] = []

    async def blocks(self, numbers: range = range(1, 5), shard: Shard = FIRST) -> bool:
        """Read blocks; another mirror goes on where one fails."""

        async def keep(number: int, data: bytes) -> None:
            assert number not in self.got and data == self.corpus.bytes_of(shard.block(number))
            self.got[number] = data

        blob = Blob.cut(shard.root, self.corpus.leaves[shard.root], shard.spans)
        while left := [number for number in numbers if number not in self.got]:
            ready = self.mirrors.ready(shard.root)
            if not ready:
                return False
            self.asked.append(ready[0])
            await self.mirrors.read_chunks(ready[0], blob, range(left[0], left[-1] + 1), keep)
        return True

    async def leaves(self, shard: Shard = FIRST) -> list[Hash] | None:
        return await self.mirrors.read_leaves(shard.root, len(shard))

    async def first(self) -> int:
        """The number of the mirror that is asked first for these blocks."""
        await self.blocks()
        self.got.clear()
        return URLS.index(self.asked.pop(0))

    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice) and event.level == "warning"]


@on_the_web
async def test_consecutive_blocks_come_in_one_request_and_leaves_in_another(web: Web) -> None:
    reader = Reader(web)
    assert await reader.blocks() and [*reader.got] == [1, 2, 3, 4]
    assert await reader.leaves() == CORPUS.leaves[FIRST.root]
    assert sum(len(site.requests) for site in reader.sites) == 2 and not reader.events


@on_the_web
async def test_the_load_is_spread_over_the_mirrors(web: Web) -> None:
    reader = Reader(web, a_corpus((400_000,)))
    for shard in reader.corpus.shards.values():
        reader.got.clear()
        assert await reader.blocks(range(1), shard)
    counts = Counter(reader.asked)
    assert len(counts) == 3 and min(counts.values()) > 8, counts


@pytest.mark.parametrize(
    "manner", [web.stalling, web.vanishing, web.silent, web.missing, web.short, web.trickling, web.other_range]
)
@on_the_web
async def test_another_mirror_goes_on_where_one_failed(web: Web, manner: Manner) -> None:
    reader = Reader(web)
    bad = reader.sites[await reader.first()]
    bad.manner = manner
    assert await reader.blocks() and [*reader.got] == [1, 2, 3, 4]
    assert not reader.warnings()
    requests, reader.got = len(bad.requests), {}
    assert await reader.blocks() and len(bad.requests) == requests, "it rests"


@pytest.mark.parametrize(
    ("manner", "words"),
    [
        (web.liar, f"sends wrong bytes of {FIRST.root.hex()}.shard"),
        (web.whole, "sends whole files instead of ranges"),
        (web.redirecting("http://10.0.0.7/"), "not public"),
    ],
)
@on_the_web
async def test_who_lies_or_breaks_a_rule_is_set_aside_with_a_sentence(web: Web, manner: Manner, words: str) -> None:
    reader = Reader(web)
    web.names["10.0.0.7"] = ["10.0.0.7"]
    number = await reader.first()
    reader.sites[number].manner = manner
    assert await reader.blocks() and [*reader.got] == [1, 2, 3, 4]
    (warning,) = reader.warnings()
    assert warning.startswith(f"the mirror mirror{number}.test ") and words in warning
    await trio.sleep(10 * MOST_REST_S)
    assert {*reader.mirrors.ready(FIRST.root)} == {*URLS} - {URLS[number]}
    requests, reader.got = len(reader.sites[number].requests), {}
    assert await reader.blocks() and len(reader.sites[number].requests) == requests


@on_the_web
async def test_a_mirror_that_vanished_is_asked_twice_as_late_each_time_and_used_again_when_it_is_back(web_: Web) -> None:
    reader = Reader(web_, count=1)
    (site,) = reader.sites
    site.manner = web.babbling
    asked_at = list[float]()
    while trio.current_time() < 1500:
        if reader.mirrors.ready(FIRST.root):
            asked_at.append(trio.current_time())
            assert not await reader.blocks()
        await trio.sleep(0.5)
    gaps = [round(after - before) for before, after in pairwise(asked_at)]
    assert gaps[:8] == [2, 4, 8, 16, 32, 64, 128, 256] and set(gaps[8:]) <= {300}
    assert len(reader.warnings()) == 1 and len(asked_at) > TOLD_FAILURES
    site.manner = web.honest
    await trio.sleep(MOST_REST_S)
    assert await reader.blocks()
    site.manner = web.babbling
    reader.got.clear()
    assert not await reader.blocks()
    await trio.sleep(3)
    assert reader.mirrors.ready(FIRST.root), "a success ends the backoff"


@on_the_web
async def test_a_mirror_of_another_corpus_is_asked_for_what_it_has(web: Web) -> None:
    other = a_corpus(seed=2)
    (shard, *_) = other.shards.values()
    reader = Reader(web, count=1)
    (site,) = reader.sites
    assert await reader.leaves(shard) is None
    assert not reader.mirrors.ready(shard.root)
    assert reader.mirrors.ready(FIRST.root) and await reader.blocks()
    requests = len(site.requests)
    assert await reader.leaves(shard) is None and len(site.requests) == requests
    await trio.sleep(ABSENT_S)
    site.files = files_of(other, "/corpus")
    assert await reader.leaves(shard) == other.leaves[shard.root] and not reader.warnings()


@on_the_web
async def test_a_disk_that_is_full_is_no_fault_of_the_mirror(web: Web) -> None:
    reader = Reader(web)

    async def keep(number: int, data: bytes) -> None:
        raise StoreFull("the disk is full")

    blob = Blob.cut(FIRST.root, CORPUS.leaves[FIRST.root], FIRST.spans)
    with pytest.raises(StoreFull):
        await reader.mirrors.read_chunks(URLS[0], blob, range(2), keep)
    assert not reader.events and len(reader.mirrors.ready(FIRST.root)) == 3
