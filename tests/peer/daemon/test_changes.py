"""Changing a setting through the control socket: what is taken, and what is refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from peer.control.client import ControlError
from peer.daemon.requests import MAX_VALUE_CHARACTERS, Controls
from peer.errors import PeerError


class Peer:
    """Takes rates alone."""

    def __init__(self) -> None:
        self.changed: list[tuple[str, str | None, bool]] = []

    async def change(self, name: str, text: str | None, keep: bool) -> str | None:
        await trio.lowlevel.checkpoint()
        if name == "disk":
            raise OSError(28, "No space left on device")
        if not name.startswith("max_"):
            raise PeerError(f"{name} cannot change while the peer runs")
        self.changed.append((name, text, keep))
        return "/home/ada/peer.toml" if keep else None

    def settings(self) -> dict[str, Any]:
        return {"settings": []}


def ask(peer: Any, **fields: Any) -> dict[str, Any]:
    return trio.run(Controls(peer).commands()["set"], fields)


def test_a_change_is_handed_on_and_says_where_it_was_written() -> None:
    peer = Peer()
    assert ask(peer, name="max_up", value="20Mbit") == {"written": None, "settings": []}
    assert ask(peer, name="max_up", value=None, keep=True)["written"] == "/home/ada/peer.toml"
    assert peer.changed == [("max_up", "20Mbit", False), ("max_up", None, True)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "a change needs the name of a setting"),
        ({"name": "max_up", "value": "20", "keep": "yes"}, "a change needs the name of a setting"),
        ({"name": "max_up", "value": "2" * (MAX_VALUE_CHARACTERS + 1)}, "a value has at most"),
        ({"name": "port", "value": "1"}, "port cannot change while the peer runs"),
        ({"name": "disk", "value": "1"}, "No space left"),
    ],
)
def test_what_is_wrong_is_refused(fields: dict[str, Any], said: str) -> None:
    peer = Peer()
    with pytest.raises(ControlError, match=said):
        ask(peer, **fields)
    assert peer.changed == []
