"""Addresses that begin with a name: looked up at each attempt, and held to what holds for claims of strangers.

A name is not an address: whoever owns it may lead it to this computer, or into this network, after the person has read it.
So each IP address that it leads to has to be one at which peers are dialled, and that one is dialled, not the name again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import trio

from protocol.network.libp2p.ends import End
from protocol.network.libp2p.named_ends import may_be_dialled

MAX_FOUND = 4
"""Addresses of one name that are tried."""
FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


class UnknownName(Exception):
    """Nobody knows an address for a name."""


class ForbiddenAddress(Exception):
    """A name leads only to addresses at which no peer is dialled."""


async def looked_up(address: str, listening: Callable[[], Sequence[End]]) -> list[str]:
    """What to dial for a multiaddr without its peer ID: itself, or the addresses of its name that peers are dialled at.

    listening: where we listen.  Raises `UnknownName` or `ForbiddenAddress`.
    """
    parts = address.split("/")
    if len(parts) != 5 or parts[1] not in FAMILIES:
        return [address]
    try:
        found = await trio.socket.getaddrinfo(parts[2], int(parts[4]), FAMILIES[parts[1]], socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnknownName(parts[2]) from error
    ends = list(dict.fromkeys((str(end[0]), int(end[1])) for *_, end in found))
    allowed = [end for end in ends if may_be_dialled(end, listening)][:MAX_FOUND]
    if not allowed:
        raise ForbiddenAddress(parts[2])
    return [f"/ip{6 if ':' in ip else 4}/{ip}/tcp/{port}" for ip, port in allowed]
