"""Fetching one blob as a machine: what it asks of whom, and that it ends when honest sources have everything."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.blobs.blob import ChunkSet, chunks_in, set_of
from protocol.blobs.download import (
    FIRST_DUE_S,
    FIRST_WINDOW,
    LEAST_DEADLINE_S,
    MOST_OWED_BYTES,
    MOST_SOURCES,
    Download,
    Wants,
)
from protocol.blobs.reliability import Reliability
from protocol.wire.identity import PeerId
from tests.protocol.blobs.peers import PEERS, even

ANN, BOB, CYN = PEERS[:3]
FIRST_DEADLINE_S = 4 * FIRST_DUE_S


def a_download(count: int = 8, here: ChunkSet = 0, seed: bytes = b"1", size: int = 1000) -> Download:
    return Download(even(count, size), here, seed)


def test_a_source_is_asked_for_a_windowful_and_for_more_when_it_comes() -> None:
    download = a_download()
    first = download.has(ANN, 0xFF, 0.0)[ANN]
    assert len(first) == FIRST_WINDOW and download.owed_bytes == 1000 * FIRST_WINDOW
    more = download.came(ANN, first[0], 0.1)[ANN]
    assert len(more) == 2 and not set(more) & set(first), "one for that which came, one for the wider window"


def test_sources_are_asked_for_different_chunks_in_turns() -> None:
    download = a_download(3)
    download.has(CYN, 0b000, 0.0)
    first = download.has(ANN, 0b111, 0.0)
    second = download.has(BOB, 0b111, 0.0)
    assert len(first[ANN]) == 2 and len(second[BOB]) == 1 and sorted(first[ANN] + second[BOB]) == [0, 1, 2]


def test_what_is_here_is_never_asked_for() -> None:
    download = a_download(8, here=0b11110000)
    assert set(download.has(ANN, 0xFF, 0.0)[ANN]) <= {0, 1, 2, 3}
    assert not a_download(8, here=0xFF).has(ANN, 0xFF, 0.0)


def test_an_overdue_chunk_is_asked_of_others_and_taken_all_the_same() -> None:
    """Of two chunks nobody has the other one, so that this is no endgame."""
    download = a_download(2)
    assert download.has(ANN, 0b01, 0.0) == {ANN: [0]}
    assert not download.has(BOB, 0b01, FIRST_DEADLINE_S - 0.1)
    assert not download.expects(BOB, 0)
    assert download.tick(FIRST_DEADLINE_S + 0.1) == {BOB: [0]}, "its score is better now"
    assert download.expects(ANN, 0) and download.expects(BOB, 0)
    download.came(ANN, 0, FIRST_DEADLINE_S + 1)
    assert download.missing == 0b10 and download.owed_bytes == 0
    assert not download.expects(ANN, 0) and not download.expects(BOB, 0)


def test_who_does_not_keep_a_deadline_twice_is_left_alone() -> None:
    download, now = a_download(1), 0.0
    wants = download.has(ANN, 1, now)
    for _ in range(2):
        assert wants == {ANN: [0]}
        now += FIRST_DEADLINE_S + 0.1
        wants = download.tick(now)
    assert not wants and not download.got(ANN, 1, now), "to say again what one has does not help"
    assert download.tick(now + 10) == {ANN: [0]}


def test_in_the_endgame_a_chunk_of_a_slow_source_is_asked_of_a_quick_one_and_settled_with_both() -> None:
    download = a_download(6)
    slow = download.has(ANN, 0b000011, 0.0)[ANN]
    quick = download.has(BOB, 0b111111, 0.0)[BOB]
    assert sorted(slow) == [0, 1]
    for now in (0.1, 0.2, 0.3):
        wanted = [download.came(BOB, chunk, now) for chunk in quick]
        quick = next((wants[BOB] for wants in reversed(wanted) if BOB in wants), [])
        if set(quick) & {0, 1}:
            break
    assert set(quick) & {0, 1}, "the line of the quick one would be idle"
    assert download.came(BOB, quick[0], 0.5) is not None
    assert not download.expects(ANN, quick[0]), "what comes second is not taken"


def test_a_chunk_that_a_source_turns_down_is_asked_of_another_and_not_of_it() -> None:
    download = a_download(1)
    assert download.has(ANN, 1, 0.0) == {ANN: [0]}
    download.has(BOB, 1, 0.0)
    assert download.turned_down(ANN, (0,), 0.1) == {BOB: [0]}
    assert not download.has_use_of(ANN)
    assert not download.turned_down(ANN, (0,), 0.2), "it owes us nothing to turn down"


def test_a_busy_source_keeps_what_it_has_and_another_is_asked() -> None:
    download = a_download(1)
    download.has(ANN, 1, 0.0)
    download.has(BOB, 1, 0.0)
    assert download.busy(ANN, (0,), 0.1) == {BOB: [0]}
    assert download.has_use_of(ANN) and download.owed_bytes == 1000
    download.gone(BOB, 0.2)
    assert download.tick(3.0) == {ANN: [0]}


def test_wrong_bytes_bar_a_source_and_free_what_it_owes() -> None:
    download = a_download(2)
    download.has(ANN, 0b11, 0.0)
    download.has(BOB, 0b11, 0.0)
    assert download.wrong(ANN, 0.1) == {BOB: [0, 1]} or download.owed_bytes == 2000
    assert download.barred == {ANN} and not download.expects(ANN, 1)
    assert not download.has(ANN, 0b11, 0.2) and not download.has_use_of(ANN)


def test_who_is_gone_owes_nothing_and_nothing_of_it_is_remembered() -> None:
    download = a_download(4)
    for peer in PEERS[3:]:
        download.has(peer, 0b1, 0.0)
        download.tick(100.0)
        download.gone(peer, 100.0)
    assert download.owed_bytes == 0 and not download.has_hope()
    assert not download.sources


def test_no_more_is_owed_than_memory_for_it() -> None:
    size = 16 << 20
    download = Download(even(64, size), 0, b"seed", reliability=Reliability(lambda peer: True))
    wanted = [download.has(peer, (1 << 64) - 1, 0.0) for peer in PEERS]
    assert sum(len(chunks) for wants in wanted for chunks in wants.values()) == MOST_OWED_BYTES // size
    assert download.owed_bytes == MOST_OWED_BYTES


def test_no_more_sources_are_kept_than_a_bound() -> None:
    download = a_download()
    crowd = [PeerId(f"peer{number}") for number in range(2 * MOST_SOURCES)]
    for peer in crowd:
        download.has(peer, 0, 0.0)
        download.got(peer, 1, 0.0)
    assert sum(download.has_use_of(peer) for peer in crowd) == MOST_SOURCES


def test_peers_that_begin_together_ask_one_source_for_different_chunks() -> None:
    downloads = [a_download(64, seed=bytes([number])) for number in range(8)]
    asked_for = [chunk for each in downloads for chunk in each.has(ANN, (1 << 64) - 1, 0.0)[ANN]]
    assert len(asked_for) == 16 and len(set(asked_for)) > 12


class Crowd:
    """Sources of every kind, honest ones that at times fail, and liars; keeps books of what the machine may ask.

    Each thing that may happen is drawn from `random`.
    """

    KINDS = ("honest", "honest", "shaky", "wrong", "silent", "refusing", "busy")

    def __init__(self, random: Random) -> None:
        self.random, count = random, random.randint(1, 40)
        self.blob = even(count)
        self.sources = random.sample(PEERS, random.randint(1, 10))
        self.kind = {peer: random.choice(self.KINDS) for peer in self.sources}
        self.has = {peer: random.getrandbits(count) | random.getrandbits(count) for peer in self.sources}
        self.here = random.getrandbits(count) if random.random() < 0.3 else 0
        self.download = Download(self.blob, self.here, random.randbytes(4))
        self.owed: dict[tuple[str, int], float] = {}
        """Asked for and not settled, since when."""
        self.now = 0.0

    def take(self, wants: Wants) -> None:
        for peer, chunks in wants.items():
            assert peer not in self.download.barred
            assert len(set(chunks)) == len(chunks)
            for chunk in chunks:
                assert self.download.missing >> chunk & 1, "it asks for what is here"
                since = self.owed.get((peer, chunk))
                assert since is None or self.now - since >= LEAST_DEADLINE_S, "asked twice at a time"
                self.owed[peer, chunk] = self.now
                assert self.download.expects(peer, chunk)
        assert 0 <= self.download.owed_bytes <= min(MOST_OWED_BYTES, len(self.owed) * 1000)

    def step(self) -> None:
        """A quarter of a second in which some of what was asked for happens."""
        self.now += 0.25
        due = [*self.owed]
        self.random.shuffle(due)
        for peer, chunk in due:
            if (peer, chunk) in self.owed and self.random.random() < 0.4:
                self.happens(peer, chunk)
        if self.random.random() < 0.1:
            says = self.random.choice((self.download.has, self.download.got))
            self.take(says(*self.says(self.random.choice(self.sources)), self.now))
        self.take(self.download.tick(self.now))

    def says(self, peer: PeerId) -> tuple[PeerId, ChunkSet]:
        lies = self.kind[peer] in ("silent", "refusing", "wrong")
        return peer, self.blob.all if lies else self.has[peer]

    def happens(self, peer: str, chunk: int) -> None:
        kind = self.kind[PeerId(peer)]
        if kind == "silent":
            return
        del self.owed[peer, chunk]
        if kind == "refusing" or (kind == "shaky" and self.random.random() < 0.2):
            refuse = self.random.choice((self.download.turned_down, self.download.unanswered, self.download.busy))
            self.take(refuse(peer, (chunk,), self.now))
        elif kind == "busy" and self.random.random() < 0.5:
            self.take(self.download.busy(peer, (chunk,), self.now))
        elif self.download.expects(peer, chunk):
            wrong = kind == "wrong"
            self.take(self.download.wrong(peer, self.now) if wrong else self.download.came(peer, chunk, self.now))


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_it_gets_all_that_honest_sources_have_whatever_the_others_do(seed: int) -> None:
    crowd = Crowd(Random(seed))
    for peer in crowd.sources:
        crowd.take(crowd.download.has(*crowd.says(peer), crowd.now))
    honest = [peer for peer in crowd.sources if crowd.kind[peer] in ("honest", "shaky", "busy")]
    can_be_had = crowd.here
    for peer in honest:
        can_be_had |= crowd.has[peer]
    for _ in range(1200):
        if not can_be_had & crowd.download.missing:
            break
        crowd.step()
        for peer in honest:  # a shaky one said that it had not what it has
            if crowd.random.random() < 0.1:
                crowd.take(crowd.download.has(*crowd.says(peer), crowd.now))
    missing = set_of([*chunks_in(crowd.download.missing & can_be_had)])
    assert not missing, f"after {crowd.now} s: {missing:b} of {crowd.kind}"
    for peer in crowd.sources:
        crowd.take(crowd.download.gone(peer, crowd.now))
    assert crowd.download.owed_bytes == 0 and not crowd.download.has_hope()
