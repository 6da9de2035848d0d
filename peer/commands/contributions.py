"""`peer ledger`, `peer rollouts` and `peer readmit`: credit of all peers, this peer's rollouts, and members set aside."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from peer.commands import Subparsers, add_command, add_run, option, whole_number
from peer.console.asking import ask, print_result
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    ledger = add_command(
        subparsers,
        "ledger",
        "show who contributed how much",
        run_ledger,
        epilog="Reads the record chain on this disk, so no peer has to run.  Peers appear under the names that they "
        "chose, and this peer is marked (me).  In a run with rollouts it also shows the batches from which the run "
        "learned, and the tokens of their outputs.  If members named teams (`peer config team NAME`), a second table sums "
        "them: all credit of a member counts for the team that it named last.  TOKENS are claims.  While the peer runs, "
        "AUDITED are those of rounds that this peer audited, CREDITED those of members that it has not set aside; it lists "
        "these below with the reason.  The JSON object has whole peer IDs, `me`, `audits`, "
        "`names`, each member's `team`, the `teams`, the number of `fragments` of which a round exchanges one, and a "
        "`remark` if the tokens cannot be audited.",
        json=True,
    )
    add_run(ledger)
    rollouts = add_command(
        subparsers, "rollouts", "show this peer's rollouts and what became of them", run_rollouts, json=True
    )
    readmit = add_command(
        subparsers,
        "readmit",
        "let a member take part again that this peer has set aside",
        run_readmit,
        epilog="A peer audits receipts of the rows that others trained on, and sets aside who claims work that it did not "
        "do: it then gets no place in the rounds that this peer plans.  `peer ledger` names these members.  Each peer "
        "decides for itself, so this command changes nothing at others.",
    )
    option(readmit, "peer PEER", "name of the member, or the beginning of its ID")
    add_run(rollouts)
    option(
        rollouts, "--last N", f"number of batches to show (default {SHOWN})", type=whole_number(1, MOST_SHOWN), default=SHOWN
    )


def run_ledger(args: argparse.Namespace) -> int:
    """Print the ledger of the records on disk, under the names that the peers have now."""
    found = find_ledger(args.data_dir, args.run_id)
    return print_result(args, found, describe_ledger(found))


def describe_ledger(found: dict[str, Any]) -> list[str]:
    """Return the ledger as lines for a person: the members, and their teams."""
    from peer.formatting import table
    from protocol.formatting import amount, clean, many, naming

    name, each = naming(found["names"]), f" (each of one of {found['fragments']} fragments)" * (found["fragments"] > 1)
    lines = [f"run {found['run']}: {many(found['rounds'], 'round')}{each}, {amount(found['tokens'])} tokens"]
    has_rollouts = any(member["batches"] for member in found["members"])
    if has_rollouts:
        lines.append(
            f"learned from {amount(found['accepted_tokens'])} tokens of rollouts, each credited to the peer that made it"
        )

    def row(who: str, count: int, told: Mapping[str, Any], batches: str) -> tuple[str, ...]:
        made = (batches, amount(told["accepted_tokens"])) if has_rollouts else ()
        return (who, str(count), amount(told["tokens"]), f"{100 * told['share']:.1f} %", *made)

    rollouts, audits = ("BATCHES", "ACCEPTED") if has_rollouts else (), found["audits"]
    rows = [("PEER", "ROUNDS", "TOKENS", "SHARE", *rollouts, *(("AUDITED", "CREDITED") if audits else ()))]
    for told in found["members"]:
        who = name(told["peer"]) + (" (me)" if told["peer"] == found["me"] else "")
        audited = [amount(told[name]) for name in ("audited_tokens", "credited_tokens")] if audits else []
        rows.append((*row(who, told["rounds"], told, str(told["batches"])), *audited))
    lines += table(rows, numbers=range(1, 8))
    for peer, each in audits.items():
        if each["set_aside"]:
            lines.append(f"{name(peer)} is set aside here until round {each['aside_until']}: {clean(each['set_aside'])}")
    if found["teams"]:
        rows = [("TEAM", "PEERS", "TOKENS", "SHARE", *("", "ACCEPTED")[: len(rollouts)])]
        rows += [row(clean(told["team"]), told["peers"], told, "") for told in found["teams"]]
        lines += ["", *table(rows, numbers=range(1, 6))]
    return [*lines, found["remark"]] if found["remark"] else lines


def find_ledger(folder: Path, wanted: str | None) -> dict[str, Any]:
    """Return the ledger, with the run's ID as "run", our peer ID as "me", and the peers' own names and teams.

    audits: what a running peer's audits found, by peer.
    fragments: number of fragments, of which a round exchanges one.  remark: sentence about tokens that cannot be audited, or
    empty.
    """
    from peer.control.client import ControlClient, ControlError, NotRunning
    from peer.control.history import RunHistory
    from peer.control.ledger import ledger_of, team_credits, with_audits
    from peer.joining.purpose import ledger_remark
    from peer.joining.run_source import stored_manifest
    from peer.joining.run_word import chosen_folder
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
    chosen, me = folder / "runs" / status.run if status is not None else chosen_folder(wanted, folder), ""
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
    swarm = status.swarm if status is not None else []
    members = [{**member, "team": history.teams.get(member["peer"], "")} for member in with_audits(told["members"], swarm)]
    teams = team_credits(told, history.teams)
    audits = {
        each.peer: {"audits": each.audits, "set_aside": each.set_aside, "aside_until": each.aside_until}
        for each in swarm
        if each.audits or each.set_aside
    }
    about = {"audits": audits, "fragments": signed.manifest.fragments, "remark": ledger_remark(signed.manifest)}
    return {"run": chosen.name, "me": me, "names": history.names, **told, "members": members, "teams": teams, **about}


def run_readmit(args: argparse.Namespace) -> int:
    """Ask the peer here to let a member take part again."""
    from protocol.formatting import clean

    told = ask(args, "readmit", peer=args.peer)
    print(
        f"{clean(told['name'], 40)} takes part again, as far as this peer decides; it was set aside because "
        f"{clean(told['reason'])}."
    )
    return ExitCode.OK


SHOWN = 20
MOST_SHOWN = 1000


def run_rollouts(args: argparse.Namespace) -> int:
    """Print this peer's rollouts from the event log of the run, whether the peer runs or not."""
    from peer.control.event_log import LOG_NAMES
    from peer.control.ledger import told_rollouts
    from peer.joining.run_word import chosen_folder

    folder = chosen_folder(args.run_id, args.data_dir, LOG_NAMES[0])
    found = told_rollouts(folder, args.last)
    if found is None:
        raise PeerError(
            f"the peer here has seen no rollouts in the run {folder.name[:12]}; only a run with a section [rl] has "
            "any, and its peers make or judge them with `peer join --role rollout` or `--role validator`",
            ExitCode.INPUT,
        )
    return print_result(args, {"run": folder.name, **found}, describe_rollouts(found))


WORDS = {
    "rollout": (
        "generated",
        "this peer made {}: {accepted} accepted, {rejected} rejected, {stale} got too old, {waiting} not judged yet",
    ),
    "validator": ("judged", "this peer judged {} of others: {accepted} accepted, {rejected} rejected, {unsure} unsure"),
    "trainer": ("used", "this trainer learned from {}; {accepted} accepted, {rejected} rejected, {stale} got too old"),
}
"""Words by the peer's role: the name of the first count, and the sentence.

Only events that are still in the log are counted.
"""


def describe_rollouts(found: dict[str, Any]) -> list[str]:
    """Return the findings as lines for a person."""
    from peer.formatting import fit, table
    from protocol.formatting import amount, clean, many, naming, number

    counts, role = found["counts"], found["role"]
    first, words = WORDS[role]
    lines = [words.format(many(counts[first], "batch", "batches"), **counts)]
    if role == "rollout":
        lines.append(f"the run learned from {amount(found['accepted_tokens'])} of their tokens, according to the records")
    if found["reward"] is not None:
        lines.append(f"mean reward of the last round: {number(found['reward'])}")
    name = naming(found["names"])
    for aside in found["set_aside"]:
        what = "rollouts" if aside["role"] == "rollout" else "verdicts"
        lines.append(f"set aside: {what} of {name(aside['peer'])}: {clean(aside['reason'], 200)}")
    if not found["batches"]:
        return [*lines, "no batch yet"]
    rows = [("AUTHOR", "VERSION", "BATCH", "VERDICT", "WHY")]
    for batch in found["batches"]:
        who = "me" if batch["author"] == found["peer"] else name(batch["author"])
        judges = ", ".join("me" if each == found["peer"] else name(each) for each in batch["judges"][-2:])
        used = f"learned from in round {batch['round']}" if batch["round"] is not None else ""
        why = ", ".join(part for part in (clean(batch["reason"], 100), f"by {judges}" if judges else "", used) if part)
        rows.append((who, str(batch["version"]), str(batch["number"]), batch["verdict"], why))
    lines += [fit(row, 200).rstrip() for row in table(rows, numbers=(1, 2))]
    if found["untold"]:
        most = min(MOST_SHOWN, len(found["batches"]) + found["untold"])
        lines.append(f"and {found['untold']} before; --last {most} shows them")
    return lines
