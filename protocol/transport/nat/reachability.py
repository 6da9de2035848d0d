"""The reachability of our addresses: we regularly ask some peers to dial us, and do not guess.

Policy
* For IPv4 and for IPv6, we ask a few peers with different addresses.  We ask soon after the first connection, after each
  change of our addresses, and every `EVERY_S`, or every `UNKNOWN_S` while nothing is known.
* An answer counts for the address at which the answering peer sees us.  If members have answered, only their answers count,
  even for different addresses.  An address is reachable if at least half of the peers that tried it reached it, because no
  peer reaches an address by mistake.  The same must hold for all addresses of the same kind together, because a single liar
  can name an address that no other peer sees.
* Our public addresses decide the overall verdict; if no peer sees us at a public address, the other addresses decide.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import random
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import trio

from protocol.events.events import Event, ReachabilityChanged
from protocol.transport.addresses import LEAST_PORT, address_of, is_an_address, is_public, transport_address
from protocol.transport.host import RunHost
from protocol.transport.interface import Members, Unreachable
from protocol.transport.library import MuxedConnection
from protocol.transport.limits import Allowance, Channel, Share
from protocol.transport.sockets import remote_end
from protocol.transport.streams import BadFrame, answer_with, ask
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Dialling back: on request, a peer dials the asker on a new connection, and reports if the asker answered.
#
# The question contains only a port.  The IP address dialled is the source address of the asker's connection, so no peer can
# make us dial another computer.  The answer only tells if the asker itself proved its identity there, so no peer can use it
# to scan a network.  Each question has its own stream: two bytes for the question, 17 bytes for the answer.


DIAL_S = 5.0
QUESTION_S = 5.0
"""Seconds within which the question must arrive once its stream is open, and within which the answer must be sent."""
ANSWER_S = DIAL_S + QUESTION_S
"""Seconds for which an asker waits for the answer."""
MAX_AT_ONCE = 4
"""Most dials at one time for all strangers, and most for all members."""
FOR_ALL = Allowance(0.5, math.inf, 32)
"""Allowance of dials for all strangers, and the same for all members: one every two seconds, of which 16 can be saved up."""

log = logging.getLogger(__name__)
_QUESTION, _ANSWER = struct.Struct(">H"), struct.Struct(">B16s")


class AddressVerdict(Enum):
    """The reachability of an address, if known."""

    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


_CODES = {AddressVerdict.UNKNOWN: 0, AddressVerdict.REACHABLE: 1, AddressVerdict.UNREACHABLE: 2}
_VERDICTS = {code: verdict for verdict, code in _CODES.items()}


@dataclass(frozen=True)
class DialBackAnswer:
    """A peer's answer: the IP address at which the peer sees us, and the result of dialling back to this address."""

    ip: str
    verdict: AddressVerdict


class DialBack:
    """Our questions to other peers to dial us back, and our answers to such questions.

    We dial back only connected peers.  answers: dials an address; returns True if the address's peer proved its identity.
    """

    def __init__(self, own: RunHost, answers: Callable[[str], Awaitable[bool]]) -> None:
        self._host, self._members, self._reputation = own.host, own.handlers, own.reputation
        self._connected, self._answers = own.connected, answers
        self._protocol = own.protocol("dial-back")
        self._shares = {is_member: Share(MAX_AT_ONCE, FOR_ALL) for is_member in (True, False)}
        answer_with(own.host, self._protocol, _QUESTION.size, self._answer, QUESTION_S)

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
        verdict, share = AddressVerdict.UNKNOWN, self._shares[self._members.has_member(peer)]
        with suppress(Unreachable):
            if self._reputation.spend(peer, Channel.DIAL_BACK):
                with share.place():
                    if share.bucket.take(trio.current_time()):
                        verdict = await self._dial(f"{transport_address(str(ip), port)}/p2p/{peer}")
        return DialBackAnswer(str(ip), verdict)

    async def _dial(self, address: str) -> AddressVerdict:
        with trio.move_on_after(DIAL_S):
            if await self._answers(address):
                return AddressVerdict.REACHABLE
        return AddressVerdict.UNREACHABLE


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
        raise BadFrame("a malformed answer")
    return DialBackAnswer(str(ip), _VERDICTS[code])


# ------------------------------------------------------------------------------------------------------------------------
# The inquiry.


ASKED = 3
"""Most peers asked in one inquiry over IPv4, and most over IPv6."""
MAX_PORTS = 3
EVERY_S, UNKNOWN_S = 600.0, 60.0
SETTLE_S = 1.0
"""Seconds from a change until peers are asked, because several peers often connect at the same time."""
LEAST_GAP_S = 15.0
"""Shortest time between two inquiries (s), even after changes."""


@dataclass(frozen=True)
class Reachability:
    """The verdicts on our addresses.  An address is written without a peer ID: /ip4/192.0.2.1/tcp/4001."""

    verdicts: Mapping[str, AddressVerdict]

    @property
    def reached(self) -> list[str]:
        """The reachable addresses, public ones first."""
        found = [address for address, verdict in self.verdicts.items() if verdict is AddressVerdict.REACHABLE]
        return sorted(found, key=lambda address: not is_public(address))

    @property
    def overall(self) -> AddressVerdict:
        """The verdict on all our addresses together."""
        told = {address: verdict for address, verdict in self.verdicts.items() if verdict is not AddressVerdict.UNKNOWN}
        public = {verdict for address, verdict in told.items() if is_public(address)} or set(told.values())
        return next(
            (each for each in (AddressVerdict.REACHABLE, AddressVerdict.UNREACHABLE) if each in public),
            AddressVerdict.UNKNOWN,
        )

    @property
    def by_ipv4(self) -> AddressVerdict:
        """The verdict on our IPv4 addresses together, for peers without IPv6."""
        verdicts = {address: verdict for address, verdict in self.verdicts.items() if address.startswith("/ip4/")}
        return Reachability(verdicts).overall


@dataclass(frozen=True)
class ReachabilityReport:
    """One peer's answer about one address."""

    peer: PeerId
    address: str
    verdict: AddressVerdict


def judge(reports: Sequence[ReachabilityReport], members: Members) -> Reachability:
    """Return the verdicts that follow from these answers."""
    known = [each for each in reports if each.verdict is not AddressVerdict.UNKNOWN]
    told = [each for each in known if members.has_member(each.peer)] or known
    verdicts = dict.fromkeys((report.address for report in reports), AddressVerdict.UNKNOWN)
    for address in {each.address for each in told}:
        here = [each for each in told if each.address == address]
        alike = [each for each in told if _kind(each.address) == _kind(address)]
        verdicts[address] = AddressVerdict.REACHABLE if _reached(here) and _reached(alike) else AddressVerdict.UNREACHABLE
    return Reachability(verdicts)


def _kind(address: str) -> tuple[bool, bool, str]:
    """Return the kind of an address: IPv6 or not, public or not, and port.  A peer sees us at one address of each kind."""
    _, version, _, _, port = address.split("/")
    return version == "ip6", is_public(address), port


def _reached(told: Sequence[ReachabilityReport]) -> bool:
    return 2 * sum(each.verdict is AddressVerdict.REACHABLE for each in told) >= len(told)


class Inquiry:
    """The inquiry into our reachability, while `run` runs.  now: the present verdicts.

    ask: asks a peer to dial one of our ports.  connected: returns the peers that can be asked, with their address groups.
    ports: returns the ports at which other peers may find us.
    """

    def __init__(
        self,
        ask: Callable[[PeerId, int], Awaitable[DialBackAnswer | None]],
        connected: Callable[[], Mapping[PeerId, str]],
        ports: Callable[[], Sequence[int]],
        members: Members,
        emit: Callable[[Event], None],
    ) -> None:
        self._ask, self._connected, self._ports = ask, connected, ports
        self._members, self._emit = members, emit
        self._changed = trio.Event()
        self.now = Reachability({})

    def met_somebody(self) -> None:
        """Note that there is another peer to ask."""
        if self.now.overall is AddressVerdict.UNKNOWN:
            self._changed.set()

    def look_again(self) -> None:
        """Ask again soon, because our addresses may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Ask some peers regularly and after changes, until cancelled."""
        while True:
            known = self.now.overall is not AddressVerdict.UNKNOWN
            with trio.move_on_after(EVERY_S if known else UNKNOWN_S):
                await self._changed.wait()
            await trio.sleep(SETTLE_S)
            self._changed = trio.Event()
            await self.inquire()
            await trio.sleep(LEAST_GAP_S)

    async def inquire(self) -> None:
        """Ask some peers once.  If the answers decide nothing, keep the present verdicts."""
        reports: list[ReachabilityReport] = []

        async def ask(peer: PeerId, port: int) -> None:
            answer = await self._ask(peer, port)
            if answer is not None and is_an_address(answer.ip):
                reports.append(ReachabilityReport(peer, transport_address(answer.ip, port), answer.verdict))

        ports = [port for port in dict.fromkeys(self._ports()) if port >= LEAST_PORT][:MAX_PORTS]
        async with trio.open_nursery() as nursery:
            for peer in chosen(self._connected()):
                for port in ports:
                    nursery.start_soon(ask, peer, port)
        found = judge(reports, self._members)
        if found.overall is not AddressVerdict.UNKNOWN and found != self.now:
            self.now = found
            verdicts = {address: verdict.value for address, verdict in found.verdicts.items()}
            self._emit(ReachabilityChanged(found.overall.value, verdicts))


def chosen(connected: Mapping[PeerId, str]) -> list[PeerId]:
    """Draw random peers: one from each of at most `ASKED` address groups for IPv4, and the same for IPv6."""
    found: list[PeerId] = []
    for is_ipv6 in (False, True):
        by_group: dict[str, list[PeerId]] = {}
        for peer, group in connected.items():
            if (":" in group) is is_ipv6:
                by_group.setdefault(group, []).append(peer)
        groups = random.sample(sorted(by_group), min(ASKED, len(by_group)))
        found += [random.choice(by_group[group]) for group in groups]
    return found
