"""The wheel in an environment of its own, outside the repository: the demo, the interface, and nothing left at the end.

The environment has the packages that the wheel requires, and no others: none of an extra or of the tests, and no Triton.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from packaging.requirements import Requirement

from peer.installation import ROOMS
from tests.e2e.person import Person
from tests.e2e.swarm import PATIENCE_S, TINY_MODEL, Swarm
from tests.e2e.terminal import unwrapped, why_not
from tests.wheel import build

pytestmark = pytest.mark.slow

WHY_NOT = why_not()
SMALL_RUN = TINY_MODEL + "[rounds]\ninner_steps = 3\n"
SMALL_DEMO = ["peer", "demo", "--peers", "2", "--rounds", "1", "--json", "--run"]
PANELS = ("1 Training", "2 Swarm", "3 Round", "4 Transfers", "5 Log", "6 Me")
PLACES = f"import {', '.join(('peer', *ROOMS))}; print(*({', '.join(f'{name}.__file__' for name in ('peer', *ROOMS))}))"


def required(requirements: list[str]) -> Iterator[importlib.metadata.Distribution]:
    """Yield the distributions that these requirements bring along, as this interpreter has them."""
    seen, left = set[str](), [Requirement(each) for each in requirements]
    while left:
        wanted = left.pop()
        if wanted.name not in seen and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            seen.add(wanted.name)
            found = importlib.metadata.distribution(wanted.name)
            left += [Requirement(each) for each in found.requires or []]
            yield found


def link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Link the files of a distribution into another environment."""
    for name in {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}:
        if not (site / name).exists():
            (site / name).symlink_to(Path(str(distribution.locate_file(name))))


class Installed(Person):
    """Somebody with the wheel in a new environment.  Of the packages that it requires, this interpreter's are used."""

    def __init__(self, swarm: Swarm, name: str) -> None:
        place = swarm.place("installed").resolve()
        self.programs = place / "environment" / "bin"
        super().__init__(swarm, name, [str(self.programs / "peer")])
        self.environment.pop("PYTHONPATH", None)
        self.runs([sys.executable, "-m", "venv", "--without-pip", "environment"], place)
        pip = [sys.executable, "-m", "pip", "--python", str(self.programs / "python"), "install", "--no-deps", "--no-index"]
        self.runs([*pip, "--quiet", str(build(place))], place)
        (site,) = place.glob("environment/lib/python*/site-packages")
        (metadata,) = site.glob("manyhands-*.dist-info")
        for distribution in required(importlib.metadata.Distribution.at(metadata).requires or []):
            link(distribution, site)
        absent = [name for name in ("pytest", "transformers", "triton") if (site / name).exists()]
        assert not absent and (site / "torch").exists()

    def runs(self, command: list[str], where: Path) -> str:
        """To its end; what it printed."""
        done = subprocess.run(command, cwd=where, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_wheel_alone_trains_and_shows_it(tmp_path: Path) -> None:
    with Swarm(tmp_path, SMALL_RUN) as swarm:
        ann = Installed(swarm, "ann")
        places = ann.runs([str(ann.programs / "python"), "-c", PLACES], ann.folder).split()
        assert len(places) == 1 + len(ROOMS) and all(ann.programs.parent in Path(each).parents for each in places)

        summary = json.loads(ann.types([*SMALL_DEMO, str(swarm.run_file)]))
        assert (summary["rounds"], len(set(summary["state_digests"].values()))) == (1, 1)

        with ann.opens(["peer", "join"]) as terminal:
            screen = terminal.until("COMPUTING")
            assert [panel for panel in PANELS if panel not in screen] == []
            terminal.type("q")
            assert unwrapped("keeps running in the background") in unwrapped(terminal.until("exit code 0"))
        status = json.loads(ann.types(["peer", "status", "--json"]))
        assert psutil.Process(status["pid"]).cmdline()[0] == str(ann.programs / "python")
        assert "run       demo" in ann.types(["peer", "status"])
        ann.types(["peer", "leave"])
        swarm.until("every process has ended", lambda: not swarm.processes())
        assert list((tmp_path / "tmp").iterdir()) == []
