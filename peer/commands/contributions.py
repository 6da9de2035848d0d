"""`peer ledger` and `peer rollouts`: the contributions of all peers, and the fate of this peer's rollouts."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from peer.commands import add_command
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from peer.commands import Subparsers
    from protocol.run.manifest import RunManifest


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    _register_ledger(subparsers)
    _register_rollouts(subparsers)


def _folder(root: Path, wanted: str | None) -> Path:
    """Return the folder of the run with this ID prefix; without a prefix, of the running run, else of the latest."""
    from peer.control.client import ControlClient, ControlError, NotRunning
    from peer.joining.run_word import ambiguous

    runs = [path for path in (root / "runs").glob("*") if path.is_dir() and path.name.startswith(wanted or "")]
    if not runs:
        if wanted:
            raise PeerError(f"{wanted[:80]} is not a run in {root}; `peer runs` lists the runs", ExitCode.INPUT)
        raise PeerError(f"there is no run in {root}; join one with `peer join`", ExitCode.INPUT)
    if wanted is None:
        try:
            running = ControlClient(root).status().run
            runs = [path for path in runs if path.name == running] or runs
        except NotRunning:
            pass
        except ControlError as error:
            raise PeerError(str(error)) from error
    elif len(runs) > 1:
        raise ambiguous(wanted, [path.name for path in runs])
    return max(runs, key=lambda path: path.stat().st_mtime)


WHO = 42
"""Columns for a name and the short form of the peer ID."""


def _register_ledger(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "ledger",
        "show who contributed how much",
        run_ledger,
        epilog="Reads the record chain on this disk, so no peer has to run.  Peers appear under the names that they "
        "chose, and this peer is marked (me).  In a run with rollouts it also shows the batches from which the run "
        "learned, and the tokens of their outputs.  If members named teams (`peer config team NAME`), a second table sums "
        "them: all credit of a member counts for the team that it named last.  The JSON object has whole peer IDs, `me`, "
        "`names`, each member's `team`, the `teams`, the number of `fragments` of which a round exchanges one, and a "
        "`remark` if the tokens cannot be audited.",
    )
    parser.add_argument(
        "run_id",
        metavar="RUN",
        nargs="?",
        help="a run ID or its beginning (default: the running run, else the latest one here)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run_ledger(args: argparse.Namespace) -> int:
    """Print the ledger of the records on disk, under the names that the peers have now."""
    from peer.console.streams import print_json
    from peer.joining.purpose import ledger_remark
    from peer.paths import data_dir

    found = _find(data_dir(args.data_dir), args.run_id)
    manifest = _manifest(data_dir(args.data_dir), found["run"])
    found["fragments"] = manifest.fragments if manifest is not None else 1
    found["remark"] = ledger_remark(manifest) if manifest is not None else ""
    if args.json:
        print_json(found)
        return ExitCode.OK
    from peer.formatting import pad
    from protocol.formatting import amount, many, naming

    each = f" (each of one of {found['fragments']} fragments)" if found["fragments"] > 1 else ""
    print(f"run {found['run']}: {many(found['rounds'], 'round')}{each}, {amount(found['tokens'])} tokens")
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
    if found["teams"]:
        print("\n".join(["", *_team_rows(found["teams"], has_rollouts)]))
    if found["remark"]:
        print(found["remark"])
    return ExitCode.OK


def _team_rows(teams: Sequence[Mapping[str, Any]], has_rollouts: bool) -> list[str]:
    """Return the table of the teams, in the columns of the members' table."""
    from peer.formatting import pad
    from protocol.formatting import amount, clean

    lines = [f"{'TEAM':<{WHO}}{'PEERS':>8}{'TOKENS':>10}{'SHARE':>9}" + (f"{'':>9}{'ACCEPTED':>10}" if has_rollouts else "")]
    for each in teams:
        row = f"{pad(clean(each['team']), WHO)}{each['peers']:>8}{amount(each['tokens']):>10}{100 * each['share']:>7.1f} %"
        lines.append(row + (f"{'':>9}{amount(each['accepted_tokens']):>10}" if has_rollouts else ""))
    return lines


def _manifest(folder: Path, run: str) -> RunManifest | None:
    """Return the manifest of this run, if it is on disk."""
    from peer.joining.run_source import stored_manifest
    from protocol.wire.hashes import Hash

    signed = stored_manifest(Hash(bytes.fromhex(run)), folder) if len(run) == 64 else None
    return signed.manifest if signed is not None else None


def _find(folder: Path, wanted: str | None) -> dict[str, Any]:
    """Return the ledger, with the run's ID as "run", our peer ID as "me", and the peers' own names and teams."""
    from dataclasses import asdict

    from peer.control.client import ControlClient, ControlError, NotRunning
    from peer.control.history import RunHistory
    from peer.control.ledger import ledger_of, team_credits
    from peer.joining.run_source import stored_manifest
    from peer.keyfile import KeyfileError, load_identity
    from protocol.wire.hashes import Hash

    status = None
    try:
        running = ControlClient(folder).status()
        status = running if running.run.startswith(wanted or "") else None
    except NotRunning:
        pass
    except ControlError as error:
        raise PeerError(str(error)) from error
    chosen, me = folder / "runs" / status.run if status is not None else _folder(folder, wanted), ""
    signed = stored_manifest(Hash(bytes.fromhex(chosen.name)), folder)
    if signed is None:
        raise PeerError(f"the manifest of the run {chosen.name[:12]} is not in {folder}; join the run again", ExitCode.INPUT)
    history = RunHistory(signed, chosen)
    history.read()
    if status is not None:
        history.note_names(status)
        me = status.peer
    else:
        with suppress(KeyfileError):
            me = identity.peer_id if (identity := load_identity(folder)) is not None else ""
    told = ledger_of(history.ledger.credits, history.length)
    members = [{**member, "team": history.teams.get(member["peer"], "")} for member in told["members"]]
    teams = [asdict(each) for each in team_credits(told, history.teams)]
    return {"run": chosen.name, "me": me, "names": history.names, **told, "members": members, "teams": teams}


SHOWN = 20
MOST_SHOWN = 1000


def _register_rollouts(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "rollouts", "show this peer's rollouts and what became of them", run_rollouts)
    parser.add_argument(
        "run_id",
        metavar="RUN",
        nargs="?",
        help="a run ID or its beginning (default: the running run, else the latest one here)",
    )
    parser.add_argument("--last", metavar="N", type=int, default=SHOWN, help=f"number of batches to show (default {SHOWN})")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run_rollouts(args: argparse.Namespace) -> int:
    """Read the events of the run; they are the same whether the peer runs or not."""
    from peer.console.streams import print_json
    from peer.control.ledger import told_rollouts
    from peer.paths import data_dir

    if not 1 <= args.last <= MOST_SHOWN:
        raise PeerError(f"--last takes 1 to {MOST_SHOWN} batches", ExitCode.INPUT)
    root = data_dir(args.data_dir)
    folder = _folder(root, args.run_id)
    found = told_rollouts(folder, args.last)
    if found is None:
        raise PeerError(
            f"the peer here has seen no rollouts in the run {folder.name[:12]}; only a run with a section [rl] has "
            "any, and its peers make or judge them with `peer join --role rollout` or `--role validator`",
            ExitCode.INPUT,
        )
    if args.json:
        print_json({"run": folder.name, **found})
    else:
        print("\n".join(describe_rollouts(found)))
    return ExitCode.OK


WORDS = {
    "rollout": (
        "generated",
        "this peer made {}: {accepted} accepted, {rejected} rejected, {stale} got too old, {waiting} not judged yet",
    ),
    "validator": ("judged", "this peer judged {} of others: {accepted} accepted, {rejected} rejected, {unsure} unsure"),
    "trainer": ("used", "this trainer learned from {}; {accepted} accepted, {rejected} rejected, {stale} got too old"),
}
"""Words by the peer's role: name of the first count, and the sentence.  Counts cover the events that the log still has."""


def describe_rollouts(found: dict[str, Any]) -> list[str]:
    """Return the findings as lines for a person."""
    from peer.formatting import fit, pad
    from protocol.formatting import amount, clean, many, naming, number

    counts, role = found["counts"], found["role"]
    first, words = WORDS[role]
    lines = [words.format(many(counts[first], "batch", "batches"), **counts)]
    if role == "rollout":
        lines.append(f"{amount(found['accepted_tokens'])} tokens of them were learned from, as the records say")
    if found["reward"] is not None:
        lines.append(f"mean reward of the last round: {number(found['reward'])}")
    name = naming(found["names"])
    for aside in found["set_aside"]:
        what = "rollouts" if aside["role"] == "rollout" else "verdicts"
        lines.append(f"set aside: {what} of {name(aside['peer'])}: {clean(aside['reason'], 200)}")
    if not found["batches"]:
        return [*lines, "no batch yet"]
    lines.append(f"{'AUTHOR':<24}{'VERSION':>8}{'BATCH':>7}  {'VERDICT':<10}WHY")
    for batch in found["batches"]:
        who = "me" if batch["author"] == found["peer"] else f"{name(batch['author'])}"
        judges = ", ".join("me" if each == found["peer"] else name(each) for each in batch["judges"][-2:])
        used = f"learned from in round {batch['round']}" if batch["round"] is not None else ""
        why = ", ".join(part for part in (clean(batch["reason"], 100), f"by {judges}" if judges else "", used) if part)
        row = f"{pad(who, 24)}{batch['version']:>8}{batch['number']:>7}  {batch['verdict']:<10}{why}"
        lines.append(fit(row, 200).rstrip())
    if found["untold"]:
        most = min(MOST_SHOWN, len(found["batches"]) + found["untold"])
        lines.append(f"and {found['untold']} before; --last {most} shows them")
    return lines
