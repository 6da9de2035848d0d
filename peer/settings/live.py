"""The settings of a running peer: those that it was started with, and what was changed since.

A change holds until the process ends, over the flag, variable or file that gave the value before, and whoever has
subscribed is told.  What the file says is the next start's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peer.errors import ExitCode, PeerError
from peer.settings.file import DEFAULT, Effective, Gathered
from peer.settings.preferences import SETTINGS, Preferences

# ------------------------------------------------------------------------------------------------------------------------
# Settings as a program reads them: in JSON, and over the control socket.


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


# ------------------------------------------------------------------------------------------------------------------------


CHANGED = "changed while running"
"""The source of what was changed."""


class LiveSettings:
    """gathered: as it was started.  `on_change` is called after each change."""

    def __init__(self, gathered: Gathered) -> None:
        self.path, self._settings = gathered.path, dict(gathered.settings)
        self.on_change: Callable[[], None] = lambda: None

    @property
    def now(self) -> Preferences:
        """The values in force."""
        return self.gathered().preferences

    def gathered(self) -> Gathered:
        """The values in force, and where each comes from."""
        return Gathered(self.path, dict(self._settings))

    def change(self, name: str, text: str | None) -> None:
        """Set one from now on; None for its default.  Raises PeerError with what is wrong, and nothing is changed."""
        value = read_change(name, text)
        self._settings[name] = Effective(value, DEFAULT if text is None else CHANGED)
        self.on_change()


def read_change(name: str, text: str | None) -> Any:
    """The value that a running peer is to take.  Raises PeerError."""
    setting = SETTINGS.get(name)
    if setting is None or not setting.live:
        raise PeerError(f"{name} is nothing that a running peer changes; it takes effect at the next start", ExitCode.USAGE)
    if text is None:
        return setting.default
    try:
        return setting.read(text)
    except ValueError as error:
        raise PeerError(f"{name}: {error}", ExitCode.USAGE) from error
