"""Who gets a connection to whom: real peers, two homes of each kind, and an invitation to the one that everybody reaches.

All are seeds, which need no torch.  That one takes another for alive means that they were connected: what others pass on
does not count (`protocol.membership.liveness`).
"""

from __future__ import annotations

import itertools
import subprocess
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
    """first, second: how both are connected.  seconds: from the later one's start until either has heard the other; None if
    never.  dialled_by: first, second or both, by the connections that were open at the end.
    """

    first: str
    second: str
    seconds: float | None
    dialled_by: str


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
        while time.monotonic() < end and not all(met_at(first, second) for first, second in wanted):
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


def met_at(first: Peer, second: Peer) -> float | None:
    """When either heard the other for the first time (unix time); None if neither has."""
    heard = [
        stamped.at
        for one, other in ((first, second), (second, first))
        for stamped in list(one.stamped)
        if isinstance(stamped.event, ev.PeerJoined) and stamped.event.peer == other.peer_id != ""
    ]
    return min(heard, default=None)


def dials(place: tuple[str, ...], *addresses: str) -> bool:
    """Whether a computer has an open connection of its own to a peer at one of these addresses."""
    command = [*place, "ss", "-Htn", "state", "established", f"( dport = :{PORT} )"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return any(f"{address}:{PORT}" in shown.replace("[", "").replace("]", "") for address in addresses if address)


def _with_public(public: Peer, at: list[tuple[Peer, Home]], started: dict[str, float]) -> list[Meeting]:
    found = []
    for peer, home in at[::2]:
        when = met_at(peer, public)
        seconds = None if when is None else when - started[peer.name]
        by = _named(dials(home.place, PUBLIC, PUBLIC_IPV6), dials(public.around, home.outside, home.ipv6))
        found.append(Meeting(home.kind.value, EVERYBODY, seconds, by))
    return found


def _with_each_other(at: list[tuple[Peer, Home]], started: dict[str, float]) -> list[Meeting]:
    """Of two kinds one pair; of one kind its two homes."""
    found = []
    for number, (first, here) in enumerate(at):
        for second, there in at[number + 1 :]:
            if here.kind is not there.kind and (number % 2 or (second, there) not in at[::2]):
                continue
            when = met_at(first, second)
            seconds = None if when is None else when - max(started[first.name], started[second.name])
            by = _named(dials(here.place, there.outside, there.ipv6), dials(there.place, here.outside, here.ipv6))
            found.append(Meeting(here.kind.value, there.kind.value, seconds, by))
    return found


def _named(first: bool, second: bool) -> str:
    return {(True, True): "both", (True, False): "first", (False, True): "second", (False, False): "nobody"}[first, second]


def shown(meetings: Sequence[Meeting]) -> str:
    """A table for people: seconds until they met, and who had dialled."""
    kinds = list(dict.fromkeys(meeting.first for meeting in meetings))
    cells: dict[tuple[str, str], str] = {}
    for meeting in meetings:
        text = "-" if meeting.seconds is None else f"{meeting.seconds:.1f} s, {meeting.dialled_by}"
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
