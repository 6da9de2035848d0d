"""`peer ledger`: the contributions of all peers to the run, from the record chain."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from pathlib import Path

    from peer.commands import Subparsers


WHO = 42
"""Columns for a name with the short form of the peer ID."""


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "ledger",
        "show who contributed how much",
        run,
        epilog="Reads the record chain on this disk, so no peer has to run.  Peers have the names that they give "
        "themselves, and this peer is marked (me).  In a run with rollouts it also shows whose "
        "rollouts were learned from: batches, and tokens of their outputs.  The JSON object has whole peer IDs, `me` and "
        "`names`.",
    )
    parser.add_argument(
        "run_id",
        metavar="RUN",
        nargs="?",
        help="a run ID, also its beginning (default: the running one, else the latest here)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Ask the running peer, or read the disk if none runs."""
    from peer.console.streams import print_json
    from peer.paths import data_dir

    found = _find(data_dir(args.data_dir), args.run_id)
    if args.json:
        print_json(found)
        return ExitCode.OK
    from peer.formatting import amount, many, naming, pad

    print(f"run {found['run']}: {many(found['rounds'], 'round')}, {amount(found['tokens'])} tokens")
    has_rollouts = any(member["batches"] for member in found["members"])
    if has_rollouts:
        print(f"learned from {amount(found['accepted_tokens'])} tokens of rollouts, each credited to the peer that made it")
    of_rollouts = f"{'BATCHES':>9}{'ACCEPTED':>10}" if has_rollouts else ""
    print(f"{'PEER':<{WHO}}{'ROUNDS':>8}{'TOKENS':>10}{'SHARE':>9}{of_rollouts}")
    name = naming(found["names"])
    for member in found["members"]:
        who = name(member["peer"]) + (" (me)" if member["peer"] == found["me"] else "")
        row = f"{pad(who, WHO)}{member['rounds']:>8}{amount(member['tokens']):>10}{100 * member['share']:>7.1f} %"
        made = f"{member['batches']:>9}{amount(member['accepted_tokens']):>10}" if has_rollouts else ""
        print(row + made)
    if found["untold"]:
        print(f"and {found['untold']} more; all of them are told while the peer does not run")
    return ExitCode.OK


def _find(folder: Path, wanted: str | None) -> dict[str, Any]:
    """Return the ledger, with the run's ID as "run", our peer ID as "me", and the peers' own names as "names"."""
    from peer.control.client import ControlClient, ControlError, NotRunning
    from peer.control.ledger import names_in

    client = ControlClient(folder)
    try:
        status = client.status()
        if wanted is None or status.run.startswith(wanted):
            told = client.request("ledger")
            names = names_in(folder / "runs" / status.run, told) | status.names()
            return {"run": status.run, "me": status.peer, "names": names, **told}
    except NotRunning:
        pass
    except ControlError as error:
        raise PeerError(str(error)) from error
    return _read(folder, wanted)


def _read(folder: Path, wanted: str | None) -> dict[str, Any]:
    from peer.control.ledger import ledger, names_in
    from peer.keyfile import KeyfileError, load_identity
    from protocol.chain.store import Store

    runs = [path for path in (folder / "runs").glob("*") if path.is_dir() and path.name.startswith(wanted or "")]
    if not runs:
        raise PeerError(
            f"there is no {'such run' if wanted else 'run'} in {folder}; join one with `peer join`", ExitCode.INPUT
        )
    if wanted is not None and len(runs) > 1:
        raise PeerError(f"{len(runs)} runs begin with {wanted}; give more of the run ID", ExitCode.INPUT)
    chosen = max(runs, key=lambda path: path.stat().st_mtime)
    told, me = ledger(Store(chosen)), ""
    with suppress(KeyfileError):
        identity = load_identity(folder)
        me = identity.peer_id if identity is not None else ""
    return {"run": chosen.name, "me": me, "names": names_in(chosen, told), **told}
