"""Reported faults, run again: `python -m tests.reports FOLDER [--only WORD]`.

FOLDER has `cases/NAME/` and `attacks/`, as people who report faults send them.  A case has model folders and data, and
`run*.toml` (a run is created of it), `show.py` or `run.sh` (each gets this checkout's root).  Attacks are scripts whose
arguments stand in the README, in backquotes.  Everything is copied first, runs here, and its last lines are printed: what
is right then stands in the README beside it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEADLINE_S = 900.0
LINES = 6


def commands(folder: Path) -> Iterator[tuple[str, list[str], Path]]:
    """Name, command and working folder of everything that can be run in a copy of the reports."""
    python = sys.executable
    for case in sorted((folder / "cases").iterdir()):
        for run in sorted(case.glob("run*.toml")):
            yield f"{case.name} {run.name}", [python, "-m", "peer", "run", "create", run.name, "--port", "4999"], case
        for script, program in (("show.py", python), ("run.sh", "bash")):
            if (case / script).exists():
                yield f"{case.name} {script}", [program, script, str(ROOT)], case
    attacks = folder / "attacks"
    told = dict.fromkeys(re.findall(r"`(\w+\.(?:py|sh)(?: [^`]*)?)`", (attacks / "README.md").read_text()))
    for words in (command.split() for command in told):
        if (attacks / words[0]).exists() and words[0] != "NAME.py":
            yield " ".join(words), [python if words[0].endswith(".py") else "bash", *words], attacks


def outcome(command: list[str], folder: Path) -> tuple[str, list[str]]:
    """Exit code and last lines of a command, which gets a data directory of its own."""
    with tempfile.TemporaryDirectory() as data:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PEER_DATA_DIR": data, "OMP_NUM_THREADS": "1"}
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, errors="replace"
            )
        except subprocess.TimeoutExpired:
            return "no end", []
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return f"exit {ended.returncode}", lines[-LINES:]


def main() -> None:
    """Print a block for each report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names that have this in them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as copy:
        for part in ("cases", "attacks"):
            shutil.copytree(arguments.folder / part, Path(copy) / part, copy_function=shutil.copyfile)
        for each in ROOT.iterdir():  # attacks are written to be run in a checkout, and write beside themselves
            if not (Path(copy) / "attacks" / each.name).exists():
                (Path(copy) / "attacks" / each.name).symlink_to(each)
        for name, command, folder in commands(Path(copy)):
            if arguments.only in name:
                code, lines = outcome(command, folder)
                print(f"== {name}: {code}", *(f"   {line[:200]}" for line in lines), sep="\n", flush=True)


if __name__ == "__main__":
    main()
