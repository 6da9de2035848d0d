"""Each reason that a life of ordinary rounds has for computing nothing, with real peers: its sentence and its remedy.

The reasons that an owner's limits give are in test_rests.py and test_away.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from peer.commands.status import describe_status
from peer.control.client import ControlClient
from protocol.events import events as ev
from tests.e2e.swarm import Peer, Swarm

pytestmark = pytest.mark.slow

TROUBLESHOOTING = Path(__file__).parents[2] / "docs" / "guides" / "troubleshooting.md"
SENTENCES = {
    "starting": (
        r"reading the (records|state) from disk|the trainer (starts|computes) .+|listening for other peers of the run|"
        r"connected to .+"
    ),
    "waiting for peers": r"waiting for more peers \(1 of 2\)",
    "fetching state": r"catching up with the swarm",
    "waiting for members": r"\d ready, waiting for .+",
    "exchanging": r"with (1 other|2 others)",
    "committing": r"voted, waiting for the quorum|the result goes into the state",
    "trainer restarting": r"the trainer (stopped: |ended .+; last: ).+",
    "paused": r"paused by you; `peer resume` ends the pause",
    "not a trainer": r"this peer keeps and serves the state, it does not train",
}


def test_who_does_not_compute_has_one_reason_with_a_sentence_and_a_remedy(tmp_path: Path) -> None:
    remedies = dict(re.findall(r"^\| `([^`]+)` \| [^|]+ \| ([^|]+) \|$", TROUBLESHOOTING.read_text(), re.MULTILINE))
    with Swarm.created(tmp_path) as swarm:
        first, second, seed = (swarm.peer(name) for name in ("first", "second", "seed"))
        first.start()
        swarm.until("it waits for another", lambda: "waiting for peers" in reasons(first))
        screen = swarm.command(first.folder, "status")
        assert "starting: waiting for more peers (1 of 2)" in screen
        assert f"to do     {remedies['waiting for peers']}" in screen
        second.start()
        swarm.whole(first, second)

        seed.start("--role", "seed")
        swarm.until("a seed", lambda: "not a trainer" in reasons(seed))

        steps = len(second.heard(ev.ComputeProgress))
        swarm.until("it trains", lambda: len(second.heard(ev.ComputeProgress)) > steps)
        psutil.Process(second.status()["trainer_pid"]).kill()
        swarm.until("a trainer that stopped", lambda: "trainer restarting" in reasons(second))
        swarm.whole(first, second)

        ControlClient(second.folder).request("pause")
        swarm.until("a pause", lambda: "paused" in reasons(second))
        status = second.status()
        assert (status["why_idle"], status["why_remedy"]) == ("paused", remedies["paused"])
        ControlClient(second.folder).request("resume")
        swarm.whole(first, second)

        seen = {why: detail for peer in swarm.peers for why, detail in reasons(peer).items()}
        assert SENTENCES.keys() <= seen.keys()
        for why in SENTENCES:
            told = {event.detail for peer in swarm.peers for event in peer.heard(ev.PhaseChanged) if event.why_idle == why}
            assert any(re.fullmatch(SENTENCES[why], detail) for detail in told), (why, told)
            shown = describe_status(replace(ControlClient(first.folder).status(), why_idle=why, why_detail=min(told)))
            assert shown[2].endswith(f": {min(told)}") and shown[3] == f"to do     {remedies[why]}"
        for peer in swarm.peers:
            for event in peer.heard(ev.PhaseChanged):
                if event.phase == "computing":  # its trainer starts, or other programs use the computer
                    assert bool(event.why_idle) == bool(event.detail), event
                    continue
                busy = event.phase == "stopping" or (event.phase == "seeding" and event.why_idle == "")
                assert (event.why_idle == "") == busy and event.detail, event


def reasons(peer: Peer) -> dict[str, str]:
    """Those that it has told, each with its last sentence."""
    return {event.why_idle: event.detail for event in peer.heard(ev.PhaseChanged)}
