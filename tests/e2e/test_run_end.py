"""A run to its end with real peers: it says so, its state is exported, newcomers get it, and its organiser extends it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peer.errors import ExitCode
from protocol.events import events as ev
from tests.e2e.swarm import TINY_MODEL, Peer, Swarm

ROOT = Path(__file__).parents[2]
SHORT_RUN = (
    TINY_MODEL.replace("total_rounds = 100_000", "total_rounds = 2")
    + """
[rounds]
inner_steps = 4
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
)
PAIR = SHORT_RUN.replace("total_rounds = 2", "total_rounds = 3").replace(
    "inner_steps = 4", "inner_steps = 20\nmin_members = 2"
)


def exported(swarm: Swarm, peer: Peer, name: str) -> tuple[str, Path]:
    folder = swarm.folder / name
    return swarm.command(peer.folder, "export", str(folder)), folder


def says_the_end(peer: Peer) -> bool:
    return bool(peer.notices(ev.NoticeCode.RUN_ENDED))


def run_files() -> dict[str, str]:
    """Return the run files of a document and of the examples that one peer can carry to their end.

    README.md has the same as the document.
    """
    found = {name: (ROOT / "examples" / name).read_text() for name in ("tiny.toml", "chat.toml")}
    text = (ROOT / "docs/guides/organiser.md").read_text()
    (found["organiser.md"],) = re.findall(r"^```toml\n(name = \"our first run\".*?)^```", text, re.DOTALL | re.M)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(run_files()))
def test_the_run_of_a_document_is_run_to_its_end(name: str, tmp_path: Path) -> None:
    text = re.sub(r"^(total_\w+|min_members) = .*\n", "", run_files()[name], flags=re.M)
    text = re.sub(r"inner_steps = \d+", "inner_steps = 2", text).replace("sequence_length = 512", "sequence_length = 64")
    text = re.sub(r"^dim = 256$", "dim = 64", re.sub(r"^layers = 6$", "layers = 2", text, flags=re.M), flags=re.M)
    with Swarm(tmp_path, "total_rounds = 2\n" + text) as swarm:
        (tmp_path / "chats.jsonl").write_bytes((ROOT / "examples" / "chats.jsonl").read_bytes())
        created = swarm.command(swarm.place("alone"), "run", "create", str(swarm.run_file))
        assert "2 rounds" in created and "organiser   …" in created
        alone = swarm.peer("alone", str(swarm.run_file)).start("--until-end")
        assert alone.wait() == ExitCode.OK
        log = alone.log.replace(" ", "")
        assert "this run trains" in alone.log and '"code":"run_ended"' in log and '"code":"run_extended"' not in log
        said, folder = exported(swarm, alone, "model")
        assert "final state of the run" in said and (folder / "model.safetensors").is_file()


@pytest.mark.slow
def test_an_ended_run_serves_newcomers_survives_a_kill_and_is_extended(tmp_path: Path) -> None:
    with Swarm(tmp_path, PAIR) as swarm:
        organiser = swarm.peer("organiser", str(swarm.run_file)).start()
        swarm.until("it waits for others", lambda: organiser.heard(ev.PhaseChanged))
        invitation = organiser.status()["invitation"]
        told = swarm.command(swarm.place("curious"), "run", "show", "--all", invitation)
        assert "3 rounds" in told and "total_rounds = 3" in told, told
        other = swarm.peer("other", invitation).start()
        swarm.until("the final record", lambda: 2 in other.commits)
        other.kill()
        swarm.until("the end at the organiser's", lambda: says_the_end(organiser))
        other.start()
        swarm.until("the end at a peer that was killed", lambda: says_the_end(other))
        late = swarm.peer("late", invitation).start()
        swarm.until("the end at a newcomer", lambda: says_the_end(late))
        assert not late.heard(ev.ComputeProgress)
        status = late.status()
        assert status["run_ended"] and status["why_idle"] == "run ended" and status["round"] == 3
        assert (status["goal_done"], status["goal_total"], status["goal_unit"]) == (3, 3, "rounds")
        assert "the run has ended" in swarm.command(late.folder, "status")
        said, _ = exported(swarm, late, "final")
        assert "final state of the run" in said

        refused = swarm.command(organiser.folder, "run", "extend", "--rounds", "3", code=ExitCode.INPUT)
        assert "the run's total is 3 rounds already" in refused
        assert "only the run's organiser" in swarm.command(
            late.folder, "run", "extend", "--rounds", "5", code=ExitCode.INPUT
        )
        assert "use --rounds" in swarm.command(organiser.folder, "run", "extend", "--tokens", "9", code=ExitCode.INPUT)
        assert "5 rounds" in swarm.command(organiser.folder, "run", "extend", "--rounds", "5")
        swarm.until(
            "the new end at every peer", lambda: all(len(each.notices(ev.NoticeCode.RUN_ENDED)) == 2 for each in swarm.up())
        )
        swarm.equal(5)
        swarm.until(
            "word of the extension at every peer",
            lambda: all(each.notices(ev.NoticeCode.RUN_EXTENDED) for each in swarm.up()),
        )
