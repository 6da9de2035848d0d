"""The value of each setting, and where it comes from: the command line, else the environment, else peer.toml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.errors import ExitCode, PeerError
from peer.settings.file import config_file, read_config
from peer.settings.preferences import SETTINGS, Preferences

DEFAULT = "default"


@dataclass(frozen=True)
class Effective:
    """source: the flag, the variable, the path of the file, or "default"."""

    value: Any
    source: str


@dataclass(frozen=True)
class Gathered:
    """Every setting, by name.  path: of peer.toml, None when none is to be read."""

    path: Path | None
    settings: dict[str, Effective]

    @property
    def preferences(self) -> Preferences:
        """The values alone."""
        return Preferences(**{name: effective.value for name, effective in self.settings.items()})


def gather(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Gathered:
    """flags: values that were read from the command line, by name; None where nothing was said.  Raises PeerError."""
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
