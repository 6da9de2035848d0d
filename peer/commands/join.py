"""`peer join`: runs a peer until it leaves."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from peer.commands import ATTACHED, Subparsers, add_command, become_interface, option, whole_number
from peer.environment import ChildKind
from peer.errors import ExitCode, PeerError
from peer.settings.preferences import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from peer.daemon.settings import DaemonSettings


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "join",
        "train together with others",
        run,
        epilog="Without WHAT it joins the demo run, together with the peers that run it on this computer or network; "
        "the first one founds it.",
    )
    option(parser, "what WHAT", "an invitation, a run file (you found the run), or a manifest (PEER_RUN)", nargs="*")
    option(parser, "--headless", "print log lines instead of showing the terminal interface")
    group = parser.add_argument_group("settings", "also available in peer.toml and in the environment (`peer config`)")
    for setting in SETTINGS.values():
        group.add_argument(
            setting.flag,
            dest=setting.name,
            type=_as_argument(setting.read),
            choices=setting.notation.choices,
            metavar=None if setting.notation.choices else setting.placeholder,
            help=f"{setting.meaning} ({setting.variable})",
        )
    option(parser, "--rounds N", "leave when the run has committed N rounds", type=whole_number(1, 1 << 30))
    option(parser, "--until-end", "leave when the run has ended (default: stay, and serve its final weights)")
    option(parser, "--until-eof", "leave when standard input ends (for programs that start a peer)")
    option(parser, "--ignore-closed-output", "continue when nobody reads standard output any more (default: leave)")
    option(
        parser,
        "--only-copy",
        "vote at once although the data directory was copied or restored; say this only if no other copy runs and "
        "none is newer",
    )
    option(parser, "--local", "meet only peers on this computer")


def _as_argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader for argparse, which shows the text of an error only if it has argparse's own type."""

    def argument(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return argument


def run(args: argparse.Namespace) -> int:
    """Choose the run, lock the identity, and run the peer; on a terminal, start the interface, which runs this again."""
    from peer.joining.run_word import check_word

    if word := _word(args):
        check_word(word, args.data_dir)  # while the terminal is still the shell's
    if _wants_interface(args):
        become_interface(ChildKind.SAME_PROGRAM, str(args.data_dir), ATTACHED, *sys.argv[1:])
    return _live(args)


def _word(args: argparse.Namespace) -> str:
    """Return the word that names the run, which a shell may have split; empty for the demo run."""
    return " ".join(args.what) or os.environ.get("PEER_RUN", "")


def _wants_interface(args: argparse.Namespace) -> bool:
    from peer.console.streams import draws
    from peer.settings.file import gather

    if args.attached or args.headless or args.until_eof or not (sys.stdin.isatty() and draws(sys.stdout)):
        return False
    return gather({name: getattr(args, name) for name in SETTINGS}).now.log_format != "json"


def _live(args: argparse.Namespace) -> int:
    from peer.keyfile import IdentityLocked, identity_lock
    from peer.paths import make_private, must_be_writable

    folder = must_be_writable(make_private(args.data_dir))
    try:
        with identity_lock(folder):  # before the slow imports, so that other commands already see that a peer is starting
            return _live_in(args, folder)
    except IdentityLocked as error:
        raise PeerError(str(error), ExitCode.ALREADY_RUNNING) from error


def _live_in(args: argparse.Namespace, folder: Path) -> int:
    """Run the peer with the data directory `folder`, which is locked for us."""
    import logging
    from logging.handlers import RotatingFileHandler

    import trio

    from peer.daemon.daemon import Daemon, problem_of
    from peer.daemon.settings import choose
    from peer.keyfile import load_or_create_identity
    from peer.settings.file import keep_name

    identity = load_or_create_identity(folder)
    choice = choose(_word(args) or None, folder, identity.peer_id)
    settings = _settings(args, folder)
    # the libraries' log goes to a small file, because the terminal belongs to the view
    handler = RotatingFileHandler(folder / "libraries.log", maxBytes=1 << 20, backupCount=1, delay=True)
    line = "%(asctime)s %(name)s %(message)s"
    logging.basicConfig(handlers=[handler], level=logging.WARNING, format=line, force=True)

    async def live() -> int:
        return await Daemon(settings, identity, choice).run()

    keep_name(settings.live, folder)
    try:
        return trio.run(live)
    except Exception as error:
        if args.debug or isinstance(error, PeerError):
            raise
        raise problem_of(error, folder) from error


def _settings(args: argparse.Namespace, folder: Path) -> DaemonSettings:
    """Return the settings of the command line, completed from the environment and peer.toml.  Raises PeerError."""
    from peer.console.display import Style
    from peer.daemon.settings import DaemonSettings, LeaveConditions
    from peer.settings.file import gather, with_kept_name

    settings = with_kept_name(gather({name: getattr(args, name) for name in SETTINGS}), folder)
    return DaemonSettings(
        folder,
        Style.SILENT if args.attached else Style(settings.now.log_format),
        settings,
        LeaveConditions(args.rounds, args.until_end, args.until_eof, args.ignore_closed_output),
        args.local,
        args.only_copy,
    )
