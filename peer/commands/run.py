"""`peer run`: create a run, show one, and invite to one."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import add_command, add_group
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers
    from protocol.run.invitation import Invitation
    from protocol.run.manifest import SignedManifest
    from protocol.wire.hashes import Hash
    from protocol.wire.identity import PeerId

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(subparsers, "run", "create a run, show one, invite to one (for organisers)", None)
    group = add_group(parser)

    create = add_command(group, "create", "check and sign a run file, and print the run's invitation", run_create)
    create.add_argument("file", metavar="RUN.toml", help="the run file; docs/commands.md lists its fields")
    create.add_argument("--out", metavar="FILE", help="also write the signed manifest to a file")
    _add_addresses(create)

    show = add_command(group, "show", "print what a run file, manifest or invitation says", run_show)
    show.add_argument("what", metavar="WHAT", help="a run file, a manifest, an invitation or a run ID")

    invite = add_command(group, "invite", "print an invitation with a token", run_invite)
    invite.add_argument("what", metavar="RUN", help="a run ID (its first 8 digits will do) or a manifest")
    invite.add_argument("--role", choices=["trainer", "seed"], default="trainer", help="what the token is for")
    invite.add_argument(
        "--expires",
        metavar="TIME",
        default="7d",
        help="how long it lets somebody in: 30m, 12h, 7d (default); who is in stays in",
    )
    invite.add_argument("--peer", metavar="PEER_ID", help="the only peer it is for (default: whoever holds it)")
    _add_addresses(invite)


def run_create(args: argparse.Namespace) -> int:
    """Sign and keep a run; the last line printed is the invitation."""
    from peer.files.atomic import write_atomically
    from peer.formatting import amount
    from peer.joining.inviting import invite_command
    from peer.joining.run_source import create_run
    from peer.paths import data_dir
    from peer.resources.memory import memory_line
    from protocol.run.manifest import Admission
    from protocol.wire.identity import PeerId

    data = data_dir(args.data_dir)
    signed = create_run(Path(args.file), data)
    manifest = signed.manifest
    addresses = _addresses(args, signed.run, PeerId(manifest.organiser), data)
    if args.out:
        write_atomically(Path(args.out).absolute(), signed.raw)
    print(f"run         {signed.run.hex()}")
    print(f"name        {manifest.name}")
    print(f"parameters  {manifest.parameters} ({amount(manifest.parameters)})")
    print(f"memory      {memory_line(manifest)}")
    if manifest.admission is Admission.INVITE:
        print(
            "This run admits by token, which this invitation has not; while your peer runs, make one with: "
            + invite_command(signed.run, data)
        )
    print("invitation")
    print(_invitation(signed, addresses, None))
    return ExitCode.OK


def run_show(args: argparse.Namespace) -> int:
    """Print a run as a run file, with its ID and what the invitation adds as comments."""
    from peer.joining.run_source import find_run, stored_manifest
    from peer.paths import data_dir
    from protocol.run.invitation import Invitation
    from protocol.wire.hashes import Hash

    data = data_dir(args.data_dir)
    found = find_run(args.what, data)
    if not isinstance(found, Invitation):
        _print_manifest(found)
        return ExitCode.OK
    _print_invitation(found)
    stored = stored_manifest(Hash(found.run), data)
    if stored is None:
        print("# The manifest is not on this computer yet; `peer join` fetches it from the peers above.")
    else:
        _print_manifest(stored)
    return ExitCode.OK


def run_invite(args: argparse.Namespace) -> int:
    """Print an invitation with a token that this data directory's identity signs."""
    from peer.joining.run_source import find_run
    from peer.keyfile import load_identity
    from peer.paths import data_dir
    from protocol.run.admission import make_token
    from protocol.run.invitation import Invitation
    from protocol.wire.canonical import Malformed
    from protocol.wire.identity import PeerId, public_key_of
    from protocol.wire.messages import Role

    data = data_dir(args.data_dir)
    found = find_run(args.what, data)
    if isinstance(found, Invitation):
        raise PeerError("this is an invitation already; give the run ID or the manifest", ExitCode.INPUT)
    identity = load_identity(data)
    if identity is None or identity.peer_id != found.manifest.organiser:
        raise PeerError(
            f"only the organiser {found.manifest.organiser} can invite; use its data directory with --data-dir",
            ExitCode.IDENTITY,
        )
    if args.peer is not None:
        try:
            public_key_of(PeerId(args.peer))
        except Malformed as error:
            raise PeerError(f"--peer {args.peer}: {error}; the guest's `peer id` prints it", ExitCode.INPUT) from error
    expiry = int(time.time()) + _duration_s(args.expires)
    token = make_token(identity, found.run, Role(args.role), expiry, args.peer)
    print(_invitation(found, _addresses(args, found.run, identity.peer_id, data), token))
    return ExitCode.OK


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        metavar="ADDR",
        action="append",
        default=[],
        help="where guests find a first peer, as a multiaddr; may be repeated (default: where others reached your peer)",
    )
    parser.add_argument("--port", type=int, help="name this computer's addresses with this port (PEER_PORT) instead")


def _addresses(args: argparse.Namespace, run: Hash, peer: PeerId, data: Path) -> list[str]:
    """The addresses for an invitation; a person is told when nobody is known to have reached them."""
    from peer.joining.inviting import find_addresses
    from peer.joining.run_source import DEFAULT_PORT, dialable

    given = args.port if args.port is not None else os.environ.get("PEER_PORT")
    if args.address or given:
        return dialable(args.address, peer, _port(given or DEFAULT_PORT))
    found = find_addresses(run, peer, data)
    if found.remark:
        print(f"peer: {found.remark}", file=sys.stderr, flush=True)
    return found.addresses


def _port(given: int | str) -> int:
    text = str(given)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise PeerError(f"{text} is no port; give --port or PEER_PORT a number from 1 to 65535", ExitCode.USAGE)
    return int(text)


def _duration_s(text: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,4})([smhd])", text)
    if match is None:
        raise PeerError(f"--expires {text} is no time; write it like 90s, 30m, 12h or 7d", ExitCode.USAGE)
    return int(match[1]) * _SECONDS[match[2]]


def _invitation(signed: SignedManifest, addresses: list[str], token: bytes | None) -> str:
    """The invitation as text; addresses that cannot be in one end the command with a sentence."""
    from protocol.run.invitation import make_invitation
    from protocol.wire.identity import PeerId

    try:
        return make_invitation(signed.run, PeerId(signed.manifest.organiser), addresses, token)
    except ValueError as error:
        raise PeerError(
            "an address is too long, has a character that cannot be in one, or there are more than 16; check --address",
            ExitCode.INPUT,
        ) from error


def _print_manifest(signed: SignedManifest) -> None:
    from peer.formatting import amount
    from peer.resources.memory import memory_line
    from protocol.run.run_file import dump

    manifest = signed.manifest
    print(
        f"# Run {signed.run.hex()}, {manifest.parameters} parameters ({amount(manifest.parameters)}), "
        f"{manifest.chunks} chunks a round."
    )
    print(f"# Memory: {memory_line(manifest)}.")
    print(dump(manifest), end="")


def _print_invitation(invitation: Invitation) -> None:
    from peer.joining.inviting import describe_token

    print(f"# Invitation to run {invitation.run.hex()}")
    print(f"# organised by {invitation.organiser}")
    for address in invitation.addresses:
        print(f"# first peer {address}")
    for line in describe_token(invitation, time.time()):
        print(f"# {line}")
