"""The sandbox under several users: tests that run as root try an ordinary user too, and root without namespaces.

That needs a Python that every user can read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.environments.test_sandbox import processes_with
from trainer.environments.confinement import Mechanism
from trainer.environments.sandbox import REQUIRED, Protections, protections

REPOSITORY = Path(__file__).parent.parent.parent.parent
NOBODY = 65534
PYTHON = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if os.path.exists(path)), None)


def _usable() -> bool:
    code = "import sys, ctypes; sys.exit(sys.version_info < (3, 11))"
    return PYTHON is not None and subprocess.run([PYTHON, "-c", code], check=False).returncode == 0


AS_ROOT: dict[str, tuple[int, set[Mechanism]]] = {
    "ordinary user without namespaces": (NOBODY, {Mechanism.NAMESPACES}),
    "root without namespaces": (0, {Mechanism.NAMESPACES}),
}
"""Name: user, mechanisms left out."""
CASES = AS_ROOT if os.geteuid() == 0 and _usable() else {"this user": (os.geteuid(), set[Mechanism]())}
HERE = protections().mechanisms
TRIED = [name for name, (_, left_out) in CASES.items() if Protections(HERE - left_out, {}).given >= REQUIRED]
"""Those that this computer can protect itself with; on a kernel with everything, all."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A copy of the sandbox that everybody can read, and a folder where everybody can write."""
    folder = Path(tempfile.mkdtemp(prefix="sandbox-users-", dir="/tmp"))
    folder.chmod(0o755)
    for source in ("trainer/__init__.py", "trainer/silence.py", "trainer/environments"):
        target = folder / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / source).is_dir():
            shutil.copytree(REPOSITORY / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / source, target)
    for name in ("attacks.py", "as_another.py"):
        shutil.copy(Path(__file__).parent / name, folder / name)
    (folder / "room").mkdir()
    (folder / "room").chmod(0o777)
    yield folder
    assert processes_with(str(folder)) == []
    shutil.rmtree(folder)


def _tried(place: Path, user: int, left_out: set[Mechanism]) -> dict[str, Any]:
    python = str(PYTHON) if os.geteuid() == 0 else sys.executable
    done = subprocess.run(
        [python, "-B", str(place / "as_another.py"), str(place / "room"), *left_out],
        user=user, group=user, extra_groups=[] if os.geteuid() == 0 else None, env={"SECRET": "hidden"}, cwd="/",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.slow
@pytest.mark.parametrize("case", TRIED)
def test_attacks_fail_for_every_user(case: str, place: Path) -> None:
    user, left_out = CASES[case]
    told = _tried(place, user, left_out)
    assert set(told["mechanisms"]) >= HERE - {Mechanism.OTHER_USER}
    assert set(told["succeeded"]) <= {"OUTLIVE", "KILL", "VARIABLES"}
    assert told["kept"] == "nobody's business"
    assert told["well"] == "well\n"
    assert told["left"] == []
    assert "hidden" not in told["said"]["VARIABLES"]
    assert {told["verdicts"][name] for name in ("LOOP", "SLEEP", "SILENT")} == {"out of time"}
    assert told["verdicts"]["SHOUT"] == "too much output"
    assert told["verdicts"]["CRASH"] == "killed"
