"""Panel of this peer: its contribution so far, its processes and its state."""

from __future__ import annotations

from rich.text import Text

from peer.formatting import computer_rows, contribution_rows, goal_line, limit_rows, rounds_line, trainer_line
from protocol.events.status import PeerStatus
from protocol.formatting import amount, clean, duration, many, number, short, size
from tui.panels.drawing import Look, hanging
from tui.picture import Picture

TITLE = "Me"
LABEL = 10
ADDRESS = 200
"""Characters of an address; more have no use."""
ROLES = {"trainer": "trainers", "rollout": "rollout peers", "validator": "validators"}


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw as many rows as fit, the most important first."""
    status = picture.status
    if status is None:
        return []
    others = [known for known in status.swarm if known.liveness == "alive" and known.role == status.role]
    total = status.tokens_per_s + sum(known.tokens_per_s for known in others)
    share = (
        f", {100 * status.tokens_per_s / total:.0f} % of all {ROLES.get(status.role, 'peers')}"
        if others and total > 0
        else ""
    )
    seen = f"{picture.counted} of {many(picture.committed, 'round')} seen here, the last {picture.streak} in a row"
    there = [clean(address, ADDRESS) for address, verdict in status.reachability.items() if verdict == "reachable"]
    reached = {"reachable": f"reach this peer at {', '.join(there)}", "unreachable": "cannot reach this peer"}
    organised = f"; organised by {short(status.organiser)}" if status.organiser else ""
    rows = (
        _work(status, share),
        *(contribution_rows(status) or [("counted", seen)]),
        *computer_rows(status),
        *limit_rows(status),
        *([("run", f"{goal_line(status)}{organised}")] if status.goal_total else []),
        ("moved", f"{size(status.up_bytes)} up, {size(status.down_bytes)} down"),
        ("running", f"for {duration(status.uptime_s)}, version {clean(status.version)}, process {status.pid}"),
        ("trainer", trainer_line(status)),
        ("state", f"after {many(status.state_rounds, 'round')}, {status.state_digest[:12] or '-'}"),
        ("committed", rounds_line(status)),
        ("listening", ", ".join(clean(address, ADDRESS) for address in status.addresses) or "-"),
        ("others", reached.get(status.reachable, "were not asked yet if they can reach this peer")),
    )
    lines = [each for label, text in rows for each in hanging(label, text, width, LABEL)]
    return [lines[place] for place in look.window(len(lines), height)]


def _work(status: PeerStatus, share: str) -> tuple[str, str]:
    """Return the name of the peer's work, and its speed and results."""
    told, rate = status.rollouts, f"{amount(status.tokens_per_s)} tokens/s{share}"
    if told is not None and status.role == "rollout":
        return "rollouts", f"{rate}; {many(told.generated, 'batch', 'batches')} made, {told.rejected} rejected"
    if told is not None and status.role == "validator":
        return "verifying", f"{told.verified_per_s:.1f} rollouts/s"
    return "training", f"{rate}; loss now {number(status.loss)}"
