"""The settings file peer.toml: its path, its contents, and changes of single keys.

PEER_CONFIG names another file; if the variable is empty, no file is read.  The default is peer.toml in the user's folder of
configurations.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peer.errors import ExitCode, PeerError
from peer.files import write_atomically
from peer.settings.preferences import SETTINGS, Preferences
from peer.settings.values import read_name
from protocol.run.toml_text import MAX_SAID, decode_toml, parse_toml

MAX_FILE_BYTES = 1 << 20


def config_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the file, which need not exist; None if PEER_CONFIG is empty."""
    chosen = environment.get("PEER_CONFIG")
    if chosen is not None:
        return Path(os.path.expanduser(chosen)).absolute() if chosen else None
    import platformdirs

    return Path(platformdirs.user_config_dir("manyhands", appauthor=False)).absolute() / "peer.toml"


def read_config(path: Path) -> dict[str, str]:
    """Return the settings in the file, as text, by name; empty if there is no file.  Raises PeerError."""
    found: dict[str, str] = {}
    for name, value in parse_toml(_text_of(path)).items():
        setting = known(name, f"{path}: ")
        if setting in found:
            raise PeerError(f"{path}: {setting} appears twice, also as {name}; remove one of them", ExitCode.USAGE)
        found[setting] = _as_text(path, name, value)
    return found


def _text_of(path: Path) -> str:
    """Return the text of a TOML file; empty if there is no file.  Raises PeerError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ""
    if len(raw) > MAX_FILE_BYTES:
        raise PeerError(f"{path} is larger than {MAX_FILE_BYTES} bytes, too large for a settings file", ExitCode.USAGE)
    try:
        text = decode_toml(raw)
        parse_toml(text)
    except ValueError as error:
        raise PeerError(
            f"{path} is not TOML ({str(error)[:MAX_SAID]}); correct it, or move it away", ExitCode.USAGE
        ) from error
    return text


def known(name: str, where: str = "") -> str:
    """Return the name of a setting; raises PeerError with a suggestion for an unknown name."""
    wanted = name.replace("-", "_")
    if wanted in SETTINGS:
        return wanted
    like = difflib.get_close_matches(wanted, SETTINGS, n=1)
    remedy = f"did you mean {like[0]}?" if like else "`peer config` lists them"
    raise PeerError(f"{where}there is no setting {name}; {remedy}", ExitCode.USAGE)


def write_setting(path: Path, name: str, text: str | None) -> None:
    """Set a key, or remove it if `text` is None; keep the rest of the file with its comments.  Raises PeerError, OSError."""
    import tomlkit

    read_config(path)  # raises for a mistake that is in the file already
    document = tomlkit.parse(_text_of(path))
    key = next((key for key in document if known(key) == name), name)
    if text is None:
        document.pop(key, None)
    else:
        value = SETTINGS[name].read(text)
        document[key] = value if isinstance(value, (bool, int)) and str(value) == text else text
    target = path.resolve()  # replace the target of a link, not the link
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, tomlkit.dumps(document).encode())


def _as_text(path: Path, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise PeerError(f"{path}: {name} is neither text nor a number; write it as `peer config` shows it", ExitCode.USAGE)


# ------------------------------------------------------------------------------------------------------------------------
# Value of each setting, with its source: the first of the command line, the environment and peer.toml that gives a value.


DEFAULT = "default"


@dataclass(frozen=True)
class Effective:
    """Value in force.  source: the flag, the variable, the path of the file, or "default"."""

    value: Any
    source: str


@dataclass(frozen=True)
class Gathered:
    """All settings, by name.  path: path of peer.toml; None if no file is read."""

    path: Path | None
    settings: dict[str, Effective]

    @property
    def preferences(self) -> Preferences:
        """Values alone."""
        return Preferences(**{name: effective.value for name, effective in self.settings.items()})


def gather(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Gathered:
    """Gather all settings.  flags: values of the command line, by name; None for missing ones.  Raises PeerError."""
    path = config_file(environment)
    written = read_config(path) if path is not None else {}
    settings = {}
    for name, setting in SETTINGS.items():
        if flags.get(name) is not None:
            settings[name] = Effective(flags[name], setting.flag)
        elif environment.get(setting.variable):
            settings[name] = _read(name, environment[setting.variable], setting.variable)
        elif name in written:
            settings[name] = _read(name, written[name], str(path))
        else:
            settings[name] = Effective(setting.default, DEFAULT)
    return Gathered(path, settings)


def _read(name: str, text: str, source: str) -> Effective:
    where = source if source == SETTINGS[name].variable else f"{source}: {name}"
    try:
        return Effective(SETTINGS[name].read(text), source)
    except ValueError as error:
        raise PeerError(f"{where}: {error}", ExitCode.USAGE) from error


# ------------------------------------------------------------------------------------------------------------------------
# Name that a person gave with --name, kept in the data directory, so that the next `peer join` there does not need the flag.
#
# The kept name counts only if neither the command line nor the environment nor peer.toml gives a name.


FILE_NAME = "name"
MAX_NAME_BYTES = 1024
KEPT = "kept from --name"
"""Source of a name that was given at an earlier start."""


def with_kept_name(gathered: Gathered, folder: Path) -> Gathered:
    """Return the settings, with the kept name if no other source gives a name.  Blocking."""
    name = _kept(folder)
    if gathered.settings["name"].source != DEFAULT or not name:
        return gathered
    return replace(gathered, settings={**gathered.settings, "name": Effective(name, KEPT)})


def keep_name(gathered: Gathered, folder: Path) -> None:
    """Store the command line's name, if any; an empty name removes the stored one.  Blocking.  Raises OSError."""
    effective = gathered.settings["name"]
    if effective.source != SETTINGS["name"].flag:
        return
    if effective.value:
        write_atomically(folder / FILE_NAME, effective.value.encode())
    else:
        (folder / FILE_NAME).unlink(missing_ok=True)


def _kept(folder: Path) -> str:
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return read_name(file.read(MAX_NAME_BYTES).decode())
    except (OSError, ValueError):
        return ""


# ------------------------------------------------------------------------------------------------------------------------
# Settings for programs: in JSON, and over the control socket.


def as_map(gathered: Gathered, only: str | None = None) -> dict[str, Any]:
    """Return the settings as a map.  file: path of peer.toml, or None.  settings: list of maps, or of `only` alone."""
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
    """Return True if JSON can represent `value`."""
    return value is None or isinstance(value, (bool, int, float, str, tuple))


# ------------------------------------------------------------------------------------------------------------------------
# Settings of a running peer: the values at its start, and the changes since then.
#
# A change holds until the process ends, and takes precedence over the flag, variable or file that gave the earlier value.
# The contents of the file count at the next start.


CHANGED = "changed while running"
"""Source of a changed value."""


class LiveSettings:
    """Settings that may change.  gathered: the values at the start."""

    def __init__(self, gathered: Gathered) -> None:
        self.path, self._settings = gathered.path, dict(gathered.settings)
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    @property
    def now(self) -> Preferences:
        """Values in force."""
        return self.gathered().preferences

    def gathered(self) -> Gathered:
        """Return the values in force, with their sources."""
        return Gathered(self.path, dict(self._settings))

    def change(self, name: str, text: str | None) -> None:
        """Change a setting from now on; None for its default.  On an error, raises PeerError and changes nothing."""
        value = read_change(name, text)
        self._settings[name] = Effective(value, DEFAULT if text is None else CHANGED)
        for listener in self._listeners:
            listener()


def read_change(name: str, text: str | None) -> Any:
    """Return the new value for a running peer.  Raises PeerError."""
    setting = SETTINGS.get(name)
    if setting is None or not setting.live:
        raise PeerError(f"{name} cannot change while the peer runs; it takes effect at the next start", ExitCode.USAGE)
    if text is None:
        return setting.default
    try:
        return setting.read(text)
    except ValueError as error:
        raise PeerError(f"{name}: {error}", ExitCode.USAGE) from error
