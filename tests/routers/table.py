"""Who gets a connection to whom, and how: real peers, two homes of each kind, and an invitation to the one that everybody
reaches.

All are seeds, which need no torch.  How two are connected, they say themselves (`LinkChanged`); where one of them is behind
a router that opened a port, direct means that it was dialled there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol import events as ev
from tests.e2e.swarm import Peer, Swarm
from tests.routers.homes import PUBLIC, PUBLIC_IPV6, Home, Homes
from tests.routers.router import Kind

PORT = 4001
MEET_S = 60.0
"""After the last one has come in: for those that can reach each other to have done so."""
EVERYBODY = "the reachable peer"


@dataclass(frozen=True)
class Meeting:
    """first, second: how both are connected.  link: between them at the end; empty for none.

    seconds: from the later one's start until they were connected in any way; settled_s: until they were as at the end.
    """

    first: str
    second: str
    link: str = ""
    seconds: float | None = None
    settled_s: float | None = None


def measure(folder: Path, kinds: Sequence[Kind] = tuple(Kind), meet_s: float = MEET_S) -> list[Meeting]:
    """All meetings of two homes, and of each kind with the reachable peer."""
    pairs = [kind for kind in kinds for _ in range(2)]
    with Homes(folder, pairs) as homes, Swarm(folder) as swarm:
        invitation = create(swarm)
        public = start(swarm, "public", homes.public, invitation)
        started = {"public": time.time()}
        at: list[tuple[Peer, Home]] = []
        for number, home in enumerate(homes.homes):
            name = f"{home.kind.value}-{number % 2}"
            started[name] = time.time()
            peer = start(swarm, name, home.place, invitation)
            at.append((peer, home))
            swarm.until(f"{name} and the reachable peer to meet", lambda peer=peer: met_at(peer, public))  # type: ignore[misc]
        end = time.monotonic() + meet_s
        wanted = [(first, second) for (first, _), (second, _) in itertools.combinations(at, 2)]
        while time.monotonic() < end and not all(is_settled(*pair) for pair in wanted):
            time.sleep(0.5)
        return [*_with_public(public, at, started), *_with_each_other(at, started)]


def create(swarm: Swarm, *options: str) -> str:
    """The invitation to a new run at the reachable peer."""
    addresses = [f"--address=/ip4/{PUBLIC}/tcp/{PORT}", f"--address=/ip6/{PUBLIC_IPV6}/tcp/{PORT}"]
    words = ("run", "create", str(swarm.run_file), "--out", str(swarm.manifest), *addresses, *options)
    printed = swarm.command(swarm.place("public"), *words)
    return next(word for word in printed.split() if word.startswith("mh1"))


def start(swarm: Swarm, name: str, place: tuple[str, ...], invitation: str, *options: str) -> Peer:
    """A peer elsewhere; a seed unless options say something else."""
    peer = swarm.peer(name, invitation)
    peer.around, peer.local = place, False
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


def meeting(first: tuple[Peer, str], second: tuple[Peer, str], since: float) -> Meeting:
    """What became of two: each a peer, and how it is connected."""
    found = links(first[0], second[0])
    if not found:
        return Meeting(first[1], second[1])
    link = found[-1][1]
    settled = next(at for at, kind in found if kind == link)
    return Meeting(first[1], second[1], link, found[0][0] - since, settled - since)


def _with_public(public: Peer, at: list[tuple[Peer, Home]], started: dict[str, float]) -> list[Meeting]:
    return [meeting((peer, home.kind.value), (public, EVERYBODY), started[peer.name]) for peer, home in at[::2]]


def _with_each_other(at: list[tuple[Peer, Home]], started: dict[str, float]) -> list[Meeting]:
    """Of two kinds one pair; of one kind its two homes."""
    found = []
    for number, (first, here) in enumerate(at):
        for second, there in at[number + 1 :]:
            if here.kind is not there.kind and (number % 2 or (second, there) not in at[::2]):
                continue
            since = max(started[first.name], started[second.name])
            found.append(meeting((first, here.kind.value), (second, there.kind.value), since))
    return found


def shown(meetings: Sequence[Meeting]) -> str:
    """A table for people: how they are connected at the end, and after how many seconds at all, and so."""
    kinds = list(dict.fromkeys(meeting.first for meeting in meetings))
    cells: dict[tuple[str, str], str] = {}
    for meeting in meetings:
        text = "-" if meeting.seconds is None else f"{meeting.link} {meeting.seconds:.1f}/{meeting.settled_s:.1f} s"
        cells[meeting.first, meeting.second] = text
    rows = [
        ["", EVERYBODY, *kinds],
        *([kind, *(cells.get((kind, other), "") for other in (EVERYBODY, *kinds))] for kind in kinds),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def as_fields(meetings: Sequence[Meeting]) -> list[dict[str, Any]]:
    """For JSON."""
    return [vars(meeting) for meeting in meetings]
