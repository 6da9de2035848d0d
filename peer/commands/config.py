"""`peer config`: the settings in force, where each comes from, and writing one into peer.toml."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers
    from peer.settings.sources import Gathered


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "config",
        "show the settings and where each comes from, or write one into peer.toml",
        run,
        epilog="Flags go before the environment, and that before peer.toml.  A peer takes a change when it starts.",
    )
    parser.add_argument("setting", metavar="SETTING", nargs="?", help="the one to show or to set, as max_up")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="what to set it to, in peer.toml")
    parser.add_argument("--unset", action="store_true", help="remove the setting from peer.toml")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print, or write and print."""
    from peer.console.plain_json import print_json
    from peer.settings.file import known
    from peer.settings.sources import gather

    name = known(args.setting) if args.setting is not None else None
    if args.unset and (name is None or args.value is not None):
        raise PeerError("--unset takes a setting and no value, as `peer config max_up --unset`", ExitCode.USAGE)
    if name is not None and (args.value is not None or args.unset):
        _write(name, args.value)
    gathered = gather({})
    if args.json:
        print_json(_as_map(gathered, name))
    else:
        print("\n".join(describe(gathered, name)))
    return ExitCode.OK


def _write(name: str, text: str | None) -> None:
    """One key into peer.toml, or out of it.  Raises PeerError."""
    from peer.settings.file import config_file, write_setting
    from peer.settings.preferences import SETTINGS

    path = config_file()
    if text is not None:
        try:
            SETTINGS[name].read(text)
        except ValueError as error:
            raise PeerError(f"{name}: {error}", ExitCode.USAGE) from error
    if path is None:
        raise PeerError("PEER_CONFIG is empty, so there is no peer.toml to write; set it to a path", ExitCode.USAGE)
    write_setting(path, name, text)


def describe(gathered: Gathered, only: str | None = None) -> list[str]:
    """A line for each setting: name, value, source."""
    from peer.settings.preferences import SETTINGS

    there = "" if gathered.path is None or gathered.path.exists() else " (not there yet)"
    lines = [f"file  {gathered.path or 'none: PEER_CONFIG is empty'}{there}"]
    for name, effective in gathered.settings.items():
        if only in (None, name):
            source = "peer.toml" if effective.source == str(gathered.path) else effective.source
            lines.append(f"{name:<16}{SETTINGS[name].shown(effective.value) or '-':<14}{source}")
    return lines


def _as_map(gathered: Gathered, only: str | None) -> dict[str, Any]:
    from peer.settings.preferences import SETTINGS

    settings = [
        {
            "name": name,
            "value": effective.value if _is_plain(effective.value) else SETTINGS[name].shown(effective.value),
            "shown": SETTINGS[name].shown(effective.value),
            "source": effective.source,
            "default": SETTINGS[name].default,
            "meaning": SETTINGS[name].meaning,
        }
        for name, effective in gathered.settings.items()
        if only in (None, name)
    ]
    return {"file": str(gathered.path) if gathered.path is not None else None, "settings": settings}


def _is_plain(value: Any) -> bool:
    """Whether JSON has a form of its own for it."""
    return value is None or isinstance(value, (bool, int, float, str, tuple))
