"""Commands that install the packages of an extra, or another build of torch, into the environment that runs this program.

The program is not published under a name that can be installed, and `pip` on a person's path belongs to another environment
than the one that uv or pipx made for this program.
"""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "manyhands"
ROOT = Path(__file__).resolve().parent.parent
"""Folder of our packages: in a copy of the source, the folder with pyproject.toml."""


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra, as the installed distribution declares them; [] if it is not installed."""
    try:
        declared = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    parts = (line.partition(";") for line in declared)
    return [requirement.strip() for requirement, _, marker in parts if f'extra == "{extra}"' in marker]


def install_command(extra: str, *, again: bool = False) -> str:
    """Return the shell command that installs an extra here.

    again: True to install its packages even if they are installed.
    """
    return command_for(packages_of(extra) or [f"{ROOT}[{extra}]"], again=again)


def command_for(packages: list[str], *, again: bool = False) -> str:
    """Return the shell command that installs these packages into the environment of this process."""
    if _is_of_pipx():
        words = ["pipx", "inject", *(["--force"] if again else []), Path(sys.prefix).name]
    elif _is_of_uv():
        words = ["uv", "pip", "install", *(["--reinstall"] if again else []), "--python", sys.prefix]
    else:
        words = [sys.executable, "-m", "pip", "install", *(["--force-reinstall"] if again else [])]
    return shlex.join([*words, *packages])


def torch_command(version: str, build: str) -> str:
    """Return the shell command that puts another build of torch into the environment of this process.

    version: version of torch, which may name the installed build ("2.13.0+cpu").  build: "CUDA", which is PyPI's build, or
    another.
    """
    torch = f"torch=={version.partition('+')[0]}"
    if build == "CUDA" and (_is_of_pipx() or not _is_of_uv()):
        return command_for([torch], again=True)
    words = "uv pip install --reinstall-package torch --torch-backend auto --python".split()
    return shlex.join([*words, sys.prefix, torch])


def _is_of_pipx() -> bool:
    return (Path(sys.prefix) / "pipx_metadata.json").exists()


def _is_of_uv() -> bool:
    return (Path(sys.prefix) / "uv-receipt.toml").exists() or find_spec("pip") is None
