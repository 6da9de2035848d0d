"""The packages that this program is made of, and whether Python would really import ours.

`kernels`, `trainer` and others are plain names: distributions of the same names exist, and so do folders and files of
people who start `python -m peer` there.  Whichever comes first on Python's path hides the other, and one installed into
the same environment overwrites the other.  Ours lie beside this one, and each says in its `__init__` whose it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from peer.errors import PeerError

ROOMS = ("kernels", "protocol", "trainer", "tui")
ROOT = Path(__file__).resolve().parent.parent
"""Where the rooms lie."""
OWNER = b"manyhands"
"""Named by the `__init__` of each room."""
REMEDY = "install manyhands in an environment of its own, with pipx or uv tool"


def check_rooms() -> None:
    """Raise PeerError when another package would be imported in place of one of ours; imports nothing."""
    for name in ROOMS:
        ours = ROOT / name / "__init__.py"
        if not _names_us(ours):
            raise PeerError(
                f"{ours.parent} is not manyhands' own: it is damaged, or another package of that name was "
                f"installed over it; {REMEDY}"
            )
        found = _place(name)
        if found is not None and found != ours:
            shown = found.parent if found.name == "__init__.py" else found
            raise PeerError(
                f"{shown} hides the part of manyhands of that name; take it off Python's path (PYTHONPATH, or "
                f"the folder you are in), or {REMEDY}"
            )


def _names_us(init: Path) -> bool:
    try:
        return OWNER in init.read_bytes()
    except OSError:
        return False


def _place(name: str) -> Path | None:
    """The file that `import name` would run; None when that is no file."""
    spec = find_spec(name)
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None and spec.has_location else None


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For a Python process of ours: it finds our packages as this process does, and none in the folder it is started in."""
    others = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(ROOT)]
    return {**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), *others]), "PYTHONSAFEPATH": "1"}
