"""Panel of all peers of the run, this one first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from rich.text import Text

from peer.formatting import amount, clean, duration, fit, pad, short
from protocol.events.status import PeerStatus, SwarmPeer
from tui.panels.drawing import FAINT, GOOD, STRONG, WARNING, Look, line
from tui.picture import Picture

TITLE = "Swarm"
NAME = 24
WIDTHS = (NAME, 10, 11, 5, 8, 7, 12)
"""Widths of name, role, phase, round, rate, share and link.  Columns are never cut, because a cut number is wrong."""
ORDERS: tuple[tuple[str, Callable[[SwarmPeer], tuple[object, ...]]], ...] = (
    ("name", lambda known: (known.liveness != "alive", known.name.lower(), known.peer)),
    ("tokens/s", lambda known: (-known.tokens_per_s, known.peer)),
    ("round", lambda known: (-known.round, -known.steps, known.peer)),
    ("last seen", lambda known: (-known.heard_s, known.peer)),
)


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw the titles, this peer, and as many other peers as fit, in the chosen order."""
    status = picture.status
    if status is None:
        return []
    title, key = ORDERS[look.order % len(ORDERS)]
    others = sorted(status.swarm, key=key)
    totals = defaultdict(float, {status.role: status.tokens_per_s})
    for known in others:
        totals[known.role] += known.tokens_per_s if known.liveness == "alive" else 0.0
    titles = (f"{'PEER':<{NAME}}", f"{'ROLE':<10}", f"{'PHASE':<11}", "ROUND", f"{'TOK/S':>8}", f"{'SHARE':>7}", "  LINK")
    head = _shown(titles, width)
    lines = [line((fit(f"{head}   by {title}" if width > 96 else head, width), STRONG))]
    lines.append(_row(_me(status), totals, width, mine=True))
    shown = look.window(len(others), height - len(lines))
    lines += [_row(others[place], totals, width) for place in shown]
    if shown and len(shown) < len(others):
        lines[-1] = line((fit(f"… {len(others) - len(shown) + 1} more; scroll with the arrows", width), FAINT))
    return lines


def _me(status: PeerStatus) -> SwarmPeer:
    return SwarmPeer(
        peer=status.peer,
        name=f"{clean(status.name, 10)} (me)",
        role=status.role,
        phase=status.phase,
        round=status.round,
        steps=status.steps,
        tokens_per_s=status.tokens_per_s,
        liveness="alive",
        link="me",
        heard_s=0.0,
        version=status.version,
    )


def _row(known: SwarmPeer, totals: Mapping[str, float], width: int, *, mine: bool = False) -> Text:
    alive = known.liveness == "alive"
    link = (clean(known.link, 10) or "-") if alive else f"{duration(known.heard_s)} ago"
    total = totals[known.role]  # total of its role: generated tokens and trained tokens cannot be compared
    share = f"{100 * known.tokens_per_s / total:.0f} %" if total > 0 and alive else "-"
    cells = (
        pad(f"{clean(known.name, 15)} {short(known.peer)}", NAME),
        f"{fit(known.role, 9):<10}",
        f"{fit(known.phase if alive else known.liveness, 10):<11}",
        f"{known.round:>5}",
        f"{amount(known.tokens_per_s):>8}",
        f"{share:>7}",
        f"  {link}",
    )
    return line((fit(_shown(cells, width), width), GOOD if mine else "" if alive else WARNING))


def _shown(cells: Sequence[str], width: int) -> str:
    """Return the columns that fit, and the first one in any case."""
    return "".join(cell for cell, end in zip(cells, accumulate(WIDTHS), strict=True) if end <= max(width, NAME))
