"""The guides for volunteers, organisers and weights, and README.md, typed as they are written, on a clean computer.

What differs: the command's name is that of this interpreter, nobody is met but on this computer, placeholders are filled in.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from protocol.events import events as ev
from tests.e2e.person import Person
from tests.e2e.swarm import Swarm, invitation_in
from tests.e2e.terminal import unwrapped, why_not

ROOT = Path(__file__).parents[2]
README, GUIDES = ROOT / "README.md", ROOT / "docs" / "guides"
VOLUNTEER, ORGANISER, WEIGHTS = (GUIDES / f"{name}.md" for name in ("volunteer", "organiser", "weights"))
ORGANISING = "An organiser's first five minutes"
WHY_NOT = why_not()


def blocks(guide: Path, language: str, heading: str = "") -> list[str]:
    """Those below `heading`, or all of them."""
    text = guide.read_text()
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def lines(guide: Path, heading: str = "") -> list[list[str]]:
    """Its commands for a shell, as words."""
    return [shlex.split(line, comments=True) for block in blocks(guide, "sh", heading) for line in block.splitlines()]


def filled(typed: list[list[str]], placeholders: dict[str, str]) -> list[list[str]]:
    """Commands with their placeholders filled in."""
    return [[placeholders.get(word, word) for word in words] for words in typed]


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.slow
def test_a_volunteers_first_ten_minutes(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        founder = swarm.peer("founder").start()
        swarm.until("it waits for others", lambda: founder.heard(ev.PhaseChanged))
        invitation, ann = founder.status()["invitation"], Person(swarm, "ann")
        doctor, join, *controls = filled(lines(VOLUNTEER), {"mh1…": invitation})
        demo, joined, *controls_again = filled(lines(README, "A volunteer's first ten minutes"), {"mh1…": invitation})
        assert joined == join
        leave = controls.index(["peer", "leave"])
        ann.types(doctor)
        with ann.opens(join) as terminal:
            terminal.until("Training")
            swarm.until("a round of both", lambda: any(len(founder.members_of(each)) == 2 for each in founder.commits))
            terminal.type("q")
            assert unwrapped("keeps running in the background") in unwrapped(terminal.until("exit code 0"))
        for words in controls[:leave]:
            ann.types(words)
        changes = [words for words in controls if words[:2] == ["peer", "config"] and len(words) == 4]
        assert (ann.folder / "peer.toml").read_text().count("=") == len(changes)
        ann.types(controls[leave])
        printed = ann.types(controls[leave + 1])
        run = next(word for word in printed.split() if re.fullmatch("[0-9a-f]{8,}", word))
        again, ledger = filled(controls[leave + 2 :], {"RUN": run})
        before = max(founder.commits)
        with ann.opens(again) as terminal:
            swarm.until(
                "a round of both", lambda: any(len(founder.members_of(n)) == 2 for n in founder.commits if n > before)
            )
            status, watch, replay, chat, *others = controls_again
            assert "round" in ann.types(status)
            ann.looks(watch, "founder")
            ann.looks(replay, "founder")
            with ann.opens(chat) as talk:
                talk.until("it completes texts")
                talk.type("The peers", "Enter")
                talk.type("/quit", "Enter")
                talk.until("exit code 0")
            assert others[-1] == ["peer", "leave"]
            for words in others:
                ann.types(words)
            terminal.until("exit code 0")
        assert founder.peer_id[-6:] in ann.types(ledger)
        with Person(swarm, "zoe").opens(demo) as terminal:
            assert "demo" in terminal.until("COMPUTING"), "alone, it founds the built-in run"
            terminal.type("C-c")
            terminal.until("exit code 0")


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.slow
def test_an_organisers_first_five_minutes(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        bob = Person(swarm, "bob")
        run_file, swarm_file, *_ = blocks(ORGANISER, "toml")
        assert [tomllib.loads(each) for each in blocks(README, "toml", ORGANISING)] == [tomllib.loads(run_file)]
        (bob.folder / "run.toml").write_text(run_file)
        (bob.folder / "swarm.toml").write_text(swarm_file)
        show, create, join, status, for_all, doctor, simulate, as_json, invite, bearer, page, *others = lines(ORGANISER)
        tensorboard, *_ = (words for words in others if words[1] == "track")
        tasks = [words for words in others if words[1] == "tasks"]
        assert {words[2] for words in tasks} == {"list", "show", "admit"}, "typed in tests/e2e/test_tasks.py"
        assert lines(README, ORGANISING) == [create, join]
        bob.types(show)
        assert "int4" in bob.types(simulate) and json.loads(bob.types(as_json))
        assert invitation_in(bob.types(create))
        with bob.opens(join) as terminal:
            terminal.until("waiting for more peers")
            assert " ".join(for_all[:3]) in bob.types(status)
            assert invitation_in(bob.types(for_all))
            bob.types(doctor)
            assert "Wrote" in bob.types(page) and (bob.folder / "www" / "index.html").is_file()
            assert tensorboard[1] == "track" and bob.types(tensorboard) == "", "no round yet"
            terminal.type("C-c")
            terminal.until("exit code 0")
        export, weights, push = lines(WEIGHTS, "In short")
        assert "--push" in push, "typed in tests/peer/hubs"
        with bob.opens(join) as terminal:
            terminal.until("waiting for more peers")
            guest = Person(swarm, "guest").types(["peer", "id"]).strip()
            for words in filled([invite, bearer], {"PEER_ID": guest}):
                assert invitation_in(bob.types(words))
            assert "rounds      0" in bob.types(export)
            assert bob.types(weights).startswith("run ")
            terminal.type("C-c")
            terminal.until("exit code 0")
        (begun,) = blocks(WEIGHTS, "toml", "In short")
        (bob.folder / "our-model").rename(bob.folder / tomllib.loads(begun)["model"]["from"])
        (bob.folder / "run.toml").write_text(begun)
        assert "6 layers of " in bob.types(show), "the folder's shape"
        bob.types(create)
