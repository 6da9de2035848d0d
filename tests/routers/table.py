"""Who gets a connection to whom, and how: real peers, two homes of each kind, and an invitation to the one that everybody
reaches.

All are seeds, which need no torch.  How two are connected, they say themselves (`LinkChanged`); where one of them is behind
a router that opened a port, direct means that it was dialled there.  Then the two of each meeting push bytes to each other,
first one and then the other, while nobody else pushes (`rates`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from protocol.events import events as ev
from tests.e2e.swarm import Peer, Swarm
from tests.routers.homes import PUBLIC, PUBLIC_IPV6, Homes
from tests.routers.rates import PUSH_S, Rate, in_columns, rate, shown_pair, shown_ways
from tests.routers.router import Kind

PORT = 4001
MEET_S = 60.0
"""After the last one has come in: for those that can reach each other to have done so."""
EVERYBODY = "the reachable peer"
PUSHING = ("tests.routers.pushing_peer",)


Side = tuple[Peer, Kind | None]
"""A peer, and how its home is connected; None: it is the reachable one."""


@dataclass(frozen=True)
class Meeting:
    """first, second: how both are connected.  link: between them at the end; empty for none.

    seconds: from the later one's start until they were connected in any way; settled_s: until they were as at the end.
    there, back: how fast bytes then went from the first to the second, and back.
    """

    first: str
    second: str
    link: str = ""
    seconds: float | None = None
    settled_s: float | None = None
    there: Rate | None = None
    back: Rate | None = None


def measure(
    folder: Path,
    kinds: Sequence[Kind] = tuple(Kind),
    meet_s: float = MEET_S,
    push_s: float = PUSH_S,
    line: float | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> list[Meeting]:
    """All meetings of two homes, and of each kind with the reachable peer.  push_s: for each direction; 0 for no rates.

    line: as for `Homes`.  told: of each pair's rates.
    """
    pairs = [kind for kind in kinds for _ in range(2)]
    with Homes(folder, pairs, line) as homes, Swarm(folder) as swarm:
        invitation = create(swarm)
        public = start(swarm, "public", homes.public, invitation, program=PUSHING)
        started = {"public": time.time()}
        at: list[Side] = []
        for number, home in enumerate(homes.homes):
            name = f"{home.kind.value}-{number % 2}"
            started[name] = time.time()
            peer = start(swarm, name, home.place, invitation, program=PUSHING)
            at.append((peer, home.kind))
            swarm.until(f"{name} and the reachable peer to meet", lambda peer=peer: met_at(peer, public))  # type: ignore[misc]
        end = time.monotonic() + meet_s
        wanted = [(first, second) for (first, _), (second, _) in itertools.combinations(at, 2)]
        while time.monotonic() < end and not all(is_settled(*pair) for pair in wanted):
            time.sleep(0.5)
        sides = [*((side, (public, None)) for side in at[::2]), *_of_each_two_kinds(at)]
        found = [meeting(*pair, max(started[peer.name] for peer, _ in pair)) for pair in sides]
        return [with_rates(each, *pair, push_s, told) for each, pair in zip(found, sides, strict=True)] if push_s else found


def create(swarm: Swarm, *options: str) -> str:
    """The invitation to a new run at the reachable peer."""
    addresses = [f"--address=/ip4/{PUBLIC}/tcp/{PORT}", f"--address=/ip6/{PUBLIC_IPV6}/tcp/{PORT}"]
    words = ("run", "create", str(swarm.run_file), "--out", str(swarm.manifest), *addresses, *options)
    printed = swarm.command(swarm.place("public"), *words)
    return next(word for word in printed.split() if word.startswith("mh1"))


def start(
    swarm: Swarm,
    name: str,
    place: tuple[str, ...],
    invitation: str,
    *options: str,
    program: tuple[str, ...] = ("peer",),
) -> Peer:
    """A peer elsewhere; a seed unless options say something else."""
    peer = swarm.peer(name, invitation)
    peer.around, peer.local, peer.program = place, False, program
    return peer.start("--port", str(PORT), *(options or ("--role", "seed")))


def links(first: Peer, second: Peer) -> list[tuple[float, str]]:
    """How they were connected, since when (unix time), as either says."""
    return sorted(
        (stamped.at, stamped.event.link)
        for one, other in ((first, second), (second, first))
        for stamped in list(one.stamped)
        if isinstance(stamped.event, ev.LinkChanged) and stamped.event.peer == other.peer_id != ""
    )


def met_at(first: Peer, second: Peer) -> float | None:
    """When they were connected first; None if never."""
    return next((at for at, _ in links(first, second)), None)


def is_settled(first: Peer, second: Peer) -> bool:
    """Whether they are connected with nobody in between."""
    return any(link != "relayed" for _, link in links(first, second)[-1:])


def meeting(first: Side, second: Side, since: float) -> Meeting:
    """What became of two.  since: when both had been started (unix time)."""
    found, names = links(first[0], second[0]), (_name(first), _name(second))
    if not found:
        return Meeting(*names)
    link = found[-1][1]
    settled = next(at for at, kind in found if kind == link)
    return Meeting(*names, link, found[0][0] - since, settled - since)


def with_rates(met: Meeting, first: Side, second: Side, seconds: float, told: Callable[[str], None]) -> Meeting:
    """The same meeting with the rates of both directions, where the two are connected."""
    if not met.link:
        return met
    there = rate(first[0], second[0], second[1] is Kind.UPNP, seconds)
    back = rate(second[0], first[0], first[1] is Kind.UPNP, seconds)
    told(f"{met.first} and {met.second}, {met.link}: {shown_pair(there, back)} {there.problem} {back.problem}".strip())
    return replace(met, there=there, back=back)


def _name(side: Side) -> str:
    return side[1].value if side[1] is not None else EVERYBODY


def _of_each_two_kinds(at: Sequence[Side]) -> list[tuple[Side, Side]]:
    """Of two kinds one pair; of one kind its two homes."""
    return [
        (first, second)
        for number, first in enumerate(at)
        for second in at[number + 1 :]
        if first[1] is second[1] or (not number % 2 and second in at[::2])
    ]


def shown(meetings: Sequence[Meeting]) -> str:
    """Tables for people: how they are connected at the end, and after how many seconds at all, and so; then the rates."""
    times = {
        (each.first, each.second): "-" if each.seconds is None else f"{each.link} {each.seconds:.1f}/{each.settled_s:.1f} s"
        for each in meetings
    }
    if not any(each.there for each in meetings):
        return _square(times)
    rates = {(each.first, each.second): shown_pair(each.there, each.back) for each in meetings}
    ways = shown_ways(rate for each in meetings for rate in (each.there, each.back) if rate is not None)
    return f"{_square(times)}\n\nMbit/s from the row to the column, and back:\n\n{_square(rates)}\n\n{ways}"


def _square(cells: Mapping[tuple[str, str], str]) -> str:
    """A row for each kind; a column for each, and for the reachable peer."""
    kinds = list(dict.fromkeys(first for first, _ in cells))
    head = ["", EVERYBODY, *kinds]
    return in_columns([head, *([kind, *(cells.get((kind, other), "") for other in head[1:])] for kind in kinds)])


def as_fields(meetings: Sequence[Meeting]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(meeting) for meeting in meetings]
