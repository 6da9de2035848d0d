"""`make` on a computer where something is missing: one sentence with the command that installs it, and nothing else.

Each test has a folder of programs for its PATH, so that it does not matter what this computer has.  Nothing is fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


class Computer:
    """A checkout, and the programs that there are."""

    def __init__(self, folder: Path) -> None:
        self.tree, self._programs = folder / "tree", folder / "bin"
        self.tree.mkdir()
        self._programs.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.tree)
        shutil.copytree(ROOT / ".ci", self.tree / ".ci")
        self.has_ours("sh", "make", "touch", "id", "env")

    def has_ours(self, *names: str) -> None:
        """Put programs of this computer on the PATH."""
        for name in names:
            found = shutil.which(name)
            assert found is not None, name
            (self._programs / name).symlink_to(found)

    def has(self, name: str, script: str) -> None:
        """Put a program on the PATH."""
        (self._programs / name).write_text(script)
        (self._programs / name).chmod(0o755)

    def has_python(self) -> None:
        """And an environment made from it, without pip: whatever asks pip for something gets nothing."""
        self.has("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self.run("python3", "-m", "venv", "--without-pip", ".venv")

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.tree,
            capture_output=True,
            text=True,
            timeout=300,
            env={"PATH": str(self._programs), "CC": "cc", **environment},
        )

    def refusal(self) -> str:
        """What `make venv` says, without make's own last line."""
        done = self.run("make", "-s", "venv")
        assert done.returncode != 0 and done.stdout == "", done.stdout
        lines = done.stderr.splitlines()
        assert len(lines) == 2 and lines[1].startswith("make: ***"), done.stderr
        assert not (self.tree / ".venv" / ".installed").exists()
        return lines[0]


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def test_an_environment_needs_no_compiler(computer: Computer) -> None:
    """py-libp2p requires a package that is published as source in C; a stand-in for it is installed instead."""
    computer.has_python()
    site = next((computer.tree / ".venv" / "lib").glob("python3*/site-packages"))
    (site / "pip.py").write_text("import sys; open('asked', 'w').write(' '.join(sys.argv[1:]))\n")
    done = computer.run("make", "-s", "venv")
    assert (done.returncode, done.stderr) == (0, "")
    assert "-c constraints.txt ./install/fastecdsa -e .[dev,oracle]" in (computer.tree / "asked").read_text()


def asked_for(computer: Computer, *settings: str) -> list[str]:
    """What `make demo` asks a stand-in of pip for, without installing anything."""
    computer.has_python()
    site = next((computer.tree / ".venv" / "lib").glob("python3*/site-packages"))
    (site / "pip.py").write_text("import sys; print(*sys.argv[1:], file=open('asked', 'a'))\n")
    done = computer.run("make", "-s", "demo", "UV=", *settings)
    assert "bin/peer" in done.stderr and (computer.tree / ".venv" / ".installed-demo").exists(), done.stderr
    return (computer.tree / "asked").read_text().splitlines()


def test_a_demo_needs_no_tests_and_without_a_gpu_no_cuda(computer: Computer) -> None:
    """The first answer of an index that cannot be reached is the last: what pip has elsewhere is taken then."""
    torch, ours = asked_for(computer, "TORCH_INDEX=https://example.org/cpu")
    assert torch.endswith("--no-deps --retries 1 --extra-index-url https://example.org/cpu torch")
    assert ours.endswith("-c constraints.txt ./install/fastecdsa -e .")


def test_a_demo_with_a_gpu_takes_the_build_of_torch_that_everybody_takes(computer: Computer) -> None:
    (ours,) = asked_for(computer, "TORCH_INDEX=")
    assert ours.endswith("-c constraints.txt ./install/fastecdsa -e .")


def test_a_demo_uses_uv_if_it_is_there_and_the_tests_find_pip_later(computer: Computer) -> None:
    computer.has("uv", '#!/bin/sh\necho "$@" >> asked\n')
    done = computer.run("make", "-s", "demo")
    assert "Python" not in done.stderr, "uv brings one"
    environment, packages = (computer.tree / "asked").read_text().splitlines()
    assert environment == "venv --quiet --seed --python 3.11 .venv"
    assert packages == (
        "pip install --quiet --python .venv/bin/python --torch-backend auto -c constraints.txt ./install/fastecdsa -e ."
    )


def test_an_environment_for_tests_is_enough_for_a_demo(computer: Computer) -> None:
    computer.has_python()
    for stamp in (".installed-demo", ".installed"):
        (computer.tree / ".venv" / stamp).touch()
    assert computer.run("make", "-n", "demo").stdout.splitlines()[0] == ".venv/bin/peer demo"


def test_ci_installs_a_compiler_for_the_tests_that_compile_layers(computer: Computer) -> None:
    computer.has_python()
    missing = computer.run("sh", ".ci/prerequisites", "packages", "python3")
    assert (missing.returncode, missing.stdout.split()[0], missing.stderr) == (0, "build-essential", "")
    computer.has("g++", "#!/bin/sh\n")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    wanted = [] if headers.exists() else [f"python{sys.version_info[0]}.{sys.version_info[1]}-dev"]
    assert computer.run("sh", ".ci/prerequisites", "packages", "python3").stdout.split() == wanted


def test_an_old_python_or_none_is_said(computer: Computer) -> None:
    assert "Python 3.11 or later is needed" in computer.refusal()
    for name in ("python3", "python3.11"):
        computer.has(name, "#!/bin/sh\nexit 1\n")
    assert "Python 3.11 or later is needed" in computer.refusal()


def test_a_python_without_venv_is_said(computer: Computer) -> None:
    computer.has("python3", f'#!/bin/sh\ncase $2 in *ensurepip*) exit 1 ;; esac\nexec {sys.executable} "$@"\n')
    assert computer.refusal().endswith(f"apt-get install python3.{sys.version_info[1]}-venv")


@pytest.mark.slow
def test_test_and_test_slow_divide_the_tests_between_them_and_test_all_runs_both(computer: Computer) -> None:
    computer.has_python()

    def tests_of(target: str) -> list[str]:
        printed = computer.run("make", "-n", target).stdout.splitlines()
        return [line.split("-m pytest ")[1] for line in printed if "-m pytest " in line]

    fast, slow = tests_of("test"), tests_of("test-slow")
    assert len(fast) == 2 and all(line.endswith('-m "not slow"') for line in fast), fast
    assert [line.replace("-m slow", '-m "not slow"') for line in slow] == fast
    assert tests_of("test-all") == fast + slow


@pytest.mark.parametrize("code", [0, 2])
def test_ci_ends_with_the_closing_lines_of_pytest_and_the_code_of_make(computer: Computer, code: int) -> None:
    computer.has_python()
    for name in ("g++", "apt-get", "sudo"):
        computer.has(name, "#!/bin/sh\n")
    computer.has_ours("bash", "dirname", "mktemp", "tee", "grep", "rm")
    for name in ("tmux", "ip", "tc", "nft", "miniupnpd"):
        computer.has(name, "#!/bin/sh\n")
    closing = ["7 passed, 2 deselected in 312.20s (0:05:12)", "1 failed, 2 passed in 3.10s"]
    (computer.tree / "Makefile").write_text(
        f"test-all:\n\t@echo '{closing[0]}'; echo more; echo '{closing[1]}'; exit {code}\n"
    )
    done = computer.run("bash", ".ci/run")
    assert done.stdout.splitlines()[-2:] == closing and (done.returncode == 0) == (code == 0), done


@pytest.mark.slow
def test_the_library_starts_with_the_stand_in_and_what_needs_the_real_package_is_refused() -> None:
    program = (
        "import fastecdsa, libp2p\nfrom libp2p.crypto.ecc import create_new_key_pair\nprint(fastecdsa.__file__)\n"
        "try:\n    create_new_key_pair('P-256')\nexcept NotImplementedError as error:\n    print(error)\n"
    )
    stand_in = ROOT / "install" / "fastecdsa"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(stand_in)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    where, said = done.stdout.splitlines()
    assert where.startswith(str(stand_in)) and "need the real fastecdsa" in said


def test_each_option_in_the_makefile_is_one_of_its_program() -> None:
    lines = re.findall(r"\$\(BIN\)/python -m ((?:tests|benchmarks)[\w.]*)(.*)", (ROOT / "Makefile").read_text())
    assert len(lines) >= 10
    for module, arguments in lines:
        path = ROOT / module.replace(".", "/")
        program = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        for option in re.findall(r"--[\w-]+", arguments):
            assert f'"{option}"' in program, f"python -m {module} has no {option}"
