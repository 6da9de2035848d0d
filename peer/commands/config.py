"""`peer config` and `peer completion`: the settings, and a script that completes commands in a shell."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from peer.commands import Subparsers, add_command, option
from peer.console.asking import print_result
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from collections.abc import Mapping


SHELLS = ("bash", "zsh", "tcsh")
HOW = {
    "bash": "peer completion bash > ~/.local/share/bash-completion/completions/peer",
    "zsh": "peer completion zsh > a folder of your $fpath, as _peer",
    "tcsh": "peer completion tcsh >> ~/.tcshrc",
}


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    config = add_command(
        subparsers,
        "config",
        "show the settings and where each comes from, or change one",
        run_config,
        epilog="A change is written to peer.toml, and passed to the peer that runs with this data directory.  A setting "
        "that a running peer cannot change takes effect when it starts again.  Flags override the environment, and the "
        "environment overrides peer.toml.",
        json=True,
    )
    option(config, "setting SETTING", "the setting to show or to change, such as max_up", nargs="?")
    option(config, "value VALUE", "its new value", nargs="?")
    option(config, "--unset", "restore the default: remove the setting from peer.toml")
    option(config, "--now", "change only the running peer, until it stops; write nothing")
    completion = add_command(
        subparsers,
        "completion",
        "print a script with which a shell completes commands and options",
        run_completion,
        epilog="To install it: " + "; ".join(HOW.values()) + ".",
    )
    option(completion, "shell", "the shell that reads the script", choices=SHELLS)


def run_config(args: argparse.Namespace) -> int:
    """Print the settings, after a change if one is asked for."""
    from peer.control.client import ControlClient, ControlError
    from peer.paths import data_dir
    from peer.settings.file import gather, known, with_kept_name

    name = known(args.setting) if args.setting is not None else None
    changes = name is not None and (args.value is not None or args.unset)
    if args.unset and (name is None or args.value is not None):
        raise PeerError("--unset takes a setting and no value; for example, `peer config max_up --unset`", ExitCode.USAGE)
    if args.now and not changes:
        raise PeerError("--now changes a setting; for example, `peer config max_up 20Mbit --now`", ExitCode.USAGE)
    effect = _change(args, name) if name is not None and changes else ""
    try:
        found = {"running": True, **ControlClient(args.data_dir).request("settings")}
    except ControlError:  # no peer runs, or it does not answer the question
        found = {"running": False, **with_kept_name(gather({}), args.data_dir).as_map()}
    chosen = [each for each in found["settings"] if name in (None, each["name"])]
    lines = [*describe_config(found, name), effect]
    if changes and not args.now and "PEER_CONFIG" not in os.environ and args.data_dir != data_dir():
        lines.append(
            "All data directories of this user share peer.toml; set PEER_CONFIG to give this one a file of its own."
        )
    return print_result(args, {**found, "settings": chosen}, filter(None, lines))


def _change(args: argparse.Namespace, name: str) -> str:
    """Change a setting in peer.toml and of the running peer; return a sentence about that peer, if there is one."""
    from peer.control.client import ControlClient, ControlError, NotRunning
    from peer.settings.file import config_file, read_value, write_setting
    from peer.settings.preferences import SETTINGS

    if args.value is not None:
        read_value(name, args.value, "")
    if not args.now:
        path = config_file()
        if path is None:
            raise PeerError("PEER_CONFIG is empty, so there is no peer.toml to write; set it to a path", ExitCode.USAGE)
        write_setting(path, name, args.value)
    client = ControlClient(args.data_dir)
    try:
        if SETTINGS[name].live:
            client.request("set", name=name, value=args.value)
            return "The running peer uses it from now on."
        client.request("settings")
    except NotRunning as error:
        if args.now:
            raise PeerError(str(error), ExitCode.NOT_RUNNING) from error
        return ""
    except ControlError as error:
        raise PeerError(f"the running peer refused the change: {error}") from error
    if args.now:
        raise PeerError(f"a running peer cannot change {name}; leave out --now, and start the peer again", ExitCode.USAGE)
    return "The running peer keeps the value that it was started with; the new one takes effect when it starts again."


def describe_config(found: Mapping[str, Any], only: str | None = None) -> list[str]:
    """Return a table of the settings: name, value, default, and source."""
    from pathlib import Path

    from peer.formatting import table
    from protocol.formatting import clean, size

    file = found["file"]
    there = "" if file is None or Path(file).exists() else " (does not exist yet)"
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


def run_completion(args: argparse.Namespace) -> int:
    """Print the script that completes commands in a shell."""
    import shtab

    print(shtab.complete(args.parser, args.shell))
    return ExitCode.OK
