"""Which chunk a source is asked for: rarest first, ties by chance, and twice only in the endgame."""

from __future__ import annotations

from protocol.blobs.blob import ChunkSet
from protocol.blobs.download import COPIES, FIRST_RANGE_BYTES, Download
from protocol.blobs.reliability import Reliability
from tests.protocol.blobs.peers import PEERS, even

ANN, BOB, CYN, DAN = PEERS[:4]
MIRROR = "http://mirror.test/corpus"


def a_download(count: int = 4, here: ChunkSet = 0, seed: int = 1, size: int = 1000) -> Download:
    return Download(even(count, size), here, seed.to_bytes(4))


def rests(download: Download, *sources: str) -> None:
    """Let sources have nothing to do, so that they are only counted."""
    for source in sources:
        download.sources[source].rests_until = 1e9


def test_the_rarest_chunk_comes_first() -> None:
    download = a_download()
    for peer, chunks in ((BOB, 0b1011), (CYN, 0b0011)):
        download.has(peer, 0, 0.0)
        rests(download, peer)
        download.has(peer, chunks, 0.0)
    assert download.has(ANN, 0b1111, 0.0) == {ANN: [2, 3]}


def test_a_source_that_is_gone_does_not_make_its_chunks_common() -> None:
    download = a_download()
    for peer, chunks in ((BOB, 0b01), (CYN, 0b10), (DAN, 0b10)):
        download.has(peer, 0, 0.0)
        rests(download, peer)
        download.has(peer, chunks, 0.0)
    download.gone(CYN, 0.0)
    download.gone(DAN, 0.0)
    assert download.has(ANN, 0b11, 0.0)[ANN][0] == 1


def test_peers_with_other_seeds_begin_with_other_chunks() -> None:
    firsts = [a_download(64, seed=seed).has(ANN, (1 << 64) - 1, 0.0)[ANN][0] for seed in range(20)]
    assert len(set(firsts)) > 10
    assert a_download(64, seed=0).has(ANN, (1 << 64) - 1, 0.0)[ANN][0] == firsts[0], "the seed decides"


def test_what_is_here_or_asked_for_is_not_picked() -> None:
    download = a_download(here=0b0001)
    assert sorted(download.has(ANN, 0b0111, 0.0)[ANN]) == [1, 2]
    assert not download.has(BOB, 0b0111, 0.0)
    assert download.turned_down(ANN, (1,), 0.1) == {BOB: [1]}


def test_no_chunk_is_asked_for_twice_while_one_is_missing_that_nobody_was_asked_for() -> None:
    """Though nobody has it yet: in a broadcast most are still to come, and twice the same is a line wasted."""
    download = a_download(3)
    download.has(ANN, 0b011, 0.0)
    download.has(BOB, 0, 0.0)
    download.sources[BOB].rate = 1e6
    assert not download.got(BOB, 0b011, 1.9)
    assert download.got(BOB, 0b100, 1.9)[BOB][0] == 2


def test_in_the_endgame_a_few_are_asked_for_what_takes_longest() -> None:
    download = a_download(2)
    download.has(ANN, 0b11, 0.0)
    first = download.sources[ANN].debts
    assert not download.has(BOB, 0b11, 0.0), "it would not be sooner"
    first[0], first[1] = (type(first[0])(0.0, 1000, due_at, 9.0) for due_at in (3.0, 5.0))
    for peer in (BOB, CYN, DAN):
        download.has(peer, 0, 0.0)
        download.sources[peer].rate = 1e4
    assert download.got(BOB, 0b11, 0.1) == {BOB: [1, 0]}, "never twice of the same source"
    assert [len(download.asked_for(chunk)) for chunk in range(2)] == [COPIES, COPIES]
    assert not download.got(CYN, 0b11, 0.1)


def test_what_only_less_reliable_sources_owe_is_asked_for_at_once() -> None:
    known = Reliability()
    download = Download(even(1), 0, b"seed", reliability=known)
    for peer in (CYN, DAN):
        for _ in range(3):
            known.brought(peer)
    assert download.has(ANN, 1, 0.0) == {ANN: [0]}
    assert not download.has(BOB, 1, 0.0), "Ann is as reliable, and not slower"
    download.sources[BOB].rate = 1e6
    assert download.tick(0.1) == {BOB: [0]}
    assert download.has(CYN, 1, 0.1) == {CYN: [0]}, "two copies of strangers count for nothing"
    assert not download.has(DAN, 1, 0.1)


def test_what_came_is_asked_for_no_more() -> None:
    download = a_download(2)
    for chunk in download.has(ANN, 0b11, 0.0)[ANN]:
        download.came(ANN, chunk, 0.1)
    assert download.here == 0b11 and not download.missing and not download.tick(1.0)
    assert download.asked_for(0) == download.asked_for(1) == []


def test_a_mirror_is_asked_for_consecutive_chunks_that_peers_were_not_asked_for() -> None:
    download = a_download(64, size=FIRST_RANGE_BYTES // 8)
    peers = download.has(ANN, (1 << 64) - 1, 0.0)[ANN]
    wanted = download.has(MIRROR, (1 << 64) - 1, 0.0, is_mirror=True)[MIRROR]
    free = [chunk for chunk in range(64) if chunk not in peers]
    assert wanted == [*range(free[0], free[0] + len(wanted))] and len(wanted) <= 8 and not {*peers} & {*wanted}
    assert not download.tick(0.1), "it sends one range at a time"
    more = [download.came(MIRROR, chunk, 1.0) for chunk in wanted]
    assert not any(MIRROR in each for each in more[:-1]) and len(more[-1][MIRROR]) > len(wanted), "it is fast"


def test_in_the_endgame_a_mirror_is_asked_for_what_peers_owe_late() -> None:
    download = a_download(2)
    download.has(ANN, 0b11, 0.0)
    assert not download.has(MIRROR, 0b11, 0.1, is_mirror=True)
    assert download.tick(9.0)[MIRROR]
