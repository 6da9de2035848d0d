"""The result of dialling an address, in words for a user."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import trio

from protocol.transport.ends import End
from protocol.transport.named_ends import may_be_dialled

# ------------------------------------------------------------------------------------------------------------------------
# Addresses that begin with a name: looked up at each attempt, and held to what holds for claims of strangers.
#
# A name is not an address: whoever owns it may lead it to this computer, or into this network, after the person has read it.
# So each IP address that it leads to has to be one at which peers are dialled, and that one is dialled, not the name again.


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


# ------------------------------------------------------------------------------------------------------------------------


REFUSED = "refused, nothing listens there"
SILENT = "no answer in time"
NO_ROUTE = "no way there from this network"
NO_NAME = "its name has no address"
FORBIDDEN = "its name leads to an address at which peers are not dialled"
WRONG_PEER = "another peer answers there"
NO_PEER = "what answers there does not speak as a peer"
OTHER_RUN = "that peer takes part in another run now"
BANNED = "that peer is banned here for a while"
ODD = "it cannot be dialled"
MAX_CAUSES = 64

_OF_ERRNO = {
    errno.ECONNREFUSED: REFUSED,
    errno.ETIMEDOUT: SILENT,
    errno.ENETUNREACH: NO_ROUTE,
    errno.EHOSTUNREACH: NO_ROUTE,
    errno.ENETDOWN: NO_ROUTE,
    errno.EADDRNOTAVAIL: NO_ROUTE,
    errno.ECONNRESET: NO_PEER,
}


@dataclass(frozen=True)
class Attempt:
    """The last attempt at an address.  times: attempts since the start.  problem: "" when the peer answered."""

    address: str
    times: int
    problem: str


def problem_of(error: BaseException) -> str:
    """The reason why dialling failed, from an exception of the library and its causes."""
    from libp2p.protocol_muxer.exceptions import MultiselectClientError, MultiselectError
    from libp2p.security.noise.exceptions import NoiseFailure, PeerIDMismatchesPubkey

    found = list(_causes(error))
    if isinstance(error, UnknownName | ForbiddenAddress):
        return NO_NAME if isinstance(error, UnknownName) else FORBIDDEN
    for cause in found:
        if isinstance(cause, OSError) and cause.errno in _OF_ERRNO:
            return _OF_ERRNO[cause.errno]
    if any(isinstance(cause, PeerIDMismatchesPubkey) for cause in found):
        return WRONG_PEER
    if any(isinstance(cause, MultiselectError | MultiselectClientError | NoiseFailure) for cause in found):
        return NO_PEER
    return ODD


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything under it: groups, the library's lists of errors, and causes."""
    waiting, seen = [error], 0
    while waiting and seen < MAX_CAUSES:
        cause = waiting.pop(0)
        seen += 1
        yield cause
        inner = cause.exceptions if isinstance(cause, BaseExceptionGroup) else getattr(cause, "errors", ())
        waiting += [each for each in inner if isinstance(each, BaseException)]
        below = cause.__cause__ or cause.__context__
        if below is not None:
            waiting.append(below)
