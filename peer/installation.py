"""Check that Python would import the packages of this program, and not other ones with the same names.

`kernels`, `trainer` and other packages have common names.  Another distribution may use the same name, and so may a folder
or file in the folder in which `python -m peer` is started.  The first one on Python's path hides the others, and a package
installed into the same environment overwrites ours.  Our packages are beside this one, and the `__init__` of each names its
owner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from peer.errors import PeerError

ROOMS = ("kernels", "protocol", "trainer", "tui")
ROOT = Path(__file__).resolve().parent.parent
"""Folder that holds our packages, here called rooms."""
OWNER = b"manyhands"
"""Word in the `__init__` of each room."""
REMEDY = "install manyhands in an environment of its own, with pipx or uv tool"


def check_rooms() -> None:
    """Raise PeerError if another package would be imported instead of one of ours; imports nothing."""
    for name in ROOMS:
        ours = ROOT / name / "__init__.py"
        try:
            is_ours = OWNER in ours.read_bytes().lower()
        except OSError:
            is_ours = False
        if not is_ours:
            raise PeerError(
                f"{ours.parent} is not a package of manyhands: it is damaged, or another package of that name was "
                f"installed over it; {REMEDY}"
            )
        found = _place(name)
        if found is not None and found != ours:
            shown = found.parent if found.name == "__init__.py" else found
            raise PeerError(
                f"{shown} hides manyhands' package of the same name; remove it from Python's path (PYTHONPATH, or "
                f"the folder you are in), or {REMEDY}"
            )


def _place(name: str) -> Path | None:
    """Return the file that `import name` would run; None if there is no such file."""
    spec = find_spec(name)
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None and spec.has_location else None


def python_path(environment: Mapping[str, str]) -> str:
    """Return the value of PYTHONPATH with which a process finds our packages first."""
    others = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(ROOT)]
    return os.pathsep.join([str(ROOT), *others])
