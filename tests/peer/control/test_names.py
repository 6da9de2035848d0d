"""Names of members come from the log, and from the file in which a peer keeps them when the log forgets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from peer.control import names
from peer.control.client import Stamped
from peer.control.event_log import to_line
from peer.control.names import FILE_NAME, ChosenNames, NameKeeper, chosen_names_in, kept_names
from protocol.events.events import PeerJoined, Started
from protocol.events.status import PeerStatus
from tests.protocol.example_status import NEIGHBOUR, status

ME, OTHER, THIRD, STRANGER = (f"12D3KooW{'x' * 38}{end}" for end in ("ABCDEF", "UVWXYZ", "GHIJKL", "MNPQRS"))


def logged(folder: Path, *events: PeerJoined | Started) -> None:
    lines = [to_line(Stamped(1.0, 1.0, event)) for event in events]
    (folder / "events.jsonl").write_text("\n".join(["{", *lines, "PeerJoined", ""]))


def test_the_last_name_and_team_of_a_member_count(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({ME: ["cellar", "bats"], THIRD: ["hut", "owls"]}))
    logged(
        tmp_path,
        Started(ME, "old", "", "", "0", 1, [], "", "owls"),
        Started(ME, "attic", "", "", "0", 1, [], ""),
        PeerJoined(OTHER, "kitchen", "bats"),
        PeerJoined(OTHER, "kitchen", "owls"),
        PeerJoined(STRANGER, "nobody", "owls"),
    )
    chosen = chosen_names_in(tmp_path, {ME, OTHER, THIRD})
    assert chosen.names == {ME: "attic", OTHER: "kitchen", THIRD: "hut"}
    assert chosen.teams == {ME: "", OTHER: "owls", THIRD: "owls"}
    running = chosen.updated(status(peer=ME, team="bats", swarm=[replace(NEIGHBOUR, peer=OTHER, team="")]))
    assert running.teams == {ME: "bats", OTHER: "", THIRD: "owls"}, "who left its team is in none"


def test_a_peer_keeps_the_names_of_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_KEPT", 2)
    shown: list[PeerStatus] = []

    async def keep() -> None:
        keeper = NameKeeper(tmp_path, lambda: shown[-1], lambda peer: peer != STRANGER)
        for swarm in (
            [replace(NEIGHBOUR, peer=OTHER, name="kitchen", team="owls"), replace(NEIGHBOUR, peer=STRANGER)],
            [replace(NEIGHBOUR, peer=OTHER, name="k" * 90, team="\u202eowls")],
            [replace(NEIGHBOUR, peer=THIRD, name="hut", team="bats")],
        ):
            shown.append(status(peer=ME, name="attic", team="owls", swarm=swarm))
            await keeper.save()
            found.append(kept_names(tmp_path))

    found: list[ChosenNames] = []
    trio.run(keep)
    assert found[0] == ChosenNames({ME: "attic", OTHER: "kitchen"}, {ME: "owls", OTHER: "owls"})
    assert found[1] == ChosenNames({ME: "attic", OTHER: "k" * 40}, {ME: "owls", OTHER: ""})
    assert found[2].names == {ME: "attic", THIRD: "hut"}, "of too many, those that were seen last stay"


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"null", b'{"p":1}', b'{"p":["n"]}', b'{"p":["n","t","x"]}', b"[" * 100_000, b'{"p":["n",', b"\xff"],
)
def test_a_damaged_file_names_nobody(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert kept_names(tmp_path) == ChosenNames() == chosen_names_in(tmp_path, {ME})
