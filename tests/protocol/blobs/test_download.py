"""Fetching one blob as a machine: what it asks of whom, how much of each source, and which are relied on."""

from __future__ import annotations

from protocol.blobs.blob import ChunkSet
from protocol.blobs.download import (
    COPIES,
    FAST_WINDOW,
    FIRST_DUE_S,
    FIRST_RANGE_BYTES,
    MOST_OWED_BYTES,
    MOST_REST_S,
    MOST_SOURCES,
    MOST_UNPROVEN_BYTES,
    PAUSE_S,
    REST_S,
    Download,
    Source,
)
from protocol.blobs.reliability import MAX_REMEMBERED, PROVEN, Reliability
from protocol.wire.identity import PeerId
from tests.protocol.blobs.peers import PEERS, even

ANN, BOB, CYN, DAN = PEERS[:4]
FIRST_DEADLINE_S = 4 * FIRST_DUE_S


def a_download(count: int = 8, here: ChunkSet = 0, seed: bytes = b"1", size: int = 1000) -> Download:
    return Download(even(count, size), here, seed)


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


MIRROR = "http://mirror.test/corpus"


def rests(download: Download, *sources: str) -> None:
    """Let sources have nothing to do, so that they are only counted."""
    for source in sources:
        download.sources[source].rests_until = 1e9


def test_the_rarest_chunk_comes_first() -> None:
    download = a_download(4)
    for peer, chunks in ((BOB, 0b1011), (CYN, 0b0011)):
        download.has(peer, 0, 0.0)
        rests(download, peer)
        download.has(peer, chunks, 0.0)
    assert download.has(ANN, 0b1111, 0.0) == {ANN: [2, 3]}


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


def test_who_fails_twice_rests_twice_as_long_each_time_and_heals() -> None:
    source, now, rests = Source(), 0.0, list[float]()
    for _ in range(8):
        source.failed(now)
        assert source.may_be_asked(now), "once may be chance"
        source.failed(now)
        assert not source.may_be_asked(now)
        rests.append(source.rests_until - now)
        now += rests[-1]
        assert source.may_be_asked(now)
    assert rests == [min(REST_S * 2**number, MOST_REST_S) for number in range(8)]
    source.brought(1000, 0.5)
    source.failed(now)
    source.failed(now)
    assert source.rests_until - now == REST_S


def test_a_source_on_a_fast_line_is_asked_for_several_chunks_together() -> None:
    source = Source()
    source.owe(0, 1000, 10.0)
    assert source.may_be_asked(10.0), "its window is small"
    while source.window < FAST_WINDOW:
        source.brought(1000, 0.01)
    assert not source.may_be_asked(10.0 + PAUSE_S / 2)
    assert source.may_be_asked(10.1)
    source.owed_bytes -= 1000
    assert source.may_be_asked(10.0 + PAUSE_S / 2), "it has nothing to send"


MIB = 1 << 20


def test_a_peer_ranks_by_what_it_brought_and_loses_half_by_withholding() -> None:
    known = Reliability()
    assert known.rank(ANN) == 0 and not known.is_proven(ANN)
    for _ in range(2 * PROVEN):
        known.brought(ANN)
    assert known.rank(ANN) == PROVEN and known.is_proven(ANN)
    ranks = list[int]()
    for _ in range(2 * PROVEN):
        known.withheld(ANN)
        ranks.append(known.rank(ANN))
    assert ranks[:7] == [PROVEN // 2, 4, 2, 1, 0, -1, -2] and ranks[-1] == -PROVEN
    for _ in range(PROVEN):
        assert not known.is_proven(ANN)
        known.brought(ANN)
    known.brought(ANN)
    assert known.rank(ANN) == 1, "who was slow makes up for it"


def test_a_member_is_relied_on_before_it_has_brought_anything_and_loses_that_too() -> None:
    known = Reliability(lambda peer: peer == BOB)
    assert known.in_order([ANN, BOB, CYN]) == [BOB, ANN, CYN]
    known.withheld(BOB)
    assert known.in_order([ANN, BOB, CYN])[0] == BOB, "it may have been slow once"
    for _ in range(5):
        known.withheld(BOB)
    assert known.in_order([ANN, BOB, CYN]) == [ANN, CYN, BOB]


def test_keys_without_merit_displace_no_peer_that_has_some_and_memory_is_bounded() -> None:
    known = Reliability()
    known.brought(ANN)
    for number in range(2 * MAX_REMEMBERED):
        known.withheld(PeerId(f"key {number}"))
    assert len(known) == MAX_REMEMBERED and known.rank(ANN) == 1
    for number in range(MAX_REMEMBERED):
        known.brought(PeerId(f"other {number}"))
        known.brought(ANN)
    assert len(known) == MAX_REMEMBERED and known.rank(ANN) == PROVEN, "who brings something remains"
    known.brought(BOB)
    assert known.rank(BOB) == 1, "newcomers are remembered, though all places are taken by peers with merit"


def test_withholders_of_one_download_are_asked_last_in_the_next_and_no_chunk_waits_for_them() -> None:
    known = Reliability()

    def begin(now: float) -> tuple[Download, dict[str, list[int]]]:
        download, wants = Download(even(4, 1000), 0, b"seed", reliability=known), dict[str, list[int]]()
        for peer in (BOB, CYN, ANN):
            for asked, chunks in download.has(peer, download.blob.all, now).items():
                wants[asked] = wants.get(asked, []) + chunks
        return download, wants

    first, wants = begin(0.0)
    assert wants[BOB] and wants[CYN], "nobody is known"
    first.tick(100.0)
    for chunk in range(4):
        first.has(ANN, first.blob.all, 100.0)
        if ANN in first.asked_for(chunk):
            first.came(ANN, chunk, 100.1)
    assert known.rank(BOB) == known.rank(CYN) == -1 and known.rank(ANN) > 0
    second, _ = begin(200.0)
    for number in range(4):
        owed = [chunk for chunk in range(4) if ANN in second.asked_for(chunk)]
        assert owed, "Ann is never idle while a chunk is missing that only they owe"
        second.came(ANN, owed[0], 200.1 + number)
    assert not second.missing


def test_a_chunk_that_comes_late_counts_as_brought_and_one_with_wrong_bytes_as_withheld() -> None:
    known = Reliability()
    download = Download(even(1, 1000), 0, b"seed", reliability=known)
    download.has(ANN, 1, 0.0)
    download.tick(100.0)
    download.came(ANN, 0, 101.0)
    assert known.rank(ANN) == 0
    other = Download(even(1, 1000), 0, b"seed", reliability=known)
    other.has(BOB, 1, 0.0)
    other.wrong(BOB, 1.0)
    assert known.rank(BOB) == -1


def test_sources_without_merit_owe_half_together_whatever_their_number() -> None:
    download = Download(even(200, MIB), 0, b"seed", reliability=Reliability(lambda peer: peer == ANN))
    for number in range(MOST_SOURCES - 1):
        download.has(PeerId(f"key {number}"), download.blob.all, 0.0)
    assert download.owed_bytes == MOST_UNPROVEN_BYTES <= MOST_OWED_BYTES // 2
    assert download.has(ANN, download.blob.all, 0.0)[ANN]
    (paid, *_) = download.asked_for(next(chunk for chunk in range(200) if download.asked_for(chunk)))
    assert download.turned_down(paid, [*download.sources[paid].debts], 0.0), "others may owe what it owes no longer"
