"""Our clock compared with others': several peers' median makes a sentence, and no single one."""

from __future__ import annotations

import pytest

from protocol.membership.handshake import MAX_PEERS, ClockOffsets, note_clock
from protocol.run.admission import LAST_SECOND, HelloReply
from protocol.wire.identity import Identity, PeerId

PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(MAX_PEERS + 8)]
NOW = 1_700_000_000.0
H, D = 3600, 86_400


class Clocks:
    """wall may be set; boot goes on."""

    def __init__(self) -> None:
        self.wall, self.boot = NOW, 50.0
        self.offsets = ClockOffsets(lambda: self.wall, lambda: self.boot)

    def greet(self, peer: PeerId, ahead_s: float, took_s: float = 0.0) -> None:
        """`peer` answers after half of `took_s`, and is so far ahead of the true time."""
        asked, truth = self.boot, NOW + self.boot - 50.0
        self.boot += took_s
        self.wall += took_s
        self.offsets.note(peer, truth + took_s / 2 + ahead_s, asked)


def told(*ahead_s: float) -> str:
    clocks = Clocks()
    for peer, each in zip(PEERS, ahead_s, strict=False):
        clocks.greet(peer, each)
    return clocks.offsets.skew


@pytest.mark.parametrize(
    ("ahead_s", "said"),
    [
        ((), ""),
        ((9999,), ""),
        ((9999, 9999), "2 h 47 min behind the clocks of 2 peers"),
        ((D, 0), ""),
        ((D, -D), ""),
        ((60, 60, 60), ""),
        ((61, 61, 61), "1 min behind the clocks of 3 peers"),
        ((-90, -90, -90), "2 min ahead of the clocks of 3 peers"),
        ((-20 * H,) * 4, "20 h 0 min ahead of the clocks of 4 peers"),
        ((400 * D,) * 3, "400 days behind the clocks of 3 peers"),
        ((0, 5, -5, 10**9, -(10**9)), ""),
        ((7380, 7380, 0), "2 h 3 min behind the clocks of 3 peers"),
        ((-9999, -9999, 9999, 9999), ""),
    ],
)
def test_the_median_of_two_peers_or_more_is_said(ahead_s: tuple[float, ...], said: str) -> None:
    assert told(*ahead_s) == said


def test_one_peer_that_says_much_counts_once() -> None:
    clocks = Clocks()
    for ahead_s in range(1000, 1100):
        clocks.greet(PEERS[0], ahead_s)
    assert clocks.offsets.compared == 0 and clocks.offsets.skew == ""


def test_the_last_peers_are_compared_and_no_more_are_kept() -> None:
    clocks = Clocks()
    for peer in PEERS[8:]:
        clocks.greet(peer, 0)
    for peer in PEERS[:8] * 3:
        clocks.greet(peer, 500)
    assert clocks.offsets.compared == MAX_PEERS and clocks.offsets.skew == ""


def test_a_slow_answer_is_no_skew() -> None:
    clocks = Clocks()
    for peer in PEERS[:3]:
        clocks.greet(peer, 0, took_s=9.0)
    assert clocks.offsets.skew == ""


def test_it_is_warned_of_once_and_ends_when_the_clock_is_set() -> None:
    clocks = Clocks()
    clocks.wall -= 7380
    for peer in PEERS[:5]:
        assert clocks.offsets.take_warning() == ""
        clocks.greet(peer, 0)
        if clocks.offsets.compared:
            break
    assert clocks.offsets.take_warning() == (
        "this computer's clock is 2 h 3 min behind the clocks of 2 peers; set the clock, because invitations expire by it"
    )
    assert clocks.offsets.take_warning() == "" and clocks.offsets.skew
    clocks.wall, clocks.boot = clocks.wall + 7380 + 1000, clocks.boot + 1000
    assert clocks.offsets.skew == ""


@pytest.mark.parametrize("answer", [b"", b"x", b"\xff" * 9000, HelloReply(protocol=1, version="1", clock=0).encode()[:-1]])
def test_an_answer_that_cannot_be_read_tells_nothing(answer: bytes) -> None:
    clocks = Clocks()
    for peer in PEERS[:5]:
        note_clock(clocks.offsets, peer, answer, clocks.boot)
    assert clocks.offsets.compared == 0


@pytest.mark.parametrize("clock", [-1, LAST_SECOND + 1, 1.5, True, "7", None])
def test_a_clock_has_to_be_a_date(clock: object) -> None:
    fields = {"protocol": 1, "version": "1", "clock": clock}
    with pytest.raises(ValueError, match="clock"):
        HelloReply.model_validate(fields)
    assert HelloReply.model_validate({**fields, "clock": LAST_SECOND}).clock == LAST_SECOND
