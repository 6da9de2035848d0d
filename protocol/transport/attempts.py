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
# DNS names in addresses: looked up at each attempt, and restricted like the claims of strangers.
#
# The owner of a name can point it at this computer or into this network after the user has read it.  So we dial only IP
# addresses at which peers may be dialled, and we dial the address that we checked, not the name again.


MAX_FOUND = 4
"""IP addresses of one name that are tried."""
FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


class UnknownName(Exception):
    """The name has no IP address."""


class ForbiddenAddress(Exception):
    """The name has only IP addresses at which no peer may be dialled."""


async def looked_up(address: str, listening: Callable[[], Sequence[End]]) -> list[str]:
    """Return the addresses to dial for a multiaddr without its peer ID, at most `MAX_FOUND`.

    An IP address stands for itself.  A name is looked up, and addresses at which no peer may be dialled are left out.
    listening: the ends at which we listen.  Raises `UnknownName` or `ForbiddenAddress`.
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
    """The last attempt at an address.  times: attempts since the start.  problem: "" if the peer answered."""

    address: str
    times: int
    problem: str


def problem_of(error: BaseException) -> str:
    """Return the reason why dialling failed, from an exception of the library and its causes."""
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
    """Yield the error and all errors below it, at most `MAX_CAUSES`: in groups, in the library's lists, and causes."""
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
