"""What is known of rollout peers and validators outlives a restart, whatever the disk does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.chain.store import Store
from protocol.disk import StoreFailed
from protocol.events.events import Notice
from protocol.rollouts.trust import MAX_KNOWN, WRITE_S, TrustScores, TrustStore
from protocol.wire.identity import Identity, PeerId

ANN, BOB, CID = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(3))


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
