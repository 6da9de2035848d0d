"""The status has one definition: what the documentation lists, what JSON shows, what is read of another version."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from protocol.status import NodeStatus, PeerStatus, SwarmPeer
from protocol.wire.presence import WhyIdle
from tests.protocol.example_status import NEIGHBOUR, TRAINING, status

DOCUMENT = Path(__file__).parents[2] / "docs" / "commands.md"
TROUBLE = DOCUMENT.parent / "troubleshooting.md"


def documented(heading: str) -> list[str]:
    """The keys in the first column of the table below `heading`, in their order."""
    table = DOCUMENT.read_text().split(f"### {heading}\n")[1].split("\n\n|")[1].split("\n\n")[0]
    return [key for row in table.splitlines()[2:] for key in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_the_document_lists_every_key_in_its_order() -> None:
    assert documented("`peer status --json`") == ["running", *(each.name for each in fields(PeerStatus))]
    assert documented("`swarm` of `peer status --json`") == [each.name for each in fields(SwarmPeer)]


def test_every_reason_to_be_idle_is_explained() -> None:
    table = TROUBLE.read_text().split("## Why is my peer idle\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| `")][1:]
    assert {name.strip("`") for name, _, _ in rows} == {why.value for why in WhyIdle if why is not WhyIdle.BUSY}
    assert all(len(row) == 3 and all(row) for row in rows), "each with its meaning and its remedy"


def test_a_status_survives_the_socket_and_json() -> None:
    shown = status(loss=None, round_left_s=1.5, invitation="mh1x")
    assert PeerStatus.from_fields(json.loads(json.dumps(shown.to_fields()))) == shown
    assert list(shown.to_fields()) == [each.name for each in fields(PeerStatus)]
    assert list(shown.to_fields()["swarm"][0]) == [each.name for each in fields(SwarmPeer)]


def test_of_a_newer_version_what_is_known_is_taken_and_of_an_older_one_the_defaults() -> None:
    newer = {**TRAINING.to_fields(), "heat": 3, "swarm": [{**NEIGHBOUR_FIELDS, "heat": 4}]}
    assert PeerStatus.from_fields(newer) == TRAINING
    older = {key: value for key, value in TRAINING.to_fields().items() if key != "eval_percent"}
    assert PeerStatus.from_fields(older) == status(eval_percent=None)


NEIGHBOUR_FIELDS = TRAINING.to_fields()["swarm"][0]


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        "computing",
        {},
        {"peer": "x"},
        {**TRAINING.to_fields(), "swarm": [NEIGHBOUR]},
        {**TRAINING.to_fields(), "swarm": [{"peer": "x"}]},
        {**TRAINING.to_fields(), "swarm": 3},
    ],
)
def test_what_is_no_status_is_a_value_error(given: object) -> None:
    with pytest.raises(ValueError, match="no status"):
        PeerStatus.from_fields(given)


EARLY = {
    "peer": "p",
    "name": "n",
    "run": "r",
    "run_name": "",
    "role": "seed",
    "phase": "starting",
    "why_idle": "connecting",
    "why_detail": "",
    "round": 0,
    "tip": "",
    "final_rounds": 0,
    "final_tip": "",
    "settled_rounds": 0,
    "settled_tip": "",
    "state_rounds": 0,
    "state_digest": "",
    "peers": 0,
    "members": [],
    "tokens": 0,
    "steps": 0,
    "inner_steps": 0,
    "tokens_per_s": 0.0,
    "round_left_s": None,
    "loss": None,
    "eval_loss": None,
    "eval_rounds": None,
    "eval_by": None,
    "eval_percent": None,
    "up_bytes": 0,
    "down_bytes": 0,
    "trainer_pid": None,
    "version": "1",
    "swarm": [],
    "pid": 1,
    "uptime_s": 0.5,
    "addresses": ["/ip4/127.0.0.1/tcp/1"],
    "invitation": "",
    "invite_command": "",
    "reachable": "unknown",
    "reachability": {},
}
"""The status of a peer whose node does not run yet."""


def test_a_node_that_does_not_run_yet_has_done_nothing() -> None:
    early = NodeStatus(
        peer="p",
        name="n",
        run="r",
        run_name="",
        role="seed",
        phase="starting",
        why_idle="connecting",
        why_detail="",
        version="1",
    )
    around = PeerStatus.around(
        early, pid=1, uptime_s=0.5, addresses=["/ip4/127.0.0.1/tcp/1"], invitation="", invite_command=""
    )
    assert around.to_fields() == EARLY
