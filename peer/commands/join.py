"""`peer join`: be a peer, until left."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from pathlib import Path

    from peer.commands import Subparsers
    from peer.daemon.settings import RunChoice
    from protocol.wire.identity import PeerId


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "join",
        "train together with others",
        run,
        epilog="Without WHAT: the demo run, with whoever runs it on this computer or network; the first one founds it.",
    )
    parser.add_argument(
        "what", metavar="WHAT", nargs="?", help="an invitation, a run file (you found the run), or a manifest"
    )
    parser.add_argument("--headless", action="store_true", help="log lines instead of the live view")
    parser.add_argument("--log-format", choices=["human", "json"], default="human", help="what the log lines are")
    parser.add_argument("--name", default="", help="what others see as this peer's name (default: from the peer ID)")
    parser.add_argument(
        "--role", choices=["auto", "trainer", "seed"], default="auto", help="seed: keep and serve the state, do not train"
    )
    parser.add_argument("--port", type=_port, help="TCP port to listen on (default: 4001, or a free one)")
    parser.add_argument(
        "--threads", type=_count, default=0, help="CPU threads of the trainer (default: a fair share of the cores)"
    )
    parser.add_argument("--rounds", type=_count, metavar="N", help="leave when the run has committed N rounds")
    parser.add_argument(
        "--until-eof", action="store_true", help="leave when standard input ends (for programs that start a peer)"
    )
    parser.add_argument(
        "--ignore-closed-output",
        action="store_true",
        help="go on when nobody reads standard output any more (default: leave)",
    )
    _add_limits(parser)
    parser.add_argument(
        "--only-copy",
        action="store_true",
        help="vote at once with a data directory that was copied or put back: no other copy runs, and none is newer",
    )
    parser.add_argument("--local", action="store_true", help="meet only peers on this computer")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """What the peer may use of the line and the disk."""
    for way, what in (("up", "send"), ("down", "receive")):
        parser.add_argument(
            f"--max-{way}",
            f"--{way}-limit",
            type=_rate,
            metavar="RATE",
            help=f"{what} at most so much in all, e.g. 20 or 20Mbit (bits), 1.5MB (bytes) a second (PEER_MAX_{way.upper()})",
        )
    parser.add_argument(
        "--keep-versions", type=_count, default=2, metavar="N", help="versions of the weights that stay whole (default: 2)"
    )
    parser.add_argument(
        "--weights-cap",
        type=_bytes,
        metavar="SIZE",
        help="disk that all of them may take, e.g. 20GB (default: no more than needed)",
    )


def run(args: argparse.Namespace) -> int:
    """Choose the run, hold the identity, and live."""
    import trio

    from peer.console.display import choose_style
    from peer.daemon.daemon import Daemon
    from peer.daemon.failure import problem_of
    from peer.daemon.settings import DaemonSettings
    from peer.keyfile import IdentityLocked, identity_lock, load_or_create_identity
    from peer.paths import data_dir, make_private
    from protocol.run.settings import WeightSettings
    from protocol.wire.presence import Role

    folder = make_private(data_dir(args.data_dir))
    identity = load_or_create_identity(folder)
    choice = _choose(args.what, folder, identity.peer_id)
    settings = DaemonSettings(
        data_dir=folder,
        name=args.name[:40] or f"peer-{identity.peer_id[-6:]}",
        role=Role.SEED if args.role == "seed" else Role.TRAINER,
        style=choose_style(args.headless, args.log_format),
        port=args.port,
        threads=args.threads,
        rounds=args.rounds,
        local=args.local,
        until_eof=args.until_eof,
        ignore_closed_output=args.ignore_closed_output,
        up_limit=args.max_up or _rate_of("PEER_MAX_UP"),
        down_limit=args.max_down or _rate_of("PEER_MAX_DOWN"),
        only_copy=args.only_copy,
        weights=WeightSettings(args.keep_versions, args.weights_cap),
    )

    _log_to(folder)

    async def live() -> int:
        return await Daemon(settings, identity, choice).run()

    try:
        with identity_lock(folder):
            return trio.run(live)
    except IdentityLocked as error:
        raise PeerError(str(error), ExitCode.ALREADY_RUNNING) from error
    except Exception as error:
        if args.debug or isinstance(error, PeerError):
            raise
        raise problem_of(error, folder) from error


def _log_to(folder: Path) -> None:
    """What libraries log goes into a small file: the terminal is the view's."""
    import logging
    from logging.handlers import RotatingFileHandler

    handler = RotatingFileHandler(folder / "libraries.log", maxBytes=1 << 20, backupCount=1, delay=True)
    line = "%(asctime)s %(name)s %(message)s"
    logging.basicConfig(handlers=[handler], level=logging.WARNING, format=line, force=True)


def _choose(what: str | None, folder: Path, peer: PeerId) -> RunChoice:
    """The run that the command line names."""
    from peer.daemon.settings import RunChoice
    from peer.joining.run_source import find_run, stored_manifest
    from protocol.run.invitation import Invitation
    from protocol.run.manifest import demo_manifest
    from protocol.wire.hashes import Hash
    from protocol.wire.identity import PeerId

    found = demo_manifest() if what is None else find_run(what, folder, founding=True)
    if not isinstance(found, Invitation):
        return RunChoice(found.run, PeerId(found.manifest.organiser), found)
    known = stored_manifest(Hash(found.run), folder)
    addresses, proof = tuple(found.addresses), found.proof_for(peer)
    return RunChoice(Hash(found.run), PeerId(found.organiser), known, addresses, proof, found.anchor)


def _port(text: str) -> int:
    if not text.isdigit() or not 0 <= int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text} is no port; give a number from 1 to 65535, or 0 for a free one")
    return int(text)


def _rate(text: str) -> float:
    """Bytes a second from Mbit/s, bits a second (kbit, mbit, gbit) or bytes a second (kB, MB, GB)."""
    units = {"": 125e3, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "kb": 1e3, "mb": 1e6, "gb": 1e9}
    number = text.lower().rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        rate = float(number) * units[text.lower()[len(number) :]]
    except (ValueError, KeyError):
        rate = 0.0
    if not 16e3 <= rate <= 1e12:
        raise argparse.ArgumentTypeError(f"{text} is no rate; give 16kB or more, as 20Mbit (bits) or 1.5MB (bytes) a second")
    return rate


def _rate_of(variable: str) -> float | None:
    """The rate in an environment variable; None where it is not set.  Raises PeerError."""
    text = os.environ.get(variable)
    try:
        return _rate(text) if text else None
    except argparse.ArgumentTypeError as error:
        raise PeerError(f"{variable}: {error}", ExitCode.USAGE) from error


def _bytes(text: str) -> int:
    """Bytes in "500MB", "20GB", "1TB"."""
    units = {"mb": 10**6, "gb": 10**9, "tb": 10**12}
    number, unit = text[:-2], units.get(text[-2:].lower(), 0)
    try:
        size = int(float(number) * unit)
    except (ValueError, OverflowError):
        size = 0
    if not 10**6 <= size <= 10**16:
        raise argparse.ArgumentTypeError(f"{text} is no size; give 1MB or more, as 500MB or 20GB")
    return size


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1 << 30:
        raise argparse.ArgumentTypeError(f"{text} is no count; give a whole number from 1")
    return int(text)
