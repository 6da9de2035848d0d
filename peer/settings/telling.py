"""Settings as a program reads them: in JSON, and over the control socket."""

from __future__ import annotations

from typing import Any

from peer.settings.preferences import SETTINGS
from peer.settings.sources import Gathered


def as_map(gathered: Gathered, only: str | None = None) -> dict[str, Any]:
    """file: of peer.toml, None where none is read.  settings: a map for each, or for the one called `only`."""
    settings = [
        {
            "name": name,
            "value": effective.value if _is_plain(effective.value) else SETTINGS[name].shown(effective.value),
            "shown": SETTINGS[name].shown(effective.value),
            "source": effective.source,
            "told": SETTINGS[name].told(effective.value),
            "default": SETTINGS[name].default,
            "default_told": SETTINGS[name].told(SETTINGS[name].default),
            "meaning": SETTINGS[name].meaning,
            "live": SETTINGS[name].live,
        }
        for name, effective in gathered.settings.items()
        if only in (None, name)
    ]
    return {"file": str(gathered.path) if gathered.path is not None else None, "settings": settings}


def _is_plain(value: Any) -> bool:
    """Whether JSON has a form of its own for it."""
    return value is None or isinstance(value, (bool, int, float, str, tuple))
