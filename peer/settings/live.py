"""Settings of a running peer: the values at its start, and the changes since.

A change holds until the process ends, and outranks the flag, variable or file that gave the value before; `on_change` is
called.  The file's contents count at the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peer.errors import ExitCode, PeerError
from peer.settings.file import DEFAULT, Effective, Gathered
from peer.settings.preferences import SETTINGS, Preferences

# ------------------------------------------------------------------------------------------------------------------------
# Settings for programs: in JSON, and over the control socket.


def as_map(gathered: Gathered, only: str | None = None) -> dict[str, Any]:
    """Return the settings as a map.  file: of peer.toml, None if none is read.  settings: a map each, or only for `only`."""
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
    """Return True if JSON has a form of its own for `value`."""
    return value is None or isinstance(value, (bool, int, float, str, tuple))


# ------------------------------------------------------------------------------------------------------------------------


CHANGED = "changed while running"
"""Source of a changed value."""


class LiveSettings:
    """Settings that may change.  gathered: the values at the start.  `on_change` is called after each change."""

    def __init__(self, gathered: Gathered) -> None:
        self.path, self._settings = gathered.path, dict(gathered.settings)
        self.on_change: Callable[[], None] = lambda: None

    @property
    def now(self) -> Preferences:
        """Values in force."""
        return self.gathered().preferences

    def gathered(self) -> Gathered:
        """Return the values in force, with their sources."""
        return Gathered(self.path, dict(self._settings))

    def change(self, name: str, text: str | None) -> None:
        """Set one from now on; None for its default.  On an error, raises PeerError and changes nothing."""
        value = read_change(name, text)
        self._settings[name] = Effective(value, DEFAULT if text is None else CHANGED)
        self.on_change()


def read_change(name: str, text: str | None) -> Any:
    """Return the value that a running peer is to take.  Raises PeerError."""
    setting = SETTINGS.get(name)
    if setting is None or not setting.live:
        raise PeerError(f"{name} is nothing that a running peer changes; it takes effect at the next start", ExitCode.USAGE)
    if text is None:
        return setting.default
    try:
        return setting.read(text)
    except ValueError as error:
        raise PeerError(f"{name}: {error}", ExitCode.USAGE) from error
