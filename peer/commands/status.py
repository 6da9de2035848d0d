"""`peer status`, `peer runs` and `peer id`: the activity of the peer here, its runs, and its identity."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import Subparsers, add_command, option
from peer.console.asking import print_result
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.joining.run_source import KnownRun
    from protocol.events.status import PeerStatus, RolloutStatus

MANY_FRUITLESS = 3
"""Number of rounds in a row without two different rewards from which on the status warns."""


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    add_command(subparsers, "status", "show what the peer here is doing", run_status, json=True)
    add_command(
        subparsers,
        "runs",
        "list the runs that this peer has been in",
        run_runs,
        epilog="`peer join ID` continues one of them, without an invitation; its first 8 digits suffice.",
        json=True,
    )
    identity = add_command(
        subparsers,
        "id",
        "show, export or import this peer's identity",
        run_id,
        epilog="Without a command it prints the peer ID; the first use creates the identity.",
    )
    group = identity.add_subparsers(title="commands", metavar="COMMAND")
    export = add_command(group, "export", "write the private key to a file, as a copy to keep safe", run_id_export)
    option(export, "file FILE", "a new file (PEM, mode 0600), or - for the terminal")
    bring = add_command(group, "import", "take the private key from a file", run_id_import)
    option(bring, "file FILE", "a file written by `peer id export`, or one line of base64; - reads stdin")
    option(bring, "--force", "replace the identity that is there, and keep it as `identity.old-N.pem`")


START_S = 30.0
"""Seconds for which a person waits for the status of a peer that is starting; a program is answered at once."""


def run_status(args: argparse.Namespace) -> int:
    """Print the status; exit code 5 when no peer runs here."""
    from peer.control.client import ControlClient, NotRunning

    client = ControlClient(args.data_dir)
    try:
        status = client.status() if args.json else client.status_once_started(START_S)
    except NotRunning as error:
        text = error.with_remedy
        print_result(args, {"running": False, "reason": str(error)}, [f"{text[:1].upper()}{text[1:]}"])
        return ExitCode.NOT_RUNNING
    return print_result(args, {"running": True, **status.to_fields()}, describe_status(status))


def _held_out(status: PeerStatus) -> str:
    """Describe the newest held-out loss, the peer that measured it, and the progress of the next measurement."""
    from protocol.formatting import many, naming, number

    text = "not measured yet on held-out rows"
    if status.eval_loss is not None and status.eval_by is not None:
        source = f"measured by {naming(status.names())(status.eval_by)}"
        if status.eval_members > 1:
            source = f"mean of {status.eval_members} members"
        text = f"{number(status.eval_loss)} on held-out rows after {many(status.eval_rounds or 0, 'round')} ({source})"
    return text if status.eval_percent is None else f"{text}, the next is {status.eval_percent} % measured"


def _policy(told: RolloutStatus) -> str:
    """Describe the policy that learned last, and batches left out of learning."""
    from protocol.formatting import number

    text = f", entropy {number(told.entropy)}" if told.entropy is not None else ""
    if told.behaviour_kl is not None and told.effective is not None:
        text += f", {number(told.behaviour_kl)} nats from the policy that made the tokens"
        text += f" (effective {100 * told.effective:.0f} %)"
    return f"{text}, {told.left_out} left out without their weights" if told.left_out else text


def _rollouts(role: str, told: RolloutStatus) -> str:
    """Describe this peer's work on rollouts, by its role, and the verdicts on them."""
    from protocol.formatting import amount, many, number

    if role == "rollout":
        did = f"{many(told.generated, 'batch', 'batches')} made at {amount(told.generated_tokens_per_s)} tokens/s"
    elif role == "validator":
        did = f"verifying {told.verified_per_s:.1f} rollouts/s"
    else:
        did = f"learned from {many(told.used, 'batch', 'batches')}{_policy(told)}"
    verdicts = f"{told.accepted} accepted, {told.rejected} rejected, {told.waiting} waiting"
    earned = f", {amount(told.accepted_tokens)} tokens learned from" if role == "rollout" else ""
    aside = f"; {many(told.set_aside, 'peer')} set aside" if told.set_aside else ""
    nothing = ""
    if told.fruitless_rounds >= MANY_FRUITLESS:
        nothing = f"; NOTHING LEARNED in {told.fruitless_rounds} rounds: all answers to each problem had the same reward"
    return f"version {told.version}, reward {number(told.reward)}; {did}: {verdicts}{earned}{aside}{nothing}"


def describe_status(status: PeerStatus) -> list[str]:
    """Return the status as lines for a person."""
    from peer.formatting import (
        blocks_by_origin,
        claimed_pace,
        computer_rows,
        contribution_rows,
        copies,
        goal_line,
        limit_rows,
        rounds_line,
        trainer_line,
        votes_line,
    )
    from protocol.formatting import amount, clean, duration, many, number, of_fragment, short, size, to_go

    why = clean(status.why_detail or status.why_idle, 200)
    left = to_go(status.round_left_s)
    todo = [f"to do     {status.why_remedy}"] if status.why_remedy else []
    if status.finishing:
        within = duration(status.finishing_left_s or 0.0)
        todo.append(
            f"finishing leaves after round {status.round}, in {within} at most; it waits for: {clean(status.finishing, 200)}"
        )
    part = of_fragment(status.fragment, status.fragments)
    waits = "" if status.trains_ahead else ", waiting"
    steps = f"step {status.ahead_steps} of {status.ahead_inner_steps} of round {status.round + 1}{waits}"
    ahead = [f"ahead     {steps}"] if status.ahead_inner_steps else []
    skewed = [f"clock     {status.clock_skew}; set the clock, by which invitations expire"] if status.clock_skew else []
    rollouts = [f"rollouts  {_rollouts(status.role, status.rollouts)}"] if status.rollouts is not None else []
    blocks = [f"data read {blocks_by_origin(status.block_bytes)}"] if status.block_bytes else []
    if status.copies is not None:
        blocks.append(f"copies    {copies(status.copies)}")
    there = [address for address, verdict in status.reachability.items() if verdict == "reachable"]
    reachable = f"yes, at {', '.join(there)}" if there else "no; this peer can reach others, but they cannot reach it"
    if status.reachable == "unknown":
        reachable = "not known yet"
    members = f"{len(status.members)} in the last round" if status.round else "none before the first round"
    rows = [*contribution_rows(status), *computer_rows(status), *limit_rows(status)]
    lines = [
        f"peer      {clean(status.name)} {status.peer}" + (f", team {clean(status.team, 24)}" if status.team else ""),
        f"run       {clean(status.run_name)} {status.run}",
        f"doing     {status.phase}" + (f": {why}" if why else ""),
        *todo,
        f"goal      {goal_line(status)}",
        f"round     {status.round}{part}, step {status.steps} of {status.inner_steps}" + (f", {left}" if left else ""),
        f"committed {rounds_line(status)}",
        *([f"votes     {votes}"] if (votes := votes_line(status)) else []),
        *ahead,
        f"record    {f'{status.tip[:32]}, the newest' if status.tip else 'none yet'}",
        f"state     after {many(status.state_rounds, 'round')}, hash {status.state_digest[:32] or '-'}",
        f"loss      {'none yet' if status.loss is None else number(status.loss)} in training, {_held_out(status)}",
        f"speed     {amount(status.tokens_per_s)} tokens/s",
        *rollouts,
        *skewed,
        f"traffic   {size(status.up_bytes)} up, {size(status.down_bytes)} down",
        *blocks,
        f"trainer   {trainer_line(status)}",
        *(f"{word:<9} {text}" for word, text in rows),
        f"running   for {duration(status.uptime_s)}, version {clean(status.version)}",
        f"reachable {reachable}",
        f"members   {members}; {many(status.peers, 'other peer')} in the run now",
    ]
    if status.invite_command:
        lines.append(f"invite    with: {clean(status.invite_command, 500)}")
    elif status.invitation:
        lines.append(f"invite    with: {clean(status.invitation, 8000)}")
    for known in status.swarm:
        seen = "" if known.liveness == "alive" else f" ({known.liveness})"
        who = f"{clean(known.name)} {short(known.peer)}"
        lines.append(f"          {who}: {known.phase}, round {known.round}, {claimed_pace(known)}{seen}")
    return lines


def run_runs(args: argparse.Namespace) -> int:
    """Print the runs, latest first."""
    from dataclasses import asdict

    from peer.joining.run_source import known_runs

    folder = args.data_dir
    found = known_runs(folder)
    none = f"no runs in {folder}; `peer join` joins the demo run, `peer join INVITATION` another one"
    fields = {"data_dir": str(folder), "runs": [asdict(each) for each in found]}
    return print_result(args, fields, describe_runs(found) if found else [none])


def describe_runs(found: list[KnownRun]) -> list[str]:
    """Return a heading, and a line for each run."""
    from datetime import datetime

    from peer.formatting import table
    from protocol.formatting import clean, size

    rows = [("RUN", "NAME", "ROUNDS", "DISK", "LAST")]
    for each in found:
        last = "running" if each.running else datetime.fromtimestamp(each.last).strftime("%Y-%m-%d %H:%M")
        name = clean(each.name, 25) if not each.problem else "(damaged manifest)"
        rows.append((each.run[:12], name, str(each.rounds), size(each.disk_bytes), last))
    return table(rows, numbers=(2, 3))


def run_id(args: argparse.Namespace) -> int:
    """Print the peer ID; create the identity if there is none."""
    from peer.keyfile import load_or_create_identity

    print(load_or_create_identity(args.data_dir).peer_id)
    return ExitCode.OK


def run_id_export(args: argparse.Namespace) -> int:
    """Write the private key to a new file; never replace an existing file."""
    from peer.files import write_atomically
    from peer.keyfile import load_identity, to_pem

    folder = args.data_dir
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
    print(f"Wrote the identity {identity.peer_id} to {path}; whoever has this file can act as this peer.")
    return ExitCode.OK


def run_id_import(args: argparse.Namespace) -> int:
    """Import an identity into the data directory."""
    from peer.keyfile import MAX_KEY_BYTES, import_identity

    if args.file == "-":
        data = sys.stdin.buffer.read(MAX_KEY_BYTES + 1)
    else:
        with Path(args.file).open("rb") as file:
            data = file.read(MAX_KEY_BYTES + 1)
    identity = import_identity(args.data_dir, data, force=args.force)
    print(f"This peer is now {identity.peer_id}.")
    return ExitCode.OK
