"""Panel of all peers of the run, this one first; alone on the screen also with the details of one of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import inf

from rich.text import Text

from peer.formatting import claimed_pace, fit, pad
from protocol.events.rollout_tally import ACCEPTED, REJECTED
from protocol.events.status import PeerStatus, SwarmPeer
from protocol.formatting import amount, clean, duration, many, short, size
from tui.contributions import Contributions
from tui.panels.drawing import FAINT, GOOD, STRONG, WARNING, Look, hanging, line
from tui.picture import PeerAudit, Picture

TITLE = "Swarm"
NAME = 24
WIDTHS = (NAME, 10, 11, 5, 8, 7, 12, 13, 10)
"""Widths of name, role, phase, round, rate, share, link, distance and tokens so far.

Columns are never cut, because a cut number is wrong.
"""
LEAST_PEERS = 4
"""Lines of peers above the details of one, which may take many lines."""
LEAST_HEIGHT = 16
"""Lines of the panel below which the details would leave too few peers."""
NEAR_S = 0.05
"""Round trip below which a peer on the internet is near."""
GROUPS = ("this computer", "home network", f"nearer than {1000 * NEAR_S:.0f} ms", "farther", "without a measured connection")
"""Groups of peers by their distance in the network."""
DISTANCE = "distance"


@dataclass(frozen=True)
class Order:
    """Order of the peers.  column: the column by which they are sorted.  key: the sort key of a peer."""

    name: str
    column: int
    key: Callable[[SwarmPeer, Contributions], tuple[object, ...]]


ORDERS = (
    Order("name", 0, lambda known, _: (known.liveness != "alive", known.name.lower(), known.peer)),
    Order("tokens/s", 4, lambda known, _: (-known.tokens_per_s, known.peer)),
    Order("round", 3, lambda known, _: (-known.round, -known.steps, known.peer)),
    Order("last seen", 6, lambda known, _: (-known.heard_s, known.peer)),
    Order(
        "tokens so far", 8, lambda known, counted: (each.rank if (each := counted.of.get(known.peer)) else inf, known.peer)
    ),
    Order(DISTANCE, 7, lambda known, _: (_group(known), known.round_trip_s or inf, known.peer)),
)


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw the titles, this peer, and as many other peers as fit, in the chosen order."""
    status = picture.status
    if status is None:
        return []
    order = ORDERS[look.order % len(ORDERS)]
    others = sorted(status.swarm, key=lambda known: order.key(known, picture.contributions))
    if look.search:
        others = [known for known in others if look.search.lower() in f"{known.name} {known.peer} {known.team}".lower()]
    totals = defaultdict(float, {status.role: status.tokens_per_s})
    for known in others:
        totals[known.role] += known.tokens_per_s if known.liveness == "alive" else 0.0
    titles = (
        f"{'PEER':<{NAME}}",
        f"{'ROLE':<10}",
        f"{'PHASE':<11}",
        "ROUND",
        f"{'TOK/S':>8}",
        f"{'SHARE':>7}",
        f"  {'LINK':<10}",
        f"{'DISTANCE':>13}",
        f"{'TOKENS':>10}",
    )
    heads = _fitting(titles, width)
    lines = [line(*((text, STRONG if place == order.column else FAINT) for place, text in enumerate(heads)))]
    if look.alone and height >= LEAST_HEIGHT:
        rows = _grouped(others) if order.name == DISTANCE else others
        return lines + _with_details([_me(status), *rows], totals, picture, width, height - 1, look)
    lines.append(_row(_me(status), totals, picture, width, mine=True))
    if not others:
        nobody = "no other peer yet; i copies the invitation"
        if look.search:
            nobody = f"no peer has {look.search!r} in its name, ID or team; / asks anew"
        lines.append(line((fit(nobody, width), FAINT)))
    shown = look.window(len(others), height - len(lines))
    lines += [_row(others[place], totals, picture, width) for place in shown]
    if shown and len(shown) < len(others):
        lines[-1] = line((fit(f"… {len(others) - len(shown) + 1} more; scroll with the arrows", width), FAINT))
    return lines


def _group(known: SwarmPeer) -> int:
    """Return the place in `GROUPS` of a peer."""
    if known.reach in GROUPS[:2]:
        return GROUPS.index(known.reach)
    if known.round_trip_s is None:
        return len(GROUPS) - 1
    return 2 if known.round_trip_s < NEAR_S else 3


def _grouped(peers: Sequence[SwarmPeer]) -> list[SwarmPeer | str]:
    """Return the peers, with a heading before each group."""
    found = list[SwarmPeer | str]()
    for group, members in groupby(peers, key=_group):
        known = [*members]
        found += [f"{GROUPS[group]}: {many(len(known), 'peer')}", *known]
    return found


def _with_details(
    rows: Sequence[SwarmPeer | str], totals: Mapping[str, float], picture: Picture, width: int, height: int, look: Look
) -> list[Text]:
    """Draw a page of peers and headings, with the chosen peer on it, and its details below.  The first peer is this one."""
    peers = [(place, row) for place, row in enumerate(rows) if isinstance(row, SwarmPeer)]
    places = {known.peer: place for place, (_, known) in enumerate(peers)}
    chosen = max(0, min(places.get(look.chosen, 0) + look.moved, len(peers) - 1))
    at, known = peers[chosen]
    look.chosen, look.moved, look.scroll = known.peer, 0, 0
    details = _details(known, picture, width)[: height - LEAST_PEERS - 2]
    room = height - len(details) - 2
    first = at // room * room
    lines = [
        _row(row, totals, picture, width, mine=place == 0, chosen=place == at)
        if isinstance(row, SwarmPeer)
        else line((fit(row, width), FAINT))
        for place, row in list(enumerate(rows))[first : first + room]
    ]
    lines += [line("")] * (room - len(lines))
    found = f", with {look.search!r} in the name, ID or team" if look.search else ""
    by = ORDERS[look.order % len(ORDERS)].name
    keys = f"{chosen + 1} of {len(peers)}{found}, by {by}; up and down choose, / finds, s sorts"
    return [*lines, line((fit(keys, width), FAINT)), line(""), *details]


def _details(known: SwarmPeer, picture: Picture, width: int) -> list[Text]:
    """Draw what is known of a peer."""
    steps = f", step {known.steps} of the next" if known.steps else ""
    has_line = known.line_up_bytes_per_s or known.line_down_bytes_per_s
    its_line = f"{size(known.line_up_bytes_per_s)}/s up, {size(known.line_down_bytes_per_s)}/s down, by its own measurements"
    rows = (
        ("peer", f"{clean(known.name, 40)}  {known.peer}"),
        (
            "work",
            f"{clean(known.role, 12)}, {clean(known.phase, 20)}, {claimed_pace(known)}; "
            f"after {many(known.round, 'round')}{steps}",
        ),
        ("counted", _counted(known, picture)),
        ("audits", _audited(known, picture)),
        ("link", _link(known, picture)),
        ("its line", its_line if has_line else "not measured yet"),
        ("seen", _seen(known)),
        ("address", ", ".join(clean(address, 100) for address in known.addresses[:3]) or "-"),
    )
    return [each for name, text in rows for each in hanging(name, text, width, 10)]


def _counted(known: SwarmPeer, picture: Picture) -> str:
    """Return a peer's contribution by the records, and its team."""
    team = f"; team {clean(known.team, 24)}" if clean(known.team, 24) else ""
    credit = picture.contributions.of.get(known.peer)
    if credit is None:
        return ("nothing yet" if picture.contributions.peers else "not known yet") + team
    told = f"{many(credit.rounds, 'round')}, {amount(credit.tokens)} tokens ({100 * credit.share:.1f} %)"
    if known.set_aside:
        told += ", none credited here"
    if credit.batches:
        told += f", {many(credit.batches, 'batch', 'batches')} of {amount(credit.accepted_tokens)} tokens learned from"
    return f"{told}; place {credit.rank} of {picture.contributions.peers}{team}"


def _audited(known: SwarmPeer, picture: Picture) -> str:
    """Return the outcomes of this peer's checks of another one."""
    checks, batches = picture.audits.get(known.peer, PeerAudit()), picture.rollouts.last(author=known.peer)
    if checks.proven:
        return f"! ejected: {clean(checks.proven, 200)}"
    aside = [each for each in picture.rollouts.aside if each.peer == known.peer]
    verdicts = Counter(batch.verdict for batch in batches)
    told = [
        f"! set aside: {clean(aside[-1].reason, 100)}" if aside else "",
        f"! set aside until round {known.aside_until}: {clean(known.set_aside, 100)}" if known.set_aside else "",
        f"{many(known.audits, 'contribution')} of {amount(known.audited_tokens)} tokens audited here"
        if known.audits
        else "",
        f"{many(checks.right, 'average')} recomputed here, all correct" if checks.right else "",
        f"{verdicts[ACCEPTED]} of the last {many(len(batches), 'batch', 'batches')} accepted, {verdicts[REJECTED]} rejected"
        if batches
        else "",
        f"stopped delivering in {many(checks.lost, 'exchange')}" if checks.lost else "",
    ]
    return "; ".join(each for each in told if each) or "nothing checked here yet"


def _link(known: SwarmPeer, picture: Picture) -> str:
    """Return a peer's connection, its distance and its present rates."""
    if known.link == "me":
        return "this peer"
    if not known.link:
        return "not connected"
    up, down = picture.peer_rates.get(known.peer, (0.0, 0.0))
    parts = (clean(known.link, 10), known.reach if known.reach in GROUPS else "", _round_trip(known))
    return f"{', '.join(each for each in parts if each)}; {size(up)}/s to it, {size(down)}/s from it"


def _seen(known: SwarmPeer) -> str:
    version = f"version {clean(known.version, 20) or 'unknown'}"
    if known.link == "me":
        return f"started {duration(known.known_s)} ago; {version}"
    since = f"known for {duration(known.known_s)}; " if known.known_s else ""
    return f"{clean(known.liveness, 12)}, heard {duration(known.heard_s)} ago; {since}{version}"


def _round_trip(known: SwarmPeer) -> str:
    trip = known.round_trip_s
    if trip is None:
        return ""
    return "< 0.1 ms" if trip < 1e-4 else f"{1000 * trip:.1f} ms" if trip < 0.01 else f"{1000 * trip:.0f} ms"


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
        known_s=status.uptime_s,
        addresses=status.addresses,
    )


def _row(
    known: SwarmPeer,
    totals: Mapping[str, float],
    picture: Picture,
    width: int,
    *,
    mine: bool = False,
    chosen: bool = False,
) -> Text:
    alive = known.liveness == "alive"
    link = (clean(known.link, 10) or "-") if alive else f"{duration(known.heard_s)} ago"
    where = {"this computer": "here", "home network": "home"}.get(known.reach, "")
    distance = f"{where} {_round_trip(known)}".strip() or "-"
    total = totals[known.role]  # total of its role: generated tokens and trained tokens cannot be compared
    share = f"{100 * known.tokens_per_s / total:.0f} %" if total > 0 and alive else "-"
    counted = picture.contributions.of.get(known.peer)
    cells = (
        pad(f"{clean(known.name, 15)} {short(known.peer)}", NAME),
        f"{fit(known.role, 9):<10}",
        f"{fit(known.phase if alive else known.liveness, 10):<11}",
        f"{known.round:>5}",
        f"{amount(known.tokens_per_s):>8}",
        f"{share:>7}",
        f"  {link:<10}",
        f"{distance if not mine else '':>13}",
        f"{amount(counted.tokens) if counted is not None else '-':>10}",
    )
    style = f"{STRONG} {GOOD}" if mine else "" if alive and not known.set_aside else WARNING
    text = fit("".join(_fitting(cells, width)), width)
    return line((pad(text, width + 1)[:width], "reverse") if chosen else (text, style))


def _fitting(cells: Sequence[str], width: int) -> list[str]:
    """Return the columns that fit, and the first one in any case."""
    return [cell for cell, end in zip(cells, accumulate(WIDTHS), strict=True) if end <= max(width, NAME)]
