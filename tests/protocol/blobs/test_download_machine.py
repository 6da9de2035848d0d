"""The download of a blob under any sequence of events: requests, bounds, and an end with honest sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.blobs.blob import ChunkSet
from protocol.blobs.download import (
    COPIES,
    LEAST_DEADLINE_S,
    MOST_DEADLINE_S,
    MOST_IN_WINDOW,
    MOST_OWED_BYTES,
    MOST_SOURCES,
    Download,
    Wants,
)
from protocol.wire.identity import PeerId
from tests.protocol.blobs.peers import PEERS, even

CHUNKS = 12
BYTES = 1000
SOURCES, HONEST = PEERS[:5], PEERS[5]
sources, chunk_sets = st.sampled_from(SOURCES), st.integers(0, (1 << CHUNKS) - 1)
picks = st.integers(0, 10**6)
PATIENCE_S = 900.0
"""Longer than all rests and deadlines of a source that failed."""


class DownloadMachine(RuleBasedStateMachine):
    """Books of what the download asked for, beside its own.

    owed: chunks that a source was asked for, and since when; an overdue one stays, because it may still come.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.owed: dict[tuple[str, int], float] = {}
        self.came = Counter[int]()

    @initialize(here=chunk_sets, seed=st.binary(min_size=4, max_size=4))
    def begin(self, here: ChunkSet, seed: bytes) -> None:
        self.before = here
        self.download = Download(even(CHUNKS, BYTES), here, seed)

    def take(self, wants: Wants) -> None:
        for peer, chunks in wants.items():
            assert peer not in self.download.barred and self.download.has_use_of(peer)
            for chunk in chunks:
                assert self.download.missing >> chunk & 1, "it asks for what is here"
                since = self.owed.get((peer, chunk))
                assert since is None or self.now - since >= LEAST_DEADLINE_S, "asked twice at a time"
                self.owed[peer, chunk] = self.now
                assert self.download.expects(peer, chunk)

    def taken(self, pick: int) -> tuple[str, int]:
        """Something that was asked for, and is settled now."""
        peer, chunk = sorted(self.owed)[pick % len(self.owed)]
        del self.owed[peer, chunk]
        return peer, chunk

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(peer=sources, chunks=chunk_sets)
    def a_source_says_what_it_has(self, peer: PeerId, chunks: ChunkSet) -> None:
        self.take(self.download.has(peer, chunks, self.now))

    @rule(peer=sources, chunks=chunk_sets)
    def a_source_got_more(self, peer: PeerId, chunks: ChunkSet) -> None:
        self.take(self.download.got(peer, chunks, self.now))

    @rule(peer=sources)
    def a_source_goes(self, peer: PeerId) -> None:
        self.owed = {each: since for each, since in self.owed.items() if each[0] != peer}
        self.take(self.download.gone(peer, self.now))

    @precondition(lambda self: self.owed)
    @rule(pick=picks)
    def a_chunk_comes(self, pick: int) -> None:
        peer, chunk = self.taken(pick)
        if self.download.expects(peer, chunk):
            self.came[chunk] += 1
            self.take(self.download.came(peer, chunk, self.now))

    @precondition(lambda self: self.owed)
    @rule(pick=picks)
    def other_bytes_come(self, pick: int) -> None:
        peer, chunk = self.taken(pick)
        if self.download.expects(peer, chunk):
            self.owed = {each: since for each, since in self.owed.items() if each[0] != peer}
            self.take(self.download.wrong(peer, self.now))
            assert peer in self.download.barred

    @precondition(lambda self: self.owed)
    @rule(pick=picks, refuse=st.sampled_from([Download.turned_down, Download.busy, Download.unanswered]))
    def a_source_refuses(self, pick: int, refuse: Callable[[Download, str, Collection[int], float], Wants]) -> None:
        peer, chunk = self.taken(pick)
        self.take(refuse(self.download, peer, (chunk,), self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.download.tick(self.now))

    # -- facts --------------------------------------------------------------------------------------------------------

    @invariant()
    def memory_is_bounded(self) -> None:
        assert 0 <= self.download.owed_bytes <= min(MOST_OWED_BYTES, len(self.owed) * BYTES)
        assert len(self.download.sources) <= MOST_SOURCES

    @invariant()
    def no_chunk_is_asked_of_many(self) -> None:
        asked = {chunk: self.download.asked_for(chunk) for chunk in range(CHUNKS)}
        assert all(len(set(peers)) == len(peers) <= COPIES for peers in asked.values())
        awaited = [(peer, chunk) for chunk, peers in asked.items() for peer in peers]
        assert all(self.now - self.owed[each] <= MOST_DEADLINE_S for each in awaited), "it is overdue in time"
        assert max(Counter(peer for peers in asked.values() for peer in peers).values(), default=0) <= MOST_IN_WINDOW

    @invariant()
    def each_chunk_is_taken_once(self) -> None:
        here, missing = self.download.here, self.download.missing
        assert here | missing == even(CHUNKS).all and not here & missing
        assert max(self.came.values(), default=0) <= 1
        assert here == self.before | sum(1 << chunk for chunk in self.came)

    def teardown(self) -> None:
        """An honest source with everything comes, and the others say nothing any more: the download ends."""
        if not hasattr(self, "download"):
            return
        self.take(self.download.has(HONEST, even(CHUNKS).all, self.now))
        end = self.now + PATIENCE_S
        while self.download.missing and self.now < end:
            for peer, chunk in [each for each in self.owed if each[0] == HONEST]:
                del self.owed[peer, chunk]
                if self.download.expects(peer, chunk):
                    self.came[chunk] += 1
                    self.take(self.download.came(peer, chunk, self.now))
            self.now += 0.5
            self.take(self.download.tick(self.now))
        assert not self.download.missing and self.download.owed_bytes == 0 and not self.download.has_hope()
        self.each_chunk_is_taken_once()


TestDownload = DownloadMachine.TestCase
TestDownload.settings = settings(max_examples=40, stateful_step_count=50, derandomize=True)
