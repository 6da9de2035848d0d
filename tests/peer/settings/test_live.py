"""Settings that change while a peer runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.errors import PeerError
from peer.settings.file import gather
from peer.settings.live import CHANGED, LiveSettings
from peer.settings.preferences import SETTINGS

ENVIRONMENT = {"PEER_CONFIG": "", "PEER_SCHEDULE": "mon"}


def test_what_was_given_at_the_start_stays_until_it_is_changed(tmp_path: Path) -> None:
    live, heard = LiveSettings(gather({"max_up": 5e6}, ENVIRONMENT)), list[float | None]()
    live.on_change = lambda: heard.append(live.now.max_up)
    sources = {name: each.source for name, each in live.gathered().settings.items()}
    assert (sources["max_up"], sources["schedule"], sources["max_down"]) == ("--max-up", "PEER_SCHEDULE", "default")
    live.change("max_up", "20Mbit")
    live.change("max_up", None)
    live.change("schedule", "tue 08:00-09:00")
    found = live.gathered().settings
    assert heard == [2.5e6, None, None] and found["max_up"].source == "default"
    assert live.now.schedule is not None and live.now.schedule.text == "tue 08:00-09:00"
    assert found["schedule"].source == CHANGED


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("max_up", "much", "max_up: much is no rate"),
        ("port", "4002", "takes effect at the next start"),
        ("colour", "red", "colour is nothing that a running peer changes"),
    ],
)
def test_what_is_wrong_changes_nothing(name: str, text: str, said: str) -> None:
    live, heard = LiveSettings(gather({}, ENVIRONMENT)), list[None]()
    live.on_change = lambda: heard.append(None)
    before = live.gathered()
    with pytest.raises(PeerError, match=said):
        live.change(name, text)
    assert live.gathered() == before and heard == []


def test_each_setting_that_moves_nothing_else_is_live() -> None:
    assert {name for name, setting in SETTINGS.items() if not setting.live} == {
        "name",
        "role",
        "port",
        "announce",
        "port_mapping",
        "relay",
        "generator",
        "metrics_port",
        "owner",
        "log_format",
    }
