"""Log file of limited size: a full file is renamed, and the oldest one is replaced.

`logging.handlers.RotatingFileHandler` does not fit: data that a full disk refuses stays in its buffer and is written later,
torn and out of order, though it was counted as lost; and it counts characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class RotatingFile:
    """Log that appends to the first of `names` in `folder`; the others are the older files, newest first.

    max_bytes: of each file, if no single piece is larger.
    """

    def __init__(self, folder: Path, names: Sequence[str], max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._paths = [folder / name for name in names]

    def append(self, data: bytes) -> None:
        """Append `data`.  Raises OSError if the disk does not take it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        newest = self._paths[0]
        if newest.exists() and newest.stat().st_size + len(data) > self._max_bytes:
            self._rotate()
        with newest.open("ab") as file:
            file.write(data)

    def _rotate(self) -> None:
        for newer, older in reversed(list(zip(self._paths, self._paths[1:], strict=False))):
            if newer.exists():
                newer.replace(older)
        if len(self._paths) == 1:
            self._paths[0].unlink()
