"""The address book, and the dialler that dials its peers.

Every peer in the book that is neither connected nor banned is dialled, with a pause that doubles up to a minute.  A peer
with a new address is dialled at once.  Strangers whose addresses are only claimed are dialled separately, so that they do
not delay other peers.  After a lasting connection, a peer is dialled again after a second.  After a short connection, a peer
is dialled only after its current pause, because it may have refused us.  The library's own dialling (happy eyeballs over two
addresses, a cache of failed peers) is bypassed: each address is tried alone, and the result is kept.

A peer can claim any address as its own.  So we do not believe claims of host names and unusual addresses (`addresses`), and
we limit the rate of attempts at claimed addresses that have led to no peer.
"""

from __future__ import annotations

import errno
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf

import trio

from protocol.bounds import Backoff
from protocol.transport.addresses import (
    CircuitAddress,
    ForbiddenAddress,
    UnknownName,
    circuit_address,
    direct_address,
    end_of,
    looked_up,
    may_be_dialled,
)
from protocol.transport.interface import Members
from protocol.transport.library import Host, library_id, peer_id_of
from protocol.transport.limits import Allowance, Share
from protocol.transport.sockets import End
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Attempts to dial, with their problems in words for a user.


REFUSED = "refused, because nothing listens there"
SILENT = "no answer in time"
NO_ROUTE = "this network has no route to that address"
NO_NAME = "the host name has no IP address"
FORBIDDEN = "the host name leads to an IP address at which no peer may be dialled"
WRONG_PEER = "another peer answers there"
NO_PEER = "the program that answers there is not a peer"
OTHER_RUN = "that peer takes part in another run now"
BANNED = "this computer has banned that peer for a while"
ODD = "that address cannot be dialled"
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
    """The last attempt at an address.  times: number of attempts since the start.  problem: "" if the peer answered."""

    address: str
    times: int
    problem: str


def problem_of(error: BaseException) -> str:
    """Return the reason for a failure to dial, found in an exception of the library and its causes."""
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
    """Yield the error, its causes, and the errors in groups and in the library's lists, at most `MAX_CAUSES` in all."""
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


# ------------------------------------------------------------------------------------------------------------------------
# The address book: the peers that may be dialled, and their addresses.
#
# An address is "given" if it comes from the user or this computer, "claimed" if it comes from another peer, and "reached"
# once it has led to its peer.  Given peers and members share `MAX_KEPT` places, strangers share `MAX_STRANGERS`.  A stranger
# that is not reached within `CLAIM_S` loses its place.  If no place is free, an unused entry of the same group is evicted.


MAX_KEPT = 1024
"""Most given peers and members in the book."""
MAX_STRANGERS = 256
MAX_ADDRESSES_PER_PEER = 8
CLAIM_S = 600.0
"""Seconds after which a stranger that was not reached loses its place in the book."""
FIRST_PAUSE_S = 1.0


class AddressStanding(IntEnum):
    """The strength of our evidence for an address, weakest first."""

    CLAIMED = 0
    GIVEN = 1
    REACHED = 2


@dataclass
class Entry:
    """The entry of one peer.

    since: time at which the peer was entered or last met.  given: True if the user or this computer named the peer.  met:
    True if we reached the peer, or if it was connected for at least `LASTING_S`.  addresses: newest first.  due_at: time of
    the next attempt.  tried: the last attempt at each address.  other_run: True if the peer was connected and did not know
    our run.  Times are trio times.
    """

    since: float
    given: bool = False
    met: bool = False
    addresses: dict[str, AddressStanding] = field(default_factory=dict)
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, MAX_PAUSE_S))
    due_at: float = 0.0
    dialling: bool = False
    tried: dict[str, Attempt] = field(default_factory=dict)
    other_run: bool = False

    def meet(self, now: float, address: str = "") -> None:
        """Note that we have just met the peer; if we dialled it, at `address`."""
        self.met, self.since = True, now
        if address in self.addresses:
            self.addresses[address] = AddressStanding.REACHED

    def add(self, address: str, standing: AddressStanding) -> None:
        """Put a new address first.  If there are too many addresses, remove the one with the weakest evidence."""
        others = sorted(self.addresses, key=lambda other: -self.addresses[other])[: MAX_ADDRESSES_PER_PEER - 1]
        self.addresses = {address: standing} | {other: self.addresses[other] for other in others}
        self.tried = {tried: self.tried[tried] for tried in self.tried if tried in self.addresses}


class Book:
    """The entries of the address book, the least recently mentioned first.

    members: tells members from strangers.  in_use: returns True if a peer's entry must stay for now.
    """

    def __init__(self, members: Members, in_use: Callable[[PeerId], bool]) -> None:
        self._members, self._in_use = members, in_use
        self._entries: OrderedDict[PeerId, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._entries

    def __iter__(self) -> Iterator[tuple[PeerId, Entry]]:
        return iter(self._entries.items())

    def get(self, peer: PeerId) -> Entry | None:
        """Return the entry of a peer; None if it has none."""
        return self._entries.get(peer)

    def remove(self, peer: PeerId) -> None:
        """Remove the entry of a peer, if it has one."""
        self._entries.pop(peer, None)

    def add(self, peer: PeerId, address: str, *, claimed: bool, now: float) -> Entry | None:
        """Enter an address.  Return the entry of its peer if the address is new in it, else None."""
        standing = AddressStanding.CLAIMED if claimed else AddressStanding.GIVEN
        entry = self._entries.get(peer)
        if entry is None:
            if not self._make_room(self._members.has_member(peer) or not claimed, now):
                return None
            entry = self._entries[peer] = Entry(now)
        self._entries.move_to_end(peer)
        entry.given = entry.given or not claimed
        if address in entry.addresses:
            entry.addresses[address] = max(standing, entry.addresses[address])
            return None
        entry.add(address, standing)
        return entry

    def is_favoured(self, peer: PeerId, entry: Entry) -> bool:
        """Return True if there is a better reason to dial a peer than a stranger's claim."""
        return entry.met or self._is_kept(peer, entry)

    def expire(self, now: float) -> None:
        """Remove the strangers that were not reached within `CLAIM_S`."""
        for peer, entry in list(self._entries.items()):
            if not self.is_favoured(peer, entry) and self._is_away(peer, entry, now):
                del self._entries[peer]

    def worth_keeping(self) -> list[str]:
        """Return the reached addresses, then the given addresses and the members' addresses.

        Leaves out addresses that are only claimed, except for addresses of given peers and members.
        """
        found = [
            (standing is not AddressStanding.REACHED, not kept, -standing, address)
            for peer, entry in reversed(self._entries.items())
            for kept in [self._is_kept(peer, entry)]
            for address, standing in entry.addresses.items()
            if standing is not AddressStanding.CLAIMED or kept
        ]
        return [address for *_, address in sorted(found, key=lambda item: item[:3])]

    def _make_room(self, kept: bool, now: float) -> bool:
        """Return True if a peer may be entered; remove another one if needed.  kept: True for given peers and members."""
        rivals = [(peer, entry) for peer, entry in self._entries.items() if self._is_kept(peer, entry) is kept]
        if len(rivals) < (MAX_KEPT if kept else MAX_STRANGERS):
            return True
        idle = [(peer, entry) for peer, entry in rivals if not entry.dialling and not self._in_use(peer)]
        if not kept:
            idle = [(peer, entry) for peer, entry in idle if self._may_go(peer, entry, now)]
        if not idle:
            return False
        peer, _ = min(idle, key=lambda item: (self._members.has_member(item[0]), item[1].met))
        del self._entries[peer]
        return True

    def _may_go(self, peer: PeerId, entry: Entry, now: float) -> bool:
        return self._is_away(peer, entry, now) or (bool(entry.tried) and not entry.met)

    def _is_away(self, peer: PeerId, entry: Entry, now: float) -> bool:
        return now > entry.since + CLAIM_S and not entry.dialling and not self._in_use(peer)

    def _is_kept(self, peer: PeerId, entry: Entry) -> bool:
        return entry.given or self._members.has_member(peer)


# ------------------------------------------------------------------------------------------------------------------------
# The dialler.


MAX_PAUSE_S = 60.0
LASTING_S = 30.0
DIAL_S = 10.0
RENEW_S = 3.0
"""Seconds for one address when we dial a peer that is still connected."""
MAX_FORGOTTEN = 1024
MAX_AT_ONCE = 8
MAX_CLAIMED_AT_ONCE = 4
"""Most addresses dialled at one time for strangers that we never met."""
CLAIMS_OF_MEMBERS, CLAIMS_OF_STRANGERS = Allowance(8, inf, 32), Allowance(1, inf, 64)
"""Rates of attempts at claimed addresses that have led to no peer, for peers that we favour and for other strangers."""

log = logging.getLogger(__name__)


class Dialer:
    """The dialler: dials the peers of its address book while `run` runs.

    members: tells members from strangers.  leave_alone: returns True if a peer need not be dialled now.  on_came: called
    with a peer that connected to us before we dialled it.  connect_by_relay: dials a peer behind a relay.  listening:
    returns the endpoints at which we listen.
    """

    def __init__(
        self,
        host: Host,
        members: Members,
        leave_alone: Callable[[PeerId], bool],
        is_banned: Callable[[PeerId], bool],
        on_came: Callable[[PeerId], None],
        connect_by_relay: Callable[[CircuitAddress], Awaitable[None]],
        listening: Callable[[], Sequence[End]],
    ) -> None:
        self._host = host
        self._me = me = peer_id_of(host.get_id())
        self._leave_alone, self._is_banned, self._on_came = leave_alone, is_banned, on_came
        self._connect_by_relay, self._listening = connect_by_relay, listening
        self._book = Book(members, leave_alone)
        self._forgotten: set[PeerId] = set()
        self._attempts: dict[PeerId, trio.CancelScope] = {}
        """Attempts in progress.  An attempt removed from here is cancelled, so that a better address is tried next."""
        self._changed = trio.Event()
        self._random = random.Random(me)

    def remember(self, addresses: Sequence[str], *, claimed: bool = False) -> None:
        """Add addresses to the book, except addresses that `peer_of` does not accept.

        claimed: the addresses come from other peers, so they may be false; addresses that must not be dialled are ignored.
        """
        now = trio.current_time()
        for address in addresses:
            peer = peer_of(address)
            if peer is None or peer == self._me or peer in self._forgotten:
                continue
            if claimed and ((end := end_of(address)) is None or not may_be_dialled(end, self._listening)):
                continue
            entry = self._book.add(peer, address, claimed=claimed, now=now)
            if entry is not None:
                self._make_due(entry)
                circuit = circuit_address(address)
                if circuit is not None and self._is_connected(circuit.relay) and peer in self._attempts:
                    self._attempts.pop(peer).cancel()  # once in a turn; the next attempt begins with the relayed address

    def known(self) -> list[str]:
        """Return the addresses that are worth keeping on disk, best first."""
        return self._book.worth_keeping()

    def attempts(self) -> list[Attempt]:
        """Return the last attempt at each address that was dialled."""
        return [self._seen_as(peer, entry, attempt) for peer, entry in self._book for attempt in entry.tried.values()]

    def _seen_as(self, peer: PeerId, entry: Entry, attempt: Attempt) -> Attempt:
        if attempt.problem == "" and entry.other_run:
            return replace(attempt, problem=OTHER_RUN)
        return replace(attempt, problem=BANNED) if self._is_banned(peer) else attempt

    def reached(self) -> list[str]:
        """Return the addresses at which our last attempt reached a peer of our run."""
        return [attempt.address for attempt in self.attempts() if attempt.problem == ""]

    def mark_other_run(self, peer: PeerId) -> None:
        """Note that this peer is connected and does not know our run."""
        entry = self._book.get(peer)
        if entry is not None:
            entry.other_run = True

    def forget(self, peer: PeerId) -> None:
        """Remove a peer from the book for good."""
        self._book.remove(peer)
        if len(self._forgotten) < MAX_FORGOTTEN:
            self._forgotten.add(peer)

    def lost(self, peer: PeerId, lasted_s: float) -> None:
        """Dial a peer again after a pause, because its connection ended.

        A peer that shuts down still accepts connections for a moment, so dialling at once would be useless.
        """
        entry = self._book.get(peer)
        if entry is not None:
            if lasted_s >= LASTING_S:
                entry.backoff.reset()
                entry.meet(trio.current_time())
            entry.due_at = trio.current_time() + entry.backoff.next_s
            self._changed.set()

    def _make_due(self, entry: Entry) -> None:
        entry.backoff.reset()
        entry.due_at = -1.0
        self._changed.set()

    async def run(self) -> None:
        """Dial until cancelled."""
        favoured, others = Share(MAX_AT_ONCE, CLAIMS_OF_MEMBERS), Share(MAX_CLAIMED_AT_ONCE, CLAIMS_OF_STRANGERS)
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                now = trio.current_time()
                self._book.expire(now)
                waiting = [(peer, entry) for peer, entry in self._book if not entry.dialling and not self._leave_alone(peer)]
                for peer, entry in waiting:
                    if entry.due_at <= now:
                        entry.dialling = True
                        share = favoured if self._book.is_favoured(peer, entry) else others
                        nursery.start_soon(self._dial, peer, entry, share)
                next_at = min((entry.due_at for _, entry in waiting if not entry.dialling), default=now + MAX_PAUSE_S)
                with trio.move_on_at(max(next_at, now + 0.05)):
                    await self._changed.wait()

    async def _dial(self, peer: PeerId, entry: Entry, share: Share) -> None:
        entry.due_at = trio.current_time() + entry.backoff.failed() * self._random.uniform(0.8, 1.2)
        for address in self._in_order(entry):
            async with share.places:  # released after each address, so that other peers get a turn
                if entry.addresses.get(address, AddressStanding.CLAIMED) is AddressStanding.CLAIMED:
                    await share.wait_for_allowance()
                if self._leave_alone(peer) or peer in self._forgotten:
                    break
                problem: str | None = SILENT
                entry.other_run = False
                with trio.move_on_after(DIAL_S) as scope:
                    self._attempts[peer] = scope
                    problem = await self._try(peer, address)
                if self._attempts.pop(peer, None) is None:
                    break
                if problem == "":
                    entry.meet(trio.current_time(), address)
                if problem is not None:
                    times = entry.tried[address].times if address in entry.tried else 0
                    entry.tried[address] = Attempt(address, times + 1, problem)
        entry.dialling = False
        self._changed.set()

    async def _try(self, peer: PeerId, address: str) -> str | None:
        """Connect to a peer.  Return the problem, "" on success, None if the peer has connected to us in the meantime."""
        try:
            if await self._connect(peer, address):
                return ""
        except Exception as error:  # noqa: BLE001 - the library raises anything; we try again later
            log.debug("dialling %s failed: %r", address, error)
            return problem_of(error)
        self._on_came(peer)
        return None

    def _in_order(self, entry: Entry) -> list[str]:
        """Return the addresses of a peer in the order in which we try them.

        Addresses behind a connected relay come first: dialling them is quick, and the search for a path without the relay
        then begins at once.  IPv6 addresses follow, then IPv4 addresses and host names, then addresses behind other relays.
        """

        def place(address: str) -> int:
            circuit = circuit_address(address)
            if circuit is not None:
                return 0 if self._is_connected(circuit.relay) else 3
            return 1 if address.startswith("/ip6/") else 2

        return sorted(entry.addresses, key=place)

    def relays_of(self, peer: PeerId) -> list[PeerId]:
        """Return the relays in the addresses of a peer, each once."""
        entry = self._book.get(peer)
        found = (circuit_address(address) for address in entry.addresses) if entry is not None else ()
        return list(dict.fromkeys(circuit.relay for circuit in found if circuit is not None))

    def _is_connected(self, peer: PeerId) -> bool:
        return bool(self._host.get_network().connections.get(library_id(peer)))

    async def _connect(self, peer: PeerId, address: str) -> bool:
        """Connect to a peer.  Return False if it was already connected.  Raises any exception of dialling."""
        from libp2p.peer.peerinfo import PeerInfo
        from multiaddr import Multiaddr

        if self._is_connected(peer):
            return False
        identity, circuit = library_id(peer), circuit_address(address)
        self._host.get_network().unblock_peer(identity)
        if circuit is not None:
            await self._through_relay(circuit)
            return True
        found = await looked_up(address.rsplit("/p2p/", 1)[0], self._listening)
        problem: Exception = OSError(errno.ETIMEDOUT, "no answer")
        for where in found:
            self._host.get_peerstore().clear_addrs(identity)
            try:
                with trio.move_on_after(DIAL_S / len(found)):
                    await self._host.connect(PeerInfo(identity, [Multiaddr(where)]))
                    return True
            except Exception as error:  # noqa: BLE001 - the library raises anything; the name has other addresses
                problem = error
        raise problem

    async def _through_relay(self, address: CircuitAddress) -> None:
        """Connect to a peer behind a relay.  Raises any exception of the library."""
        if not self._is_connected(address.relay):
            self.remember([address.relay_address], claimed=True)
        await self._connect_by_relay(address)

    async def renew(self, peer: PeerId) -> bool:
        """Connect again to a connected peer, at any of its addresses.  Return True on success."""
        from multiaddr import Multiaddr

        entry, swarm = self._book.get(peer), self._host.get_network()
        for address in self._in_order(entry) if entry is not None else []:
            circuit = circuit_address(address)
            try:
                with trio.fail_after(RENEW_S):
                    if circuit is not None:
                        await self._through_relay(circuit)
                    else:
                        where = (await looked_up(address.rsplit("/p2p/", 1)[0], self._listening))[0]
                        await swarm.dial_addr(Multiaddr(where), library_id(peer))
                return True
            except Exception as error:  # noqa: BLE001 - the library raises anything; another address may work
                log.debug("connecting anew to %s failed: %r", address, error)
        return False

    async def answers(self, address: str) -> bool:
        """Dial an address, return True if its peer proves its identity there now, and close the connection."""
        from multiaddr import Multiaddr

        direct, swarm, end = direct_address(address), self._host.get_network(), end_of(address)
        if direct is None or end is None or not may_be_dialled(end, self._listening):
            return False
        connection = None
        try:
            where = Multiaddr(address)
            transport = swarm.transport_manager.transport_for_dialing(where)
            if transport is None:
                return False
            connection = await transport.dial(where)
            await swarm.upgrader.upgrade_security(connection, True, library_id(direct[1]))
        except Exception as error:  # noqa: BLE001 - any failure means that no peer was reached
            log.debug("%s does not answer: %r", address, error)
            return False
        finally:
            if connection is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                    await connection.close()
        return True


def peer_of(address: str) -> PeerId | None:
    """Return the peer ID at the end of a direct or a circuit multiaddr; None for any other text."""
    circuit = circuit_address(address)
    direct = direct_address(address)
    return circuit.peer if circuit is not None else direct[1] if direct is not None else None
