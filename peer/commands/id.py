"""`peer id`: shows this peer's identity, exports a copy of it, imports one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "id",
        "show, export or import this peer's identity",
        run,
        epilog="Without a command it prints the peer ID; the first use makes the identity.",
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND")
    export = add_command(group, "export", "write the private key to a file, as a copy to keep safe", run_export)
    export.add_argument("file", metavar="FILE", help="a new file (PEM, mode 0600), or - for the terminal")
    bring = add_command(group, "import", "take the private key from a file", run_import)
    bring.add_argument("file", metavar="FILE", help="a file of `peer id export`, or one line of base64; - reads stdin")
    bring.add_argument(
        "--force", action="store_true", help="replace the identity that is there, and keep it as `identity.old-N.pem`"
    )


def run(args: argparse.Namespace) -> int:
    """Print the peer ID; create the identity if there is none."""
    from peer.keyfile import load_or_create_identity
    from peer.paths import data_dir

    print(load_or_create_identity(data_dir(args.data_dir)).peer_id)
    return ExitCode.OK


def run_export(args: argparse.Namespace) -> int:
    """Write the private key; never over a file that exists."""
    from peer.files import write_atomically
    from peer.keyfile import load_identity, to_pem
    from peer.paths import data_dir

    folder = data_dir(args.data_dir)
    identity = load_identity(folder)
    if identity is None:
        raise PeerError(f"there is no identity in {folder} to export; make one with `peer id`", ExitCode.IDENTITY)
    if args.file == "-":
        print(to_pem(identity).decode(), end="")
        return ExitCode.OK
    path = Path(args.file).absolute()
    try:
        write_atomically(path, to_pem(identity), replace=False)
    except FileExistsError as error:
        raise PeerError(f"{path} exists already; choose another name", ExitCode.IDENTITY) from error
    print(f"Wrote the identity {identity.peer_id} to {path}; whoever has this file is this peer.")
    return ExitCode.OK


def run_import(args: argparse.Namespace) -> int:
    """Bring an identity into the data directory."""
    from peer.keyfile import MAX_KEY_BYTES, import_identity
    from peer.paths import data_dir

    if args.file == "-":
        data = sys.stdin.buffer.read(MAX_KEY_BYTES + 1)
    else:
        with Path(args.file).open("rb") as file:
            data = file.read(MAX_KEY_BYTES + 1)
    identity = import_identity(data_dir(args.data_dir), data, force=args.force)
    print(f"This peer is now {identity.peer_id}.")
    return ExitCode.OK
