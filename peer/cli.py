"""The `peer` command: finds the subcommand, runs it, and turns errors into one sentence and an exit code.

Nothing heavy is imported before the command is known, so that `peer --help` answers at once, and no other package of ours
before `check_rooms` has found it.  What a command does is its module's business (`peer.commands`).
"""

from __future__ import annotations

import argparse
import errno
import importlib
import pkgutil
import sys
from collections.abc import Sequence

import peer.commands
from peer.console.standard_streams import discard, open_standard_streams
from peer.errors import ExitCode, PeerError
from peer.installation import check_rooms
from peer.nearest_command import CommandParser


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; every module in `peer.commands` adds its own part."""
    parser = CommandParser(
        prog="peer",
        description="Train a language model together with others.",
        epilog="`peer join` without an invitation joins the demo run.  Exit codes: see docs/commands.md.",
    )
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument(peer.commands.ATTACHED, action="store_true", help=argparse.SUPPRESS)
    peer.commands.add_common_options(parser, None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in pkgutil.iter_modules(peer.commands.__path__):
        importlib.import_module(f"peer.commands.{module.name}").register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    open_standard_streams()
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _main(arguments: Sequence[str] | None) -> int:
    try:
        check_rooms()
    except PeerError as error:
        print(f"peer: {error.text}", file=sys.stderr)
        return error.exit_code
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.version:
        from protocol.version import version

        print(f"peer {version()}")
        return ExitCode.OK
    if not hasattr(args, "run"):
        parser.print_help()
        return ExitCode.USAGE
    try:
        code = int(args.run(args))
        sys.stdout.flush()  # here, where an error still has a sentence
        return code
    except BrokenPipeError:  # the reader of our output went away (`peer status | head`): no error of ours
        discard(sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        if args.debug:
            raise
        known = explain(error)
        _complain(known.text)
        return known.exit_code


def _complain(text: str) -> None:
    """On standard error, if anybody reads it."""
    try:
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout.fileno())  # what it could not take must not come up again when the process ends
    from peer.formatting import visible

    try:
        print(f"peer: {visible(text)}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr.fileno())


def explain(error: Exception) -> PeerError:
    """The sentence and the exit code for `error`; what we did not foresee says how to see more."""
    from peer.control.client import ControlError
    from peer.keyfile import KeyfileError
    from protocol.run.run_file import RunFileError
    from protocol.wire.canonical import Malformed

    if isinstance(error, ControlError):
        return PeerError(str(error), ExitCode.NOT_RUNNING)
    if isinstance(error, PeerError):
        return error
    if isinstance(error, RunFileError):
        return PeerError(str(error), ExitCode.INPUT)
    if isinstance(error, KeyfileError):
        return PeerError(str(error), ExitCode.IDENTITY)
    if isinstance(error, Malformed):
        return PeerError(str(error), ExitCode.INPUT)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room on the disk" if full else "check the path and its permissions"
        code = ExitCode.RESOURCES if full else ExitCode.INPUT if error.filename else ExitCode.FAILED
        return PeerError(f"{where}{error.strerror or error}; {remedy}", code)
    return PeerError(f"unexpected {type(error).__name__}: {error}; run it again with --debug to see where")


if __name__ == "__main__":
    sys.exit(main())
