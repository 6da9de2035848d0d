"""Panel of the training progress: the loss of the rounds, the held-out loss, tokens per second."""

from __future__ import annotations

from rich.text import Text

from peer.formatting import amount, fit, many, naming, number
from peer.sentences import preferences_of
from protocol.events.events import EvalLoss
from protocol.events.status import PeerStatus, SwarmPeer
from tui.panels.drawing import FAINT, GOOD, Look, curve, line
from tui.picture import Picture

TITLE = "Training"


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw lines of numbers, of the held-out loss, of preferences and of each of several sources, and the curve below."""
    status = picture.status
    mine = status.tokens_per_s if status is not None else 0.0
    swarm = mine + sum(known.tokens_per_s for known in status.swarm if _counts(known, status)) if status else 0.0
    losses = [loss for _, loss in picture.losses]
    newest = number(losses[-1]) if losses else number(status.loss if status is not None else None)
    head = f"loss {newest}   tokens/s: {amount(mine)} here, {amount(swarm)} in the swarm"
    lines = [line(fit(head, width)), line((fit(_held_out(picture), width), GOOD if picture.evals else FAINT))]
    if picture.ready is not None and (pairs := preferences_of(picture.ready)):
        lines.append(line(fit(pairs, width)))
    if status is not None and len(status.losses) > 1:
        lines += [line(fit(_of_source(source, loss, status), width)) for source, loss in status.losses.items()]
        lines = lines[: max(2, height)]
    if len(losses) < 2 and status is not None and status.role != "trainer":
        losses = [each.loss for each in picture.evals]  # a peer that only follows commits no rounds
    if len(losses) < 2:
        which = "round" if status is None or status.role == "trainer" else "held-out loss"
        return [*lines, line((fit(f"the curve starts with the second {which}", width), FAINT))]
    drawn = curve(losses, width, height - len(lines), unicode=look.unicode)
    return [*lines, *(line((row, GOOD)) for row in drawn)]


def _of_source(source: str, loss: float, status: PeerStatus) -> str:
    """Describe the losses of a source."""
    measured = status.eval_losses.get(source)
    return f"  {source}: loss {number(loss)}" + (f", held out {number(measured)}" if measured is not None else "")


def _counts(known: SwarmPeer, status: PeerStatus) -> bool:
    """Return True if the peer is alive and has our role: generated and trained tokens must not be added together."""
    return known.liveness == "alive" and known.role == status.role


def _held_out(picture: Picture) -> str:
    status = picture.status
    percent = status.eval_percent if status is not None else None
    measuring = f", measuring {percent} %" if percent is not None else ""
    if picture.evals:
        found = picture.evals[-1]
    elif status is not None and status.eval_loss is not None and status.eval_rounds is not None:
        found = EvalLoss(status.eval_rounds, status.eval_loss, status.eval_by or "", members=status.eval_members)
    else:
        return "no held-out loss yet" + measuring
    source = f"by {naming(picture.names)(found.by)}" if found.members == 1 else f"mean of {found.members} members"
    return f"held out {number(found.loss)} after {many(found.rounds, 'round')}, {source}{measuring}"
