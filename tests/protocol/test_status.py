"""The status has one definition: what JSON shows, and what is read of another version."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from peer.commands.status import describe_status
from protocol.events.status import REMEDIES, CopiesStatus, PeerStatus, RolloutStatus, SwarmPeer, WhyIdle
from tests.protocol.example_status import COMPUTER, FACTS, GIVEN, NEIGHBOUR, TRAINING, status
from tui.panels import round
from tui.panels.drawing import Look
from tui.picture import Picture

TROUBLE = Path(__file__).parents[2] / "docs" / "guides" / "troubleshooting.md"


def test_every_reason_to_be_idle_is_explained_and_has_a_remedy() -> None:
    table = TROUBLE.read_text().split("## Why is my peer idle\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| `")][1:]
    assert {name.strip("`") for name, _, _ in rows} == {why.value for why in WhyIdle if why is not WhyIdle.BUSY}
    assert all(len(row) == 3 and all(row) for row in rows), "each with its meaning and its remedy"
    assert {name.strip("`"): todo for name, _, todo in rows} == {why.value: text for why, text in REMEDIES.items()}


@pytest.mark.parametrize("why", WhyIdle)
def test_a_status_says_what_to_do_about_its_reason(why: WhyIdle) -> None:
    shown = status(why_idle=why.value)
    assert shown.why_remedy == REMEDIES.get(why, "") == PeerStatus.around(shown, pid=1, uptime_s=1.0).why_remedy
    assert (f"to do     {shown.why_remedy}" in describe_status(shown)) == (why is not WhyIdle.BUSY)
    picture = Picture()
    picture.update(replace(shown, swarm=[NEIGHBOUR] * 9))
    for height in (3, 4, 12):
        drawn = [row.plain for row in round.draw(picture, 78, height, Look())][:height]
        assert (f"to do: {shown.why_remedy}" in drawn) == (why is not WhyIdle.BUSY), "whole, also where there is little room"


def test_a_reason_that_only_a_newer_peer_has_is_taken_without_a_remedy() -> None:
    assert PeerStatus.from_fields({**TRAINING.to_fields(), "why_idle": "asleep", "why_remedy": "wake it"}).why_remedy == ""


def test_a_status_survives_the_socket_and_json() -> None:
    shown = status(
        loss=None, round_left_s=1.5, invitation="mh1x", run_definition=FACTS, computer=COMPUTER, contribution=GIVEN
    )
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
        {},
        {**TRAINING.to_fields(), "swarm": [NEIGHBOUR]},
        {**TRAINING.to_fields(), "swarm": [{"peer": "x"}]},
        {**TRAINING.to_fields(), "rollouts": 3},
        {**TRAINING.to_fields(), "run_definition": 3},
        {**TRAINING.to_fields(), "computer": {"gpus": ["x"]}},
        {**TRAINING.to_fields(), "run_definition": {"family": "Llama"}},
        {**TRAINING.to_fields(), "run_definition": {**asdict(FACTS), "mixtures": [{}]}},
    ],
)
def test_what_is_no_status_is_a_value_error(given: object) -> None:
    with pytest.raises(ValueError, match="no status"):
        PeerStatus.from_fields(given)


ROLLOUTS = RolloutStatus(
    version=7,
    reward=0.5,
    generated=3,
    accepted=2,
    rejected=1,
    waiting=4,
    used=5,
    accepted_tokens=90,
    generated_tokens_per_s=50,
    verified_per_s=1.5,
)
BUSY: dict[str, Any] = {"phase": "exchanging", "fragment": 2, "fragments": 4, "steps": 20, "ahead_inner_steps": 20}
BLOCKS = {"peer": 3_000_000, "seed": 0, "mirror": 2_000, "disk": 5}
LONE = CopiesStatus(peers=4, answered=4, wanted=3, total_bytes=1000, lone_bytes=410, here_only_bytes=400)
MISSING = CopiesStatus(peers=4, answered=3, wanted=3, total_bytes=1000, missing_bytes=1, lone_bytes=410, mirrors=2)
SHORT = CopiesStatus(peers=4, answered=4, wanted=3, total_bytes=1000, short_bytes=1)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"block_bytes": BLOCKS}, "data read 3.0 MB from peers, 2.0 kB from mirrors, 5 B from this disk"),
        ({"block_bytes": dict.fromkeys(BLOCKS, 0)}, "data read none yet"),
        ({"copies": CopiesStatus(total_bytes=5_000_000)}, "copies    5.0 MB of data, and no other peer to keep them"),
        ({"copies": CopiesStatus(peers=4, total_bytes=10)}, "copies    no other peer has said yet what it has"),
        ({"copies": LONE}, "copies    40 % at this peer only, 1 % at one other peer only, of 1.0 kB"),
        ({"copies": MISSING}, "copies    1 % at no peer, 41 % at one peer only, of 1.0 kB, beside 2 mirrors"),
        ({"copies": SHORT}, "copies    all at two peers or more, 99 % at 3"),
        ({"copies": replace(SHORT, short_bytes=0)}, "copies    all at 3 peers or more"),
        ({**BUSY, "ahead_steps": 3}, "round     12, fragment 3 of 4, step 20 of 20"),
        ({**BUSY, "ahead_steps": 3}, "ahead     step 3 of 20 of round 13"),
        ({**BUSY, "ahead_steps": 5, "why_idle": "exchanging"}, "ahead     step 5 of 20 of round 13, waiting"),
        (
            {"role": "rollout", "rollouts": ROLLOUTS},
            "rollouts  version 7, reward 0.500; 3 batches made at 50 tokens/s: "
            "2 accepted, 1 rejected, 4 waiting, 90 tokens learned from",
        ),
        (
            {"role": "validator", "rollouts": ROLLOUTS},
            "rollouts  version 7, reward 0.500; verifying 1.5 rollouts/s: 2 accepted, 1 rejected, 4 waiting",
        ),
        (
            {"role": "trainer", "rollouts": ROLLOUTS},
            "rollouts  version 7, reward 0.500; learned from 5 batches: 2 accepted, 1 rejected, 4 waiting",
        ),
    ],
)
def test_a_status_says_what_is_so_and_comes_back_from_the_socket(told: dict[str, Any], line: str) -> None:
    shown = status(**told)
    assert line in describe_status(shown)
    assert PeerStatus.from_fields(shown.to_fields()) == shown
    plain = "\n".join(describe_status(status()))
    assert not any(word in plain for word in ("data read", "copies", "fragment", "ahead", "rollouts"))


def test_what_only_a_newer_version_knows_of_rollouts_is_left_out() -> None:
    shown = status(role="rollout", rollouts=ROLLOUTS)
    newer = {**shown.to_fields(), "rollouts": {**shown.to_fields()["rollouts"], "heat": 3}}
    assert PeerStatus.from_fields(newer) == shown
