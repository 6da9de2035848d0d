"""`peer completion`: a shell script that completes our commands and options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode

if TYPE_CHECKING:
    from peer.commands import Subparsers

SHELLS = ("bash", "zsh", "tcsh")
HOW = {
    "bash": "peer completion bash > ~/.local/share/bash-completion/completions/peer",
    "zsh": "peer completion zsh > a folder of your $fpath, as _peer",
    "tcsh": "peer completion tcsh >> ~/.tcshrc",
}


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "completion",
        "print what a shell needs to complete commands and options",
        run,
        epilog="To install it: " + "; ".join(HOW.values()) + ".",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    print(shtab.complete(args.parser, args.shell))
    return ExitCode.OK
