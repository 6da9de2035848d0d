"""Dialling back: a peer dials its asker on a new connection, on request, and reports if the asker answered there.

The question names a port and nothing else.  The IP address is the one from which the asker's connection comes, so no peer
can make us dial another.  The answer tells only if the asker itself proved its identity there, so no peer can scan a network
with it.  Each question has its own stream: two bytes for the question, 17 bytes for the answer.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

import trio

from protocol.transport.ends import remote_end
from protocol.transport.host import transport_address
from protocol.transport.interface import Members, Unreachable
from protocol.transport.library import Host, MuxedConnection
from protocol.transport.named_ends import LEAST_PORT
from protocol.transport.nat.dead_ends import address_of
from protocol.transport.rate_limit import Allowance, TokenBucket
from protocol.transport.reputation import Channel, Reputation
from protocol.transport.streams import BadFrame, answer_with, ask
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

DIAL_S = 5.0
QUESTION_S = 5.0
"""Seconds for the question to arrive once its stream is open, and again for the answer to be taken."""
ANSWER_S = DIAL_S + QUESTION_S
"""Seconds for which an asker waits."""
MAX_AT_ONCE = 4
"""Dials for all strangers at one time, and as many for members."""
FOR_ALL = Allowance(0.5, math.inf, 32)
"""Dials for all strangers in the long run, and as many for members: one every two seconds, of which 16 are saved up."""

log = logging.getLogger(__name__)
_QUESTION, _ANSWER = struct.Struct(">H"), struct.Struct(">B16s")


class AddressVerdict(Enum):
    """The reachability of an address, as far as known."""

    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


_CODES = {AddressVerdict.UNKNOWN: 0, AddressVerdict.REACHABLE: 1, AddressVerdict.UNREACHABLE: 2}
_VERDICTS = {code: verdict for verdict, code in _CODES.items()}


@dataclass(frozen=True)
class DialBackAnswer:
    """The answer of a peer: the IP address at which it sees us, and the result of dialling back there."""

    ip: str
    verdict: AddressVerdict


class _Share:
    """The limits on dials for all members, or for all strangers."""

    def __init__(self, now: float) -> None:
        self.running = 0
        self._bucket = TokenBucket(FOR_ALL.burst_s, FOR_ALL.burst_s, now)

    def take(self, now: float) -> bool:
        """Use the allowance for one dial; return False if no dial is allowed now."""
        return self.running < MAX_AT_ONCE and self._bucket.take(FOR_ALL, now, 1, 0)


class DialBack:
    """Questions to others to dial us back, and answers to theirs.

    connected: returns True if we have reached a peer or it has greeted us; other peers are not dialled.  answers: dials an
    address; returns True if its peer proved its identity there.
    """

    def __init__(
        self,
        host: Host,
        run: Hash,
        members: Members,
        reputation: Reputation,
        connected: Callable[[PeerId], bool],
        answers: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._host, self._members, self._reputation = host, members, reputation
        self._connected, self._answers = connected, answers
        self._protocol = f"/manyhands/1/{bytes(run).hex()[:16]}/dial-back"
        self._shares: dict[bool, _Share] = {}
        answer_with(host, self._protocol, _QUESTION.size, self._answer, QUESTION_S)

    async def ask(self, peer: PeerId, port: int) -> DialBackAnswer | None:
        """Ask a connected peer to dial our `port`; return None if it gives no valid answer."""
        try:
            answer, _ = await ask(self._host, peer, self._protocol, _QUESTION.pack(port), _ANSWER.size, ANSWER_S)
            return read_answer(answer)
        except (Unreachable, BadFrame) as error:
            log.debug("%s does not dial back: %r", peer, error)
            return None

    async def _answer(self, peer: PeerId, connection: MuxedConnection, question: bytes) -> bytes:
        (port,) = _QUESTION.unpack(question)
        return write_answer(await self._find_out(peer, remote_end(connection), port))

    async def _find_out(self, peer: PeerId, end: tuple[str, int] | None, port: int) -> DialBackAnswer:
        ip = address_of(end[0]) if end is not None else None
        if ip is None:
            return DialBackAnswer("0.0.0.0", AddressVerdict.UNKNOWN)  # noqa: S104 - no address at all
        if port < LEAST_PORT or ip.is_link_local or not self._connected(peer):
            return DialBackAnswer(str(ip), AddressVerdict.UNKNOWN)
        share = self._shares.setdefault(self._members.has_member(peer), _Share(trio.current_time()))
        if not self._reputation.spend(peer, Channel.DIAL_BACK) or not share.take(trio.current_time()):
            return DialBackAnswer(str(ip), AddressVerdict.UNKNOWN)
        share.running += 1
        try:
            with trio.move_on_after(DIAL_S):
                if await self._answers(f"{transport_address(str(ip), port)}/p2p/{peer}"):
                    return DialBackAnswer(str(ip), AddressVerdict.REACHABLE)
        finally:
            share.running -= 1
        return DialBackAnswer(str(ip), AddressVerdict.UNREACHABLE)


def write_answer(answer: DialBackAnswer) -> bytes:
    """Encode an answer for the wire: a byte for the verdict, and the address, IPv4 as mapped to IPv6."""
    ip = ipaddress.ip_address(answer.ip)
    packed = ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed
    return _ANSWER.pack(_CODES[answer.verdict], packed)


def read_answer(data: bytes) -> DialBackAnswer:
    """Decode an answer.  Raises `BadFrame`."""
    code, packed = _ANSWER.unpack(data)
    ip = address_of(str(ipaddress.IPv6Address(packed)))
    if code not in _VERDICTS or ip is None:
        raise BadFrame("an answer that is none")
    return DialBackAnswer(str(ip), _VERDICTS[code])
