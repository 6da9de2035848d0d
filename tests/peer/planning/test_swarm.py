"""Descriptions of peers, from options and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.errors import PeerError
from peer.planning.swarm import (
    PlannedPeers,
    read_groups,
)

OPTIONS = {"speed": "5000", "up": "20mbit", "down": "100mbit", "rtt": "40ms", "online": "always"}


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("speed", "fast", "fast is not a speed; write tokens a second"),
        ("speed", "20..2", "ends below its start"),
        ("rtt", "40", "write a time such as 40ms"),
        ("online", "8h", "as 8h/16h"),
        ("speed", "9" * 400, "is not a speed"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_remedy(field: str, text: str, said: str) -> None:
    with pytest.raises(PeerError, match=said):
        read_groups("8", OPTIONS | {field: text})


def test_peers_of_a_range_reach_from_end_to_end() -> None:
    found = PlannedPeers.of(read_groups("3", OPTIONS | {"speed": "100..10000"}))
    assert sorted(found.speed) == pytest.approx([100, 1000, 10_000])
    assert list(found.up) == [2.5e6] * 3


def test_a_file_has_groups_and_options_fill_them_up(tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    path.write_text('[[peers]]\ncount = 2\nspeed = 40000\nonline = "8h/16h"\n[[peers]]\nup = "1gbit"\n')
    homes, server = read_groups(str(path), OPTIONS)
    assert (homes.count, homes.speed.low, homes.up.low, homes.online.online_s) == (2, 40_000, 2.5e6, 8 * 3600)
    assert (server.count, server.speed.low, server.up.low, server.online.offline_s) == (1, 5000, 125e6, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no groups of peers"),
        ("[[peers]]\nspeeed = 1", "group 1: there is no field speeed"),
        ("[[peers]]\ncount = 0", "a whole number from 1"),
        ("[[peers]", "not valid TOML"),
        ("#" * (1 << 20) + "\n[[peers]]", "more than 1048576 bytes"),
        ("[[peers]]\na" + ".a" * 20_000 + " = 1", "line 2 has more than 64 dots"),
        ("[[peers]]\ncount = 90000\n[[peers]]\ncount = 90000", "more than 100000 peers"),
    ],
)
def test_a_mistake_in_a_file_names_its_group(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    path.write_text(text)
    with pytest.raises(PeerError, match=said):
        read_groups(str(path), OPTIONS)
