"""What a peer has brought decides how far it is relied on, whatever key it has, in all fetches."""

from __future__ import annotations

from protocol.blobs.download import MOST_OWED_BYTES, MOST_SOURCES, MOST_UNPROVEN_BYTES, Download
from protocol.blobs.reliability import MAX_REMEMBERED, PROVEN, Reliability
from protocol.wire.identity import PeerId
from tests.protocol.blobs.peers import PEERS, even

ANN, BOB, CYN = PEERS[:3]
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
