"""Tasks of a volunteer in a run of real processes: offered, admitted, solved, and there for who comes late or is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peer.errors import ExitCode
from protocol.events import events as ev
from tests.e2e.swarm import ROLLOUT_RUN, Peer, Swarm

pytestmark = pytest.mark.slow

TASKS = [
    {
        "problem_id": f"letter {number}",
        "task_type": "exact_answer",
        "prompt": f"say {chr(97 + number)}\n",
        "verification_info": {"ground_truth": chr(97 + number)},
    }
    for number in range(20)
]
EASY = {**TASKS[0], "problem_id": "easy", "solve_rate": 1.0, "samples": 8}
"""What no peer may have a problem of."""


def listed(swarm: Swarm, peer: Peer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(swarm.command(peer.folder, "tasks", "list", "--json"))["sets"]
    return found


def amended(peer: Peer) -> list[dict[str, Any]]:
    return [details for details in peer.notices(ev.NoticeCode.TASKS_AMENDED) if details["sets"]]


def test_tasks_of_a_volunteer_are_admitted_and_solved(tmp_path: Path) -> None:
    with Swarm.created(tmp_path, ROLLOUT_RUN) as swarm:
        organiser = swarm.peer("organiser").start("--processes", "2")
        volunteer = swarm.peer("volunteer").start("--role", "rollout")
        swarm.until("versions of rollouts", lambda: organiser.heard(ev.RolloutsUsed))

        source = tmp_path / "letters.jsonl"
        source.write_text("\n".join(map(json.dumps, [*TASKS, {**TASKS[0], "problem_id": "x", "prompt": ""}])))
        said = swarm.command(volunteer.folder, "tasks", "publish", str(source), code=ExitCode.INPUT)
        assert "line 21: prompt is empty" in said
        source.write_text("\n".join(map(json.dumps, [EASY, *TASKS])))
        said = swarm.command(volunteer.folder, "tasks", "publish", str(source))
        assert "20 of 21, 1 left out by a solve_rate" in said
        name = said.split()[1]
        swarm.until("the organiser to hear of it", lambda: organiser.notices(ev.NoticeCode.TASK_SET_OFFERED))
        said = swarm.command(volunteer.folder, "tasks", "admit", name[:12], code=ExitCode.FAILED)
        assert "only the run's organiser can admit tasks" in said
        assert "letter 0: say a" in swarm.command(organiser.folder, "tasks", "show", name[:12])
        swarm.command(organiser.folder, "tasks", "admit", name[:12], "--percent", "80")

        swarm.until("it to be in force", lambda: amended(organiser) and amended(volunteer))
        assert amended(organiser)[0] == amended(volunteer)[0], "from one version on for everybody"
        first = amended(organiser)[0]["version"]
        swarm.until(
            "rollouts of its tasks", lambda: any(event.version >= first for event in volunteer.heard(ev.RolloutsGenerated))
        )
        late = swarm.peer("late").start("--role", "rollout")
        swarm.until("the newcomer to make rollouts", lambda: late.heard(ev.RolloutsGenerated))
        swarm.until("their tasks to be counted", lambda: listed(swarm, organiser)[0]["attempts"])
        organiser.kill()
        organiser.start()
        used = len(organiser.heard(ev.RolloutsUsed))
        swarm.until("the organiser to learn again", lambda: len(organiser.heard(ev.RolloutsUsed)) > used)
        (counted,) = listed(swarm, organiser)
        assert counted["state"] == "admitted" and counted["here"] and counted["attempts"] > 0 and counted["tasks"] == 20
        assert not organiser.heard(ev.RolloutPeerSetAside)
