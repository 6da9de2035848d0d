"""The guides for volunteers and organisers, typed as they are written, on a clean computer.

What differs: the command's name is that of this interpreter, nobody is met but on this computer, placeholders are filled in.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from protocol import events as ev
from tests.e2e.swarm import PATIENCE_S, Swarm
from tests.e2e.terminal import Terminal, unwrapped, why_not

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "docs" / name for name in ("volunteer.md", "organiser.md")]
WHY_NOT = why_not()


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs" / guide).read_text(), re.DOTALL | re.MULTILINE)


def lines(guide: str) -> list[list[str]]:
    """Its commands for a shell, as words."""
    return [shlex.split(line, comments=True) for block in blocks(guide, "sh") for line in block.splitlines()]


class Person:
    """Types commands in a folder of its own, on a computer that knows nothing of Manyhands."""

    def __init__(self, swarm: Swarm, name: str) -> None:
        self.swarm, self.folder = swarm, swarm.place(name)
        self.environment = {**swarm.environment, "PEER_DATA_DIR": str(self.folder / "data")}
        self.environment["PEER_CONFIG"] = str(self.folder / "peer.toml")
        evening = self.folder / "sensors.json"
        evening.write_text('{"now": "2026-11-23T19:00"}')
        self.environment["PEER_SENSORS"] = str(evening)

    def types(self, words: list[str], code: int = 0) -> str:
        """To the end of the command; what it printed."""
        done = subprocess.run(
            self.command(words), env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    def command(self, words: list[str]) -> list[str]:
        assert words[0] == "peer"
        local = ["--local"] if words[1] in ("join", "doctor") else []
        return [sys.executable, "-m", *words, *local]

    def joins(self, words: list[str]) -> Terminal:
        """With the interface, in a terminal of its own."""
        shell = f"cd {shlex.quote(str(self.folder))}; {shlex.join(self.command(words))}; echo exit code $?; cat"
        return Terminal(self.folder, ("sh", "-c", shell), self.environment, (120, 40))


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_volunteers_first_five_minutes(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.create_run()
        founder = swarm.peer("founder").start()
        swarm.until("it waits for others", lambda: founder.heard(ev.PhaseChanged))
        invitation, ann = founder.status()["invitation"], Person(swarm, "ann")
        typed = [[invitation if word == "mh1…" else word for word in words] for words in lines("volunteer.md")]
        doctor, join, *controls = typed
        leave = controls.index(["peer", "leave"])
        ann.types(doctor)
        with ann.joins(join) as terminal:
            terminal.until("Training")
            swarm.until("a round of both", lambda: any(len(founder.members_of(each)) == 2 for each in founder.commits))
            terminal.type("q")
            assert unwrapped("goes on in the background") in unwrapped(terminal.until("exit code 0"))
        for words in controls[:leave]:
            ann.types(words)
        assert (ann.folder / "peer.toml").read_text().count("=") == 5
        ann.types(controls[leave])
        printed = ann.types(controls[leave + 1])
        run = next(word for word in printed.split() if re.fullmatch("[0-9a-f]{8,}", word))
        again, ledger = ([run if word == "RUN" else word for word in words] for words in controls[leave + 2 :])
        before = max(founder.commits)
        with ann.joins(again) as terminal:
            swarm.until(
                "a round of both", lambda: any(len(founder.members_of(n)) == 2 for n in founder.commits if n > before)
            )
            terminal.type("C-c")
            terminal.until("exit code 0")
        assert founder.peer_id[-6:] in ann.types(ledger)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_an_organisers_first_five_minutes(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        bob = Person(swarm, "bob")
        (run_file,) = blocks("organiser.md", "toml")
        (bob.folder / "run.toml").write_text(run_file)
        show, create, join, status, doctor, invite, bearer = lines("organiser.md")
        bob.types(show)
        invitation = bob.types(create).split()[-1]
        assert invitation.startswith("mh1")
        with bob.joins(join) as terminal:
            terminal.until("waiting for 1 more peer")
            assert "mh1" in bob.types(status)
            bob.types(doctor)
            terminal.type("C-c")
            terminal.until("exit code 0")
        (bob.folder / "run.toml").write_text('admission = "invite"\n' + run_file)
        bob.types(create)
        with bob.joins(join) as terminal:
            terminal.until("waiting for 1 more peer")
            guest = Person(swarm, "guest").types(["peer", "id"]).strip()
            for words in (invite, bearer):
                assert bob.types([guest if word == "PEER_ID" else word for word in words]).split()[-1].startswith("mh1")
            terminal.type("C-c")
            terminal.until("exit code 0")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_what_a_guide_links_to_is_there(guide: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", guide.read_text()):
        assert (guide.parent / link.replace("%5B", "[").replace("%5D", "]")).exists(), link
