"""Panel of all peers of the run, this one first; alone on the screen also with the details of one of them."""

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
DETAILS = 6
"""Lines of the details of a peer."""
LEAST_HEIGHT = 14
"""Lines of the panel below which the details would leave too few peers."""
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
    if look.search:
        others = [known for known in others if look.search.lower() in f"{known.name} {known.peer}".lower()]
    totals = defaultdict(float, {status.role: status.tokens_per_s})
    for known in others:
        totals[known.role] += known.tokens_per_s if known.liveness == "alive" else 0.0
    titles = (f"{'PEER':<{NAME}}", f"{'ROLE':<10}", f"{'PHASE':<11}", "ROUND", f"{'TOK/S':>8}", f"{'SHARE':>7}", "  LINK")
    head = _shown(titles, width)
    lines = [line((fit(f"{head}   by {title}" if width > 96 else head, width), STRONG))]
    if look.alone and height >= LEAST_HEIGHT:
        return lines + _with_details([_me(status), *others], totals, width, height - 1, look)
    lines.append(_row(_me(status), totals, width, mine=True))
    shown = look.window(len(others), height - len(lines))
    lines += [_row(others[place], totals, width) for place in shown]
    if shown and len(shown) < len(others):
        lines[-1] = line((fit(f"… {len(others) - len(shown) + 1} more; scroll with the arrows", width), FAINT))
    return lines


def _with_details(
    peers: Sequence[SwarmPeer], totals: Mapping[str, float], width: int, height: int, look: Look
) -> list[Text]:
    """Draw a page of peers, with the chosen one on it, and its details below.  The first peer is this one."""
    places = {known.peer: place for place, known in enumerate(peers)}
    chosen = max(0, min(places.get(look.chosen, 0) + look.moved, len(peers) - 1))
    look.chosen, look.moved, look.scroll = peers[chosen].peer, 0, 0
    room = height - DETAILS - 2
    first = chosen // room * room
    lines = [
        _row(known, totals, width, mine=place == 0, chosen=place == chosen)
        for place, known in list(enumerate(peers))[first : first + room]
    ]
    lines += [line("")] * (room - len(lines))
    found = f", with {look.search!r} in the name or ID" if look.search else ""
    keys = f"{chosen + 1} of {len(peers)}{found}; up and down choose, / finds, s sorts"
    return [*lines, line((fit(keys, width), FAINT)), line(""), *_details(peers[chosen], width)]


def _details(known: SwarmPeer, width: int) -> list[Text]:
    """Draw what is known of a peer, in `DETAILS` lines."""
    link = clean(known.link, 10) or "not connected"
    heard = "this peer" if link == "me" else f"{clean(known.liveness, 12)}, heard {duration(known.heard_s)} ago; {link}"
    steps = f", step {known.steps} of the next" if known.steps else ""
    rows = (
        ("peer", f"{clean(known.name, 40)}  {known.peer}"),
        ("work", f"{clean(known.role, 12)}, {clean(known.phase, 20)}, {amount(known.tokens_per_s)} tokens/s"),
        ("team", clean(known.team, 24) or "-"),
        ("rounds", f"{known.round}{steps}"),
        ("seen", f"{heard}; version {clean(known.version, 20) or 'unknown'}"),
        ("address", ", ".join(clean(address, 100) for address in known.addresses[:3]) or "-"),
    )
    assert len(rows) == DETAILS
    return [line((f"{name:<10}", FAINT), fit(text, max(0, width - 10))) for name, text in rows]


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
        team=status.team,
    )


def _row(known: SwarmPeer, totals: Mapping[str, float], width: int, *, mine: bool = False, chosen: bool = False) -> Text:
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
    style = GOOD if mine else "" if alive else WARNING
    return line((fit(_shown(cells, width), width), f"{style} reverse".strip() if chosen else style))


def _shown(cells: Sequence[str], width: int) -> str:
    """Return the columns that fit, and the first one in any case."""
    return "".join(cell for cell, end in zip(cells, accumulate(WIDTHS), strict=True) if end <= max(width, NAME))
