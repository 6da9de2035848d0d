"""Builds the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "constraints.txt")


def build(folder: Path) -> Path:
    """The wheel in `folder`, built from a copy of the tree, so that nothing is left in this one."""
    shutil.copytree(ROOT, folder / "tree", ignore=LEFT_OUT)
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=folder / "tree", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))
