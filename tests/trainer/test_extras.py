"""Commands that install an extra: right for each way in which this program was installed, and carried out."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trainer.extras import ROOT, command_for, install_command, packages_of, torch_command

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PRODUCT = ("kernels", "protocol", "trainer", "peer", "tui")


def test_an_extra_has_the_packages_that_pyproject_names() -> None:
    assert packages_of("web") == EXTRAS["web"] and packages_of("none") == []
    assert install_command("none").endswith(shlex.quote(f"{ROOT}[none]")), "a copy that is not installed names itself"


@pytest.mark.slow
def test_code_names_extras_that_there_are_and_guides_no_distribution() -> None:
    named = set[str]()
    for path in (path for package in PRODUCT for path in (ROOT / package).rglob("*.py")):
        text = path.read_text()
        assert "pip install" not in text.replace("uv pip install", ""), f"{path}: install_command says how here"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "install_command":
                named |= {str(word.value) for word in node.args if isinstance(word, ast.Constant)}
    assert {"web", "hf", "data", "eval", "rl", "vllm"} <= named <= {*EXTRAS}
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert "install 'manyhands" not in path.read_text(), path


@pytest.mark.parametrize(
    ("mark", "command"),
    [
        ("pipx_metadata.json", "pipx inject {name} 'a>=1'"),
        ("uv-receipt.toml", "uv pip install --python {prefix} 'a>=1'"),
        ("pyvenv.cfg", f"{sys.executable} -m pip install 'a>=1'"),
    ],
)
def test_the_command_reaches_the_environment_of_this_program(
    mark: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "many hands"
    prefix.mkdir()
    (prefix / mark).touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    assert command_for(["a>=1"]) == command.format(prefix=shlex.quote(str(prefix)), name=shlex.quote(prefix.name))
    assert "force" in command_for(["a"], again=True) or "--reinstall" in command_for(["a"], again=True)
    if mark == "pyvenv.cfg":
        monkeypatch.setattr("trainer.extras.find_spec", lambda name: None)
        assert command_for(["a"]).startswith("uv pip install --python "), "an environment without pip is one of uv"


@pytest.mark.parametrize("build", ["CUDA", "ROCm"])
@pytest.mark.parametrize("mark", ["pipx_metadata.json", "uv-receipt.toml", "pyvenv.cfg"])
def test_another_build_of_torch_is_installed_where_this_program_is(
    mark: str, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build for CUDA is on PyPI, where pip and pipx look; uv finds the others."""
    (tmp_path / mark).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    command = torch_command("2.13.0+cpu", build)
    if build == "CUDA" and mark != "uv-receipt.toml":
        assert command == command_for(["torch==2.13.0"], again=True)
    else:
        assert command == (
            f"uv pip install --reinstall-package torch --torch-backend auto --python {tmp_path} torch==2.13.0"
        )


STAND_IN = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "manyhands"
version = "0.0.1"
[project.optional-dependencies]
web = ["iniconfig>=2"]
[tool.setuptools]
py-modules = ["stand_in"]
"""
"""A small distribution in place of ours, whose extra is small as well."""
ASK = "from extras import install_command; print(install_command('web'))"
INSTALLERS = {
    "uv": ("{tools}/uv tool install -q {source}",),
    "pipx": ("{tools}/pipx install -q {source}",),
}


@pytest.mark.slow
@pytest.mark.parametrize("installer", INSTALLERS)
def test_the_command_for_an_installation_is_carried_out(installer: str, tmp_path: Path) -> None:
    """With the real installers: afterwards this program's Python, and no other, imports the package of the extra."""
    source, tools = tmp_path / "source", tmp_path / "tools"
    source.mkdir()
    (source / "pyproject.toml").write_text(STAND_IN + '[project.scripts]\nstand-in = "stand_in:main"\n')
    (source / "stand_in.py").write_text("def main() -> None: ...\n")
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "UV_TOOL_DIR": str(tmp_path / "uv"),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PYTHONPATH": "",
        **_index_of_pip(),
    }

    def carry_out(command: str) -> str:
        words = shlex.split(command.format(tools=tools / "bin", home=tmp_path, source=source))
        done = subprocess.run(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    carry_out(f"{{tools}}/python -m pip install -q {installer}")
    for command in INSTALLERS[installer]:
        carry_out(command)
    python = tmp_path / {"uv": "uv/manyhands/bin/python", "pipx": "pipx/venvs/manyhands/bin/python"}[installer]
    (tmp_path / "asked").mkdir()
    shutil.copy(ROOT / "trainer/extras.py", tmp_path / "asked")  # beside ROOT may be the metadata of this very distribution
    environment["PYTHONPATH"] = str(tmp_path / "asked")
    command = carry_out(f"{python} -c {shlex.quote(ASK)}").strip()
    environment["PYTHONPATH"] = ""
    carry_out(command)
    carry_out(f"{python} -c 'import iniconfig'")


def _index_of_pip() -> dict[str, str]:
    """The index that pip is configured to use here, as uv reads it."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = subprocess.run(asked, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL).stdout.strip()
    return {"UV_DEFAULT_INDEX": index} if index else {}
