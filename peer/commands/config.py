"""`peer config` and `peer completion`: the settings, and a script that completes commands in a shell."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peer.commands import Subparsers


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    _register_config(subparsers)
    _register_completion(subparsers)


def _register_config(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "config",
        "show the settings and where each comes from, or change one",
        run_config,
        epilog="A change is written to peer.toml, and passed to the peer that runs with this data directory.  A setting "
        "that a running peer cannot change takes effect when it starts again.  Flags override the environment, and the "
        "environment overrides peer.toml.",
    )
    parser.add_argument("setting", metavar="SETTING", nargs="?", help="the setting to show or to change, such as max_up")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="its new value")
    parser.add_argument("--unset", action="store_true", help="back to the default: remove the setting from peer.toml")
    parser.add_argument("--now", action="store_true", help="change only the running peer, until it stops; write nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run_config(args: argparse.Namespace) -> int:
    """Print the settings, after a change if one is asked for."""
    from peer.console.streams import print_json
    from peer.settings.file import known

    name = known(args.setting) if args.setting is not None else None
    changes = name is not None and (args.value is not None or args.unset)
    if args.unset and (name is None or args.value is not None):
        raise PeerError("--unset takes a setting and no value, as `peer config max_up --unset`", ExitCode.USAGE)
    if args.now and not changes:
        raise PeerError("--now changes a setting, as `peer config max_up 20Mbit --now`", ExitCode.USAGE)
    effect = ""
    if name is not None and changes:
        _check(name, args.value)
        if not args.now:
            _write(name, args.value)
        effect = _tell(args, name)
    found = _of_the_running_peer(args) or _of_the_next_start(args)
    if args.json:
        chosen = [each for each in found["settings"] if name in (None, each["name"])]
        print_json({**found, "settings": chosen})
    else:
        lines = [*describe_config(found, name), effect, _whose_file(args) if changes and not args.now else ""]
        print("\n".join(filter(None, lines)))
    return ExitCode.OK


def _whose_file(args: argparse.Namespace) -> str:
    """Return a sentence for those who may expect that a change is one data directory's; empty for the usual one."""
    from peer.paths import data_dir

    if "PEER_CONFIG" in os.environ or data_dir(args.data_dir) == data_dir():
        return ""
    return "All data directories of this user share peer.toml; set PEER_CONFIG to give this one a file of its own."


def _check(name: str, text: str | None) -> None:
    """Raise PeerError if the setting does not accept this value."""
    from peer.settings.preferences import SETTINGS

    if text is not None:
        try:
            SETTINGS[name].read(text)
        except ValueError as error:
            raise PeerError(f"{name}: {error}", ExitCode.USAGE) from error


def _write(name: str, text: str | None) -> None:
    """Write one key into peer.toml, or remove it.  Raises PeerError."""
    from peer.settings.file import config_file, write_setting

    path = config_file()
    if path is None:
        raise PeerError("PEER_CONFIG is empty, so there is no peer.toml to write; set it to a path", ExitCode.USAGE)
    write_setting(path, name, text)


def _tell(args: argparse.Namespace, name: str) -> str:
    """Let the running peer change a setting; return a sentence on the effect, empty if no peer runs.  Raises PeerError."""
    from peer.control.client import ControlError, NotRunning
    from peer.settings.preferences import SETTINGS

    try:
        if not SETTINGS[name].live:
            _client(args).request("settings")
            if args.now:
                raise PeerError(f"a running peer cannot change {name}; leave out --now, and start it again", ExitCode.USAGE)
            return (
                "The running peer keeps the value that it was started with; the new one takes effect when it starts again."
            )
        _client(args).request("set", name=name, value=args.value)
    except NotRunning as error:
        if args.now:
            raise PeerError(str(error), ExitCode.NOT_RUNNING) from error
        return ""
    except ControlError as error:
        raise PeerError(f"the running peer refused the change: {error}") from error
    return "The running peer uses it from now on."


def _client(args: argparse.Namespace) -> Any:
    from peer.control.client import ControlClient
    from peer.paths import data_dir

    return ControlClient(data_dir(args.data_dir))


def _of_the_running_peer(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the running peer's settings; None if no peer runs, or if it does not answer the question."""
    from peer.control.client import ControlError

    try:
        return {"running": True, **_client(args).request("settings")}
    except ControlError:
        return None


def _of_the_next_start(args: argparse.Namespace) -> dict[str, Any]:
    from peer.paths import data_dir
    from peer.settings.file import as_map, gather, with_kept_name

    return {"running": False, **as_map(with_kept_name(gather({}), data_dir(args.data_dir)))}


def describe_config(found: Mapping[str, Any], only: str | None = None) -> list[str]:
    """Return a table of the settings: name, value, default, and source."""
    from pathlib import Path

    from peer.formatting import table
    from protocol.formatting import clean, size

    file = found["file"]
    there = "" if file is None or Path(file).exists() else " (not there yet)"
    lines = [f"file  {file or 'none: PEER_CONFIG is empty'}{there}"]
    if found["running"]:
        month = found["month"]
        lines.append("peer  running, with these settings")
        lines.append(f"month {clean(month['month'] or '-', 10)}: {size(month['bytes'])} sent and received")
    rows = [("SETTING", "VALUE", "DEFAULT", "FROM")]
    for each in found["settings"]:
        if only in (None, each["name"]):
            source = "peer.toml" if each["source"] == file else clean(each["source"], 200)
            value, default = clean(each.get("told", each["shown"]), 200), clean(each.get("default_told", ""), 200)
            rows.append((each["name"], value or "-", default or "-", source))
    return [*lines, *table(rows)]


SHELLS = ("bash", "zsh", "tcsh")
HOW = {
    "bash": "peer completion bash > ~/.local/share/bash-completion/completions/peer",
    "zsh": "peer completion zsh > a folder of your $fpath, as _peer",
    "tcsh": "peer completion tcsh >> ~/.tcshrc",
}


def _register_completion(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "completion",
        "print a script with which a shell completes commands and options",
        run_completion,
        epilog="To install it: " + "; ".join(HOW.values()) + ".",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def run_completion(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    print(shtab.complete(args.parser, args.shell))
    return ExitCode.OK
