"""The reachability of our addresses: we ask some peers now and then, and do not guess.

Policy
* We ask a few peers with different addresses, of each kind of IP address: soon after the first connection, whenever
  something has changed, and every `EVERY_S`; sooner while nothing is known.
* An answer counts for the address at which its peer sees us.  If members have answered, only they count, whichever address
  they see.  An address is reachable if at least as many peers reached it as did not, as no peer reaches it by mistake.  The
  same must hold over all addresses of its kind, as a single liar can name an address that no other peer sees.
* Our public addresses decide if we can be reached at all; if peers see us at none, the other addresses decide.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import trio

from protocol.events.events import Event, ReachabilityChanged
from protocol.transport.host import transport_address
from protocol.transport.interface import Members
from protocol.transport.named_ends import LEAST_PORT, is_an_address
from protocol.transport.nat.dial_back import AddressVerdict, DialBackAnswer
from protocol.wire.identity import PeerId

ASKED = 3
"""Peers asked at one time over IPv4, and as many over IPv6."""
MAX_PORTS = 3
EVERY_S, UNKNOWN_S = 600.0, 60.0
SETTLE_S = 1.0
"""Seconds from a change until peers are asked, as other peers come in at the same time."""
LEAST_GAP_S = 15.0
"""Least seconds between two inquiries, whatever changes."""


@dataclass(frozen=True)
class Reachability:
    """The verdicts by address, like /ip4/192.0.2.1/tcp/4001, without a peer ID."""

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
    """Return the kind of an address: IPv6 or not, public or not, and the port.  A peer sees us at one address of a kind."""
    _, version, _, _, port = address.split("/")
    return version == "ip6", is_public(address), port


def _reached(told: Sequence[ReachabilityReport]) -> bool:
    return 2 * sum(each.verdict is AddressVerdict.REACHABLE for each in told) >= len(told)


class Inquiry:
    """The inquiry into our reachability, while `run` runs.  now: the present verdicts.

    ask: asks a peer to dial a port of ours.  connected: returns the peers that can be asked, with their groups of addresses.
    ports: returns our ports as others may find them.
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
        """Ask again soon, as our addresses may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Ask some peers now and then, until cancelled."""
        while True:
            known = self.now.overall is not AddressVerdict.UNKNOWN
            with trio.move_on_after(EVERY_S if known else UNKNOWN_S):
                await self._changed.wait()
            await trio.sleep(SETTLE_S)
            self._changed = trio.Event()
            await self.inquire()
            await trio.sleep(LEAST_GAP_S)

    async def inquire(self) -> None:
        """Ask some peers once.  The present verdicts stay if the answers decide nothing."""
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
    """Draw peers by chance: one for each group of addresses, and `ASKED` at most for each kind of IP address."""
    found: list[PeerId] = []
    for is_ipv6 in (False, True):
        by_group: dict[str, list[PeerId]] = {}
        for peer, group in connected.items():
            if (":" in group) is is_ipv6:
                by_group.setdefault(group, []).append(peer)
        groups = random.sample(sorted(by_group), min(ASKED, len(by_group)))
        found += [random.choice(by_group[group]) for group in groups]
    return found


def is_public(address: str) -> bool:
    """Return True if every computer on the internet could dial this multiaddr, which has an IP address and a port."""
    return ipaddress.ip_address(address.split("/")[2]).is_global
