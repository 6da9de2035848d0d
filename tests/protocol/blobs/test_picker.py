"""Which chunk a source is asked for: rarest first, ties by chance, and twice only in the endgame."""

from __future__ import annotations

from random import Random

from protocol.blobs.download import COPIES, Picker
from tests.protocol.blobs.peers import PEERS

ANN, BOB, CYN, DAN = PEERS[:4]


def a_picker(count: int = 4, here: int = 0, seed: int = 1) -> Picker:
    return Picker(count, here, Random(seed))


def test_the_rarest_chunk_comes_first() -> None:
    picker = a_picker()
    picker.set_held(ANN, 0b1111)
    picker.set_held(BOB, 0b1011)
    picker.set_held(CYN, 0b0011)
    assert [picker.pick(ANN) for _ in range(2)] == [2, 3]
    picker.forget(CYN)
    assert picker.pick(BOB) in (0, 1)


def test_a_source_that_is_gone_does_not_make_its_chunks_common() -> None:
    picker = a_picker()
    picker.set_held(ANN, 0b0011)
    picker.set_held(BOB, 0b0001)
    picker.set_held(CYN, 0b0010)
    picker.set_held(DAN, 0b0010)
    assert picker.pick(ANN) == 0
    picker.release(ANN, 0)
    picker.forget(CYN)
    picker.forget(DAN)
    assert picker.pick(ANN) == 1


def test_peers_with_other_seeds_begin_with_other_chunks() -> None:
    firsts = []
    for seed in range(20):
        picker = a_picker(64, seed=seed)
        picker.set_held(ANN, (1 << 64) - 1)
        firsts.append(picker.pick(ANN))
    assert len(set(firsts)) > 10
    again = a_picker(64, seed=0)
    again.set_held(ANN, (1 << 64) - 1)
    assert again.pick(ANN) == firsts[0], "the seed decides"


def test_what_is_here_or_asked_for_is_not_picked() -> None:
    picker = a_picker(here=0b0001)
    picker.set_held(ANN, 0b0111)
    picker.set_held(BOB, 0b0111)
    assert {picker.pick(ANN), picker.pick(BOB)} == {1, 2}
    assert picker.pick(ANN) is None and not picker.open
    picker.release(ANN, 1)
    picker.release(BOB, 1)
    assert picker.pick(BOB) == 1


def test_no_chunk_is_asked_for_twice_while_one_is_missing_that_nobody_was_asked_for() -> None:
    """Though nobody has it yet: in a broadcast most are still to come, and twice the same is a line wasted."""
    picker = a_picker()
    for peer in (ANN, BOB):
        picker.set_held(peer, 0b0111)
    for _ in range(3):
        picker.pick(ANN)
    assert not picker.in_endgame
    assert picker.pick_again(BOB, lambda peer, chunk: 100.0, 1.0) is None


def test_in_the_endgame_a_few_are_asked_for_what_takes_longest() -> None:
    picker = a_picker(2)
    for peer in (ANN, BOB, CYN, DAN):
        picker.set_held(peer, 0b11)
    for _ in range(2):
        picker.pick(ANN)
    takes_s = {0: 3.0, 1: 5.0}
    assert picker.pick_again(BOB, lambda peer, chunk: takes_s[chunk], 5.0) is None, "it would not be sooner"
    assert picker.pick_again(BOB, lambda peer, chunk: takes_s[chunk], 1.0) == 1
    assert picker.pick_again(BOB, lambda peer, chunk: takes_s[chunk], 1.0) == 0, "never twice of the same source"
    assert picker.pick_again(BOB, lambda peer, chunk: takes_s[chunk], 1.0) is None
    assert [len(picker.asked_for(chunk)) for chunk in range(2)] == [COPIES, COPIES]
    assert picker.pick_again(CYN, lambda peer, chunk: takes_s[chunk], 1.0) is None


def test_what_came_is_asked_for_no_more() -> None:
    picker = a_picker(2)
    picker.set_held(ANN, 0b11)
    picker.pick(ANN)
    picker.arrived(0)
    picker.arrived(1)
    assert picker.here == 0b11 and not picker.missing and picker.pick(ANN) is None
    assert picker.asked_for(0) == picker.asked_for(1) == []
