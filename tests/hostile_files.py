"""Files that stand in the place of another, in a folder that somebody gives to a person."""

from __future__ import annotations

import os
from pathlib import Path


def pipe(path: Path) -> None:
    """Whoever opens it waits for somebody who writes into it."""
    path.unlink()
    os.mkfifo(path)


def link_out(path: Path) -> None:
    """The same content, three folders above."""
    away = path.parents[2] / f"away-{path.name}"
    path.rename(away)
    path.symlink_to(away)
