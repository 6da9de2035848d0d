"""`peer status`: the current work of the peer of this data directory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode

if TYPE_CHECKING:
    from peer.commands import Subparsers
    from protocol.events.status import PeerStatus, RolloutStatus


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(subparsers, "status", "show what the peer here is doing", run)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the status; exit code 5 when no peer runs here."""
    from peer.console.streams import print_json
    from peer.control.client import ControlClient, NotRunning
    from peer.paths import data_dir

    try:
        status = ControlClient(data_dir(args.data_dir)).status()
    except NotRunning as error:
        if args.json:
            print_json({"running": False, "reason": str(error)})
        else:
            text = error.with_remedy
            print(f"{text[:1].upper()}{text[1:]}")
        return ExitCode.NOT_RUNNING
    if args.json:
        print_json({"running": True, **status.to_fields()})
    else:
        print("\n".join(describe(status)))
    return ExitCode.OK


def _held_out(status: PeerStatus) -> str:
    """Describe the newest held-out loss with the peer that measured it, and the progress of the next measurement."""
    from peer.formatting import many, naming, number

    text = "held out -"
    if status.eval_loss is not None and status.eval_by is not None:
        by = naming(status.names())(status.eval_by)
        text = f"held out {number(status.eval_loss)} after {many(status.eval_rounds or 0, 'round')} (measured by {by})"
    return text if status.eval_percent is None else f"{text}, measuring: {status.eval_percent} %"


def _reachable(status: PeerStatus) -> str:
    """Describe whether and where other peers reach this one."""
    if status.reachable == "unknown":
        return "not known yet"
    there = [address for address, verdict in status.reachability.items() if verdict == "reachable"]
    return f"yes, at {', '.join(there)}" if there else "no; this peer reaches others, who cannot reach it"


def _rounds(status: PeerStatus) -> str:
    """Describe the rounds committed, and how many of them are final; the others could still be replaced (provisional)."""
    provisional = status.round - status.final_rounds
    if not status.round:
        return "0"
    return (
        f"{status.round} (all final)"
        if not provisional
        else f"{status.round} ({status.final_rounds} final, {provisional} provisional)"
    )


def _members(status: PeerStatus) -> str:
    return f"{len(status.members)} in the last round" if status.round else "none before the first round"


def _rollouts(role: str, told: RolloutStatus) -> str:
    """Describe this peer's work on rollouts, by its role, and their verdicts."""
    from peer.formatting import amount, many, number

    if role == "rollout":
        did = f"{many(told.generated, 'batch', 'batches')} made at {amount(told.generated_tokens_per_s)} tokens/s"
    elif role == "validator":
        did = f"verifying {told.verified_per_s:.1f} rollouts/s"
    else:
        did = f"learned from {many(told.used, 'batch', 'batches')}"
    verdicts = f"{told.accepted} accepted, {told.rejected} rejected, {told.waiting} waiting"
    earned = f", {amount(told.accepted_tokens)} tokens learned from" if role == "rollout" else ""
    aside = f"; {many(told.set_aside, 'peer')} set aside" if told.set_aside else ""
    return f"version {told.version}, reward {number(told.reward)}; {did}: {verdicts}{earned}{aside}"


def describe(status: PeerStatus) -> list[str]:
    """Return the status as lines for a person."""
    from peer.formatting import amount, clean, duration, goal_line, many, number, short, size, to_go

    why = clean(status.why_detail or status.why_idle, 200)
    left = to_go(status.round_left_s)
    todo = [f"to do     {status.why_remedy}"] if status.why_remedy else []
    if status.finishing:
        within = duration(status.finishing_left_s or 0.0)
        todo.append(
            f"finishing leaves after round {status.round}, in {within} at most; it waits for: {clean(status.finishing, 200)}"
        )
    skewed = [f"clock     {status.clock_skew}; set it (invitations end by it)"] if status.clock_skew else []
    rollouts = [f"rollouts  {_rollouts(status.role, status.rollouts)}"] if status.rollouts is not None else []
    lines = [
        f"peer      {clean(status.name)} {status.peer}",
        f"run       {clean(status.run_name)} {status.run}",
        f"doing     {status.phase}" + (f": {why}" if why else ""),
        *todo,
        f"goal      {goal_line(status)}",
        f"round     {_rounds(status)}, step {status.steps} of {status.inner_steps}" + (f", {left}" if left else ""),
        f"tip       {status.tip[:32] or '-'}",
        f"state     after {many(status.state_rounds, 'round')}, digest {status.state_digest[:32] or '-'}",
        f"loss      {number(status.loss)}, {_held_out(status)}",
        f"speed     {amount(status.tokens_per_s)} tokens/s",
        *rollouts,
        *skewed,
        f"traffic   {size(status.up_bytes)} up, {size(status.down_bytes)} down",
        f"trainer   {f'process {status.trainer_pid}' if status.trainer_pid else 'not running'}",
        f"running   for {duration(status.uptime_s)}, version {status.version}",
        f"reachable {_reachable(status)}",
        f"members   {_members(status)}, {many(status.peers, 'other peer')} here",
    ]
    if status.invite_command:
        lines.append(f"invite    with: {clean(status.invite_command, 500)}")
    elif status.invitation:
        lines.append(f"invite    with: {clean(status.invitation, 8000)}")
    for known in status.swarm:
        seen = "" if known.liveness == "alive" else f" ({known.liveness})"
        who = f"{clean(known.name)} {short(known.peer)}"
        lines.append(f"          {who}: {known.phase}, round {known.round}{seen}")
    return lines
