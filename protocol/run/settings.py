"""Decisions of the person at this computer about taking part in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import trio

from protocol.run.invitation import Anchor
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role


@dataclass(frozen=True)
class CorpusSettings:
    """Corpora on this computer.

    folders: folders of corpora, which are read and served in place.  blocks: folder of the other blocks; None for a peer
    that keeps none.  cache_bytes: limit for these blocks, unless the rows of two rounds need more.  keep_share: share of all
    blocks that this peer fetches, even without reading them; None to choose so that there are enough copies.
    mirror_networks: networks with mirrors, besides the public Internet.
    """

    folders: tuple[Path, ...] = ()
    blocks: Path | None = None
    cache_bytes: int = 4 << 30
    keep_share: float | None = None
    mirror_networks: tuple[IPv4Network | IPv6Network, ...] = ()


@dataclass(frozen=True)
class NodeSettings:
    """Decisions of the person at this computer.

    incarnation: a number that grows with every start of this identity.
    wait_for_contact: True if an invitation named a peer, so that this peer does not begin the run alone.
    stop_after: number of rounds of the run after which the peer leaves; None to continue.  until_end: True to leave when the
    run has ended.
    admission: the admission proof of this peer, to show at the door and in READYs; empty if the run asks for none.
    introduced: peers whose addresses the invitation names; they are heard until a chain names the members.
    anchor: a record that our chain has to go through, as the invitation says; None when it names none.
    is_copy: True if the data directory was copied, or restored from a backup: its records of our votes may be incomplete.
    wall_clock: unix seconds, for the expiry of tokens alone.
    boot_clock: seconds, by a clock that runs on while the computer is suspended, as trio's does not.
    corpora: the corpora on this computer.
    serve_while_paused: True if others get chunks from this peer even while it rests.
    team: the team to which this peer belongs; empty without one.
    """

    name: str
    role: Role
    version: str
    incarnation: int
    wait_for_contact: bool = False
    stop_after: int | None = None
    until_end: bool = False
    admission: bytes = b""
    introduced: frozenset[PeerId] = frozenset()
    anchor: Anchor | None = None
    is_copy: bool = False
    wall_clock: Callable[[], float] = lambda: 0.0
    boot_clock: Callable[[], float] = trio.current_time
    corpora: CorpusSettings = CorpusSettings()
    serve_while_paused: bool = True
    team: str = ""
