"""Histories of peers: who is checked how often, who is set aside, and what of it outlives a restart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.chain.store import Store
from protocol.disk import StoreFailed
from protocol.events.events import Notice
from protocol.rollouts.trust import FADES, MAX_KNOWN, MOST_ACCUSERS, RARELY, WRITE_S, TrustScores, TrustStore
from protocol.wire.identity import Identity, PeerId

ANN, BOB, CID, DOT = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(4))
PLAIN = [PeerId(f"peer {number}") for number in range(7)]


def scores(ann: int = 0) -> TrustScores:
    """Ann was right so often."""
    made = TrustScores()
    for _ in range(ann):
        made.right(ANN)
    return made


def test_all_of_a_stranger_is_checked_and_a_clean_history_makes_checks_rare() -> None:
    standing = TrustScores()
    assert standing.chance(ANN) == 1.0
    standing.right(ANN)
    assert standing.chance(ANN) == FADES
    for _ in range(100):
        standing.right(ANN)
    assert standing.chance(ANN) == RARELY


def test_who_is_set_aside_stays_so_for_the_first_reason() -> None:
    standing = TrustScores()
    assert standing.set_aside(ANN, "one") and not standing.set_aside(ANN, "two")
    assert standing.aside(ANN) == "one" and standing.chance(ANN) == 1.0


def test_two_accusers_and_more_electors_than_can_be_liars_are_needed() -> None:
    of_four, of_seven = frozenset([CID, DOT, *PLAIN[:2]]), frozenset([CID, DOT, *PLAIN[:5]])
    standing = TrustScores()
    assert not standing.reproduced(ANN, [BOB, CID], of_four)
    assert not standing.reproduced(ANN, [BOB, DOT], of_four), "one accuser"
    assert standing.reproduced(ANN, [CID, DOT], of_four)
    other = TrustScores()
    assert not other.reproduced(ANN, [BOB, PLAIN[6]], of_four), "no elector"
    assert not other.reproduced(ANN, [BOB, PLAIN[6], DOT], of_four), "one elector, which may lie"
    assert not other.reproduced(ANN, [CID, BOB], of_seven), "two of them, which may lie"
    assert other.reproduced(ANN, [PLAIN[0], BOB], of_seven)


def test_who_is_no_elector_any_more_counts_as_none() -> None:
    """Else liars that vote one after the other were as good as many."""
    standing = TrustScores()
    assert not standing.reproduced(ANN, [BOB, PLAIN[6], CID], frozenset([CID, *PLAIN[:3]]))
    assert not standing.reproduced(ANN, [BOB, PLAIN[6], DOT], frozenset([DOT, *PLAIN[:3]]))


def test_what_is_remembered_is_bounded_and_who_was_set_aside_is_forgotten_last() -> None:
    standing = TrustScores()
    standing.set_aside(ANN, "why")
    for number in range(2 * MAX_KNOWN):
        standing.right(PeerId(f"stranger {number}"))
    assert standing.aside(ANN) == "why" and standing.clean(PeerId("stranger 0")) == 0
    assert len(standing._known) == MAX_KNOWN


def test_a_crowd_that_is_set_aside_takes_nobodys_clean_history() -> None:
    """Two batches of one number set a key aside, and keys are free."""
    standing = scores(ann=3)
    for number in range(2 * MAX_KNOWN):
        standing.set_aside(PeerId(f"liar {number}"), "it lied")
    assert standing.clean(ANN) == 3 and standing.aside(PeerId(f"liar {2 * MAX_KNOWN - 1}"))


def test_a_crowd_that_was_right_once_takes_no_longer_history() -> None:
    """To agree with a verdict is free for a validator."""
    standing = scores(ann=3)
    for number in range(2 * MAX_KNOWN):
        standing.right(PeerId(f"key {number}"))
    assert standing.clean(ANN) == 3
    standing.right(BOB)
    standing.right(BOB)
    assert standing.clean(BOB) == 2, "who is new is remembered as well"


def test_accusers_are_bounded_for_keys_are_free() -> None:
    standing, electors = TrustScores(), frozenset([BOB, CID, *PLAIN[:2]])
    for number in range(1000):
        assert not standing.reproduced(ANN, [PeerId(f"key {number}"), BOB], electors)
    assert standing.reproduced(ANN, [PeerId("one more"), CID], electors)
    assert len(standing._known[ANN].accusers) == MOST_ACCUSERS


# -- on disk --------------------------------------------------------------------------------------------------------------


async def inline(function: Any, *arguments: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return function(*arguments)


class Life:
    """Of one peer, on a disk."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Any] = []
        self.standing, self.store = TrustScores(), Store(folder)
        session: Any = SimpleNamespace(emit=self.events.append)
        self.kept = TrustStore(session, self.standing, self.store, inline)
        self.writes = 0
        write = self.store.keep_standing

        def counted(raw: bytes) -> None:
            self.writes += 1
            write(raw)

        self.store.keep_standing = counted  # type: ignore[method-assign]

    def keep(self, now: float) -> None:
        trio.run(self.kept.keep, now)

    @classmethod
    def again(cls, folder: Path) -> Life:
        life = cls(folder)
        trio.run(life.kept.recall)
        return life


def test_a_liar_stays_set_aside_and_a_clean_history_counts(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.standing.set_aside(ANN, "a rollout that we checked: malformed")
    for _ in range(3):
        life.standing.right(BOB)
    life.standing.anomaly(CID)
    life.keep(0)
    again = Life.again(tmp_path)
    assert again.standing.histories() == [(ANN, 0, "a rollout that we checked: malformed"), (BOB, 3, "")]
    assert not again.standing.set_aside(ANN, "once more"), "and is not told of as new"
    assert [event.level for event in again.events if isinstance(event, Notice)] == ["info"]


def test_what_makes_us_believe_less_is_written_at_once_and_the_rest_now_and_then(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.keep(0)
    assert life.writes == 0
    for now in range(int(WRITE_S)):
        life.standing.right(ANN)
        life.keep(now)
    assert life.writes == 1
    life.standing.anomaly(ANN)
    life.keep(WRITE_S - 1)
    assert life.writes == 2
    life.standing.set_aside(ANN, "why")
    life.keep(WRITE_S - 1)
    life.keep(WRITE_S - 1)
    assert life.writes == 3 and Life.again(tmp_path).standing.aside(ANN) == "why"


def test_a_disk_that_fails_is_tried_again_later(tmp_path: Path) -> None:
    life = Life(tmp_path)
    write, life.store.keep_standing = life.store.keep_standing, failing  # type: ignore[method-assign]
    life.standing.set_aside(ANN, "why")
    life.keep(0)
    assert [event.level for event in life.events] == ["warning"]
    life.store.keep_standing = write  # type: ignore[method-assign]
    life.keep(1)
    assert life.writes == 0
    life.keep(WRITE_S)
    assert life.writes == 1 and Life.again(tmp_path).standing.aside(ANN) == "why"


def failing(raw: bytes) -> None:
    raise StoreFailed("the disk is full")


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-1], lambda raw: b"", lambda raw: raw[:40] + b"x" + raw[41:]])
def test_a_torn_file_counts_as_absent(spoil: Any, tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.standing.set_aside(ANN, "why")
    life.keep(0)
    file = tmp_path / "standing"
    file.write_bytes(spoil(file.read_bytes()))
    assert Life.again(tmp_path).standing.histories() == []


def test_a_file_with_other_fields_is_told_of_and_counts_as_absent(tmp_path: Path) -> None:
    Store(tmp_path).keep_standing(b"\x80")
    again = Life.again(tmp_path)
    assert again.standing.histories() == [] and [event.level for event in again.events] == ["warning"]


def test_the_most_that_is_remembered_can_be_written_and_read(tmp_path: Path) -> None:
    life = Life(tmp_path)
    peers = [PeerId(ANN[:-4] + f"{number:04}".replace("0", "z")) for number in range(MAX_KNOWN)]
    for peer in peers:
        life.standing.set_aside(peer, "x" * 500)
    life.keep(0)
    assert len(Life.again(tmp_path).standing.histories()) == len(life.standing.histories()) == MAX_KNOWN
