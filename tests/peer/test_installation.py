"""Packages of other people with the names of ours: whoever comes first on the path, the start says so in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from peer.environment import ChildKind, child_environment
from peer.errors import ExitCode
from peer.installation import ROOMS, ROOT

FOREIGN = 'raise SystemExit("a foreign package was imported")\n'


def start(folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`python -m peer --version`, started in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "peer", "--version"],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=300,
    )


def refusal(folder: Path, path: str) -> str:
    """The one sentence with which a start in `folder` with this PYTHONPATH ends."""
    done = start(folder, {**os.environ, "PYTHONPATH": path})
    assert done.returncode == ExitCode.FAILED, done.stdout + done.stderr
    assert done.stderr.startswith("peer: ") and done.stderr.count("\n") == 1 and done.stdout == "", done.stderr
    return done.stderr


def foreign_package(folder: Path, name: str) -> Path:
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FOREIGN)
    return package


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Our packages in a folder of their own, as an installation has them."""
    site = tmp_path / "site"
    for name in ("peer", *ROOMS):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    return site


@pytest.mark.parametrize("name", ROOMS)
def test_a_foreign_package_that_comes_first_on_the_path_is_named(tmp_path: Path, name: str) -> None:
    package = foreign_package(tmp_path / "foreign", name)
    said = refusal(tmp_path, f"{package.parent}:{ROOT}")
    assert str(package) in said and "pipx" in said and "PYTHONPATH" in said


def test_a_file_in_the_folder_that_one_is_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(FOREIGN)
    assert str(tmp_path / "trainer.py") in refusal(tmp_path, str(ROOT))


def test_a_foreign_package_installed_over_ours_is_named(copy: Path, tmp_path: Path) -> None:
    assert start(tmp_path, {**os.environ, "PYTHONPATH": str(copy)}).returncode == ExitCode.OK
    (copy / "kernels" / "__init__.py").write_text(FOREIGN)
    assert str(copy / "kernels") in refusal(tmp_path, str(copy))


def test_what_a_foreign_package_took_along_when_it_was_removed_is_missed(copy: Path, tmp_path: Path) -> None:
    (copy / "kernels" / "__init__.py").unlink()
    said = refusal(tmp_path, str(copy))
    assert str(copy / "kernels") in said and "damaged" in said


def test_processes_of_ours_do_not_look_into_the_folder_they_are_started_in(tmp_path: Path) -> None:
    for name in ("peer", *ROOMS):
        foreign_package(tmp_path, name)
    done = start(tmp_path, child_environment(ChildKind.HELPER))
    assert done.returncode == ExitCode.OK and done.stdout.startswith("peer "), done.stderr


def test_the_environment_of_a_child_does_not_grow_with_each_generation() -> None:
    once = child_environment(ChildKind.HELPER, {"PYTHONPATH": "/elsewhere", "HOME": "/home"})
    assert once == {"PYTHONPATH": f"{ROOT}:/elsewhere", "PYTHONSAFEPATH": "1", "HOME": "/home"}
    assert child_environment(ChildKind.HELPER, once) == once
