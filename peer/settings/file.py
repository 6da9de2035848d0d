"""The settings file peer.toml: its path, its contents, and changes of single keys.

PEER_CONFIG names another file; if the variable is empty, no file is read.  The default is peer.toml in the user's folder of
configurations.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.errors import ExitCode, PeerError
from peer.files import write_atomically
from peer.settings.preferences import SETTINGS, Preferences
from peer.settings.values import read_name, show_switch
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
            raise PeerError(f"{path}: {setting} appears twice, also as {name}; remove one of the two lines", ExitCode.USAGE)
        if not isinstance(value, (bool, str, int, float)):
            raise PeerError(
                f"{path}: {name} is neither text nor a number; write it as `peer config` shows it", ExitCode.USAGE
            )
        found[setting] = show_switch(value) if isinstance(value, bool) else str(value)
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


# ------------------------------------------------------------------------------------------------------------------------
# Value of each setting, with its source: the first of the command line, the environment and peer.toml that gives a value.
#
# While a peer runs, a change of a setting takes precedence over them until the process ends.  The contents of the file count
# at the next start.


DEFAULT = "default"
CHANGED = "changed while running"
"""Source of a changed value."""


@dataclass(frozen=True)
class Effective:
    """Value in force.  source: the flag, the variable, the path of the file, or "default"."""

    value: Any
    source: str


@dataclass
class Settings:
    """All settings, by name.  path: path of peer.toml; None if no file is read.  listeners: called after each change."""

    path: Path | None
    settings: dict[str, Effective]
    listeners: list[Callable[[], None]] = field(default_factory=list)

    @property
    def now(self) -> Preferences:
        """Values in force."""
        return Preferences(**{name: effective.value for name, effective in self.settings.items()})

    def change(self, name: str, text: str | None) -> None:
        """Change a setting from now on; None for its default.  On an error, raises PeerError and changes nothing."""
        check_change(name)
        self.settings[name] = Effective(SETTINGS[name].default, DEFAULT) if text is None else read_value(name, text, CHANGED)
        for listener in self.listeners:
            listener()

    def as_map(self) -> dict[str, Any]:
        """Return the settings for programs.  file: path of peer.toml, or None.  settings: a list of maps."""
        told = []
        for name, effective in self.settings.items():
            setting, value = SETTINGS[name], effective.value
            has_json = value is None or isinstance(value, (bool, int, float, str, tuple))
            told.append(
                {
                    "name": name,
                    "value": value if has_json else setting.shown(value),
                    "shown": setting.shown(value),
                    "source": effective.source,
                    "told": setting.told(value),
                    "default": setting.default,
                    "default_told": setting.told(setting.default),
                    "meaning": setting.meaning,
                    "live": setting.live,
                }
            )
        return {"file": str(self.path) if self.path is not None else None, "settings": told}


def gather(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """Gather all settings.  flags: values of the command line, by name; None for missing ones.  Raises PeerError."""
    path = config_file(environment)
    written = read_config(path) if path is not None else {}
    settings = {}
    for name, setting in SETTINGS.items():
        if flags.get(name) is not None:
            settings[name] = Effective(flags[name], setting.flag)
        elif environment.get(setting.variable):
            settings[name] = read_value(name, environment[setting.variable], setting.variable, setting.variable)
        elif name in written:
            settings[name] = read_value(name, written[name], str(path), f"{path}: {name}")
        else:
            settings[name] = Effective(setting.default, DEFAULT)
    return Settings(path, settings)


def read_value(name: str, text: str, source: str, where: str = "") -> Effective:
    """Return the value that `text` gives a setting.  where: beginning of the sentence of PeerError; default: the name."""
    try:
        return Effective(SETTINGS[name].read(text), source)
    except ValueError as error:
        raise PeerError(f"{where or name}: {error}", ExitCode.USAGE) from error


def check_change(name: str) -> None:
    """Raise PeerError unless the setting may change while a peer runs."""
    if name not in SETTINGS or not SETTINGS[name].live:
        raise PeerError(f"{name} cannot change while the peer runs; it takes effect at the next start", ExitCode.USAGE)


# ------------------------------------------------------------------------------------------------------------------------
# Name that a person gave with --name, kept in the data directory, so that the next `peer join` there does not need the flag.
#
# The kept name counts only if neither the command line nor the environment nor peer.toml gives a name.


FILE_NAME = "name"
MAX_NAME_BYTES = 1024
KEPT = "kept from --name"
"""Source of a name that was given at an earlier start."""


def with_kept_name(settings: Settings, folder: Path) -> Settings:
    """Return the settings, with the kept name if no other source gives a name.  Blocking."""
    if settings.settings["name"].source == DEFAULT:
        with suppress(OSError, ValueError), (folder / FILE_NAME).open("rb") as file:
            if name := read_name(file.read(MAX_NAME_BYTES).decode()):
                settings.settings["name"] = Effective(name, KEPT)
    return settings


def keep_name(settings: Settings, folder: Path) -> None:
    """Store the command line's name, if any; an empty name removes the stored one.  Blocking.  Raises OSError."""
    effective = settings.settings["name"]
    if effective.source != SETTINGS["name"].flag:
        return
    if effective.value:
        write_atomically(folder / FILE_NAME, effective.value.encode())
    else:
        (folder / FILE_NAME).unlink(missing_ok=True)
