"""The ends of circuits: places at relays while not every peer reaches us, circuits to others, and circuits to us."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from math import inf

import trio

from protocol.short_id import short_id
from protocol.transport.doorstep import send
from protocol.transport.ends import End
from protocol.transport.host import transport_address
from protocol.transport.inbound import relayed_group
from protocol.transport.interface import Members, Unreachable
from protocol.transport.library import Host, MuxedConnection
from protocol.transport.nat.circuit_address import CircuitAddress
from protocol.transport.nat.dial_back import AddressVerdict
from protocol.transport.nat.reachability import is_public
from protocol.transport.nat.relay import (
    ANSWER,
    ANSWER_S,
    CONNECT,
    DIAL_S,
    FIRST_BYTE,
    MAX_CIRCUITS_PER_PEER,
    PEER_BYTES,
    PLACE,
    QUESTION,
    SUMMONS,
    relay_protocol,
    summons_protocol,
)
from protocol.transport.rate_limit import guarded
from protocol.transport.streams import answer_with, ask
from protocol.transport.way import LinkKind, Way
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

WANTED = 2
"""Relays at which we want a place: two, so that one may go."""
LOOK_S = 2.0
KEEP_S = 30.0
"""Seconds after which we ask for a place again: the relay may have given it to another peer without telling us."""
MAX_AGAIN_S = 60.0
"""Longest pause before a relay that refused is asked again.  The first pause is `LOOK_S`, as we may not have greeted the
relay yet; each further one is twice as long."""
MAX_REMEMBERED = 1024
SOON_S, AT_ONCE = 0.5, 8
"""Seconds without an answer after which the next relay is asked, and most relays asked at one time: a mute relay holds none
up."""

log = logging.getLogger(__name__)
Take = Callable[[trio.SocketStream, str, Way], Awaitable[None]]
"""Function that serves a socket from a peer to its end, given the group of addresses for which it counts, and its way."""


class Circuits:
    """The circuits of our peer and its places at relays.  `run` it.

    dialled: returns the connected peers that we have dialled, with their ends.  reached: returns the verdict on our
    reachability for all peers, including peers without IPv6.  take: serves a socket by which a peer comes to us.
    """

    def __init__(
        self,
        host: Host,
        run: Hash,
        members: Members,
        dialled: Callable[[], dict[PeerId, End]],
        reached: Callable[[], AddressVerdict],
        take: Take,
    ) -> None:
        self._host, self._members, self._dialled, self._reached, self._take = host, members, dialled, reached, take
        self._protocol = relay_protocol(run)
        self._places: dict[PeerId, float] = {}
        """Time at which each relay last granted us a place."""
        self._met = trio.Event()
        self._refused: dict[PeerId, tuple[float, float]] = {}
        """Time at which each relay is asked again, and the pause until then."""
        self._coming = Counter[PeerId]()
        """Sockets that we are opening because a relay has summoned us."""
        self._nursery: trio.Nursery | None = None
        answer_with(host, summons_protocol(run), SUMMONS.size, self._on_summons, ANSWER_S)

    async def run(self) -> None:
        """Keep places at relays until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._keep)
            while True:
                if self._reached() is AddressVerdict.REACHABLE:
                    self._places.clear()
                else:
                    await self._look_for_places()
                with trio.move_on_after(LOOK_S):
                    await self._met.wait()
                self._met = trio.Event()

    def connected(self) -> None:
        """Note that another peer is connected, which may relay."""
        self._met.set()

    def disconnected(self, peer: PeerId) -> None:
        """Forget our place at a peer that is no longer connected."""
        self._places.pop(peer, None)

    def addresses(self, me: PeerId) -> list[str]:
        """Return our addresses behind relays."""
        dialled = self._dialled()
        at = {relay: transport_address(*dialled[relay]) for relay in self._places if relay in dialled}
        return [str(CircuitAddress(address, relay, me)) for relay, address in at.items()]

    async def open(self, relay: PeerId, peer: PeerId) -> tuple[trio.socket.SocketType, Way]:
        """Open a socket that leads to `peer` through a relay; return it and its way.  Raises `Unreachable` or OSError."""
        end = self._dialled().get(relay)
        if end is None:
            raise Unreachable(f"the relay {short_id(relay)} is not connected")
        question = QUESTION.pack(CONNECT, peer.encode().ljust(PEER_BYTES, b"\0"))
        answer, _ = await ask(self._host, relay, self._protocol, question, ANSWER.size, 2 * ANSWER_S)
        granted, token, kb_per_s = ANSWER.unpack(answer)
        if granted != 1:
            raise Unreachable(f"the relay {short_id(relay)} does not lead to {short_id(peer)}")
        return await self._come(end, token), _way(relay, kb_per_s)

    async def _look_for_places(self) -> None:
        """Ask relays for places, members first.

        Members replace strangers that gave us a place, as a crowd of strangers may have come before them.  While it is
        unknown if others reach us, we ask relays on the internet already: others will be looking for us.
        """
        dialled, now = self._dialled(), trio.current_time()
        for relay in self._places.keys() - dialled.keys():
            del self._places[relay]  # we no longer announce a place there
        in_vain = self._reached() is AddressVerdict.UNREACHABLE
        due = [
            relay
            for relay, end in dialled.items()
            if relay not in self._places and now >= self._refused.get(relay, (-inf, 0.0))[0]
            if in_vain or is_public(transport_address(*end))
        ]
        waiting = iter(sorted(due, key=lambda relay: not self._members.has_member(relay)))
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                over = trio.Event()
                nursery.start_soon(self._ask_in_turn, waiting, over)
                with trio.move_on_after(SOON_S):
                    await over.wait()
                if over.is_set():
                    break

    async def _ask_in_turn(self, waiting: Iterator[PeerId], over: trio.Event) -> None:
        for relay in waiting:
            if self._is_wanted(relay):
                await self._gets_place(relay)
        over.set()

    def _is_wanted(self, relay: PeerId) -> bool:
        """Return True if we need another place at such a relay: a member, or any relay."""
        is_member = self._members.has_member(relay)
        enough = sum(self._members.has_member(each) or not is_member for each in self._places) >= WANTED
        return not enough and relay not in self._places

    async def _keep(self) -> None:
        while True:
            await self._keep_places()
            await trio.sleep(LOOK_S)

    async def _keep_places(self) -> None:
        for relay, granted_at in list(self._places.items()):
            if trio.current_time() >= granted_at + KEEP_S:
                await self._gets_place(relay)

    async def _gets_place(self, relay: PeerId) -> bool:
        """Ask a relay for a place; return True if it grants one.  Otherwise we ask again after a pause, longer each time."""
        question, granted = QUESTION.pack(PLACE, bytes(PEER_BYTES)), False
        try:
            answer, _ = await ask(self._host, relay, self._protocol, question, ANSWER.size, ANSWER_S)
            granted = ANSWER.unpack(answer)[0] == 1
        except Unreachable as error:
            log.debug("no place at a relay: %s", error)
        now, (_, pause_s) = trio.current_time(), self._refused.pop(relay, (-inf, LOOK_S / 2))
        if granted:
            self._places[relay] = now
            strangers = [each for each in self._places if not self._members.has_member(each)]
            if len(self._places) > WANTED:
                del self._places[next(iter(strangers or self._places))]
        else:
            self._places.pop(relay, None)
            pause_s = min(MAX_AGAIN_S, 2 * pause_s)
            self._refused[relay] = now + pause_s, pause_s
            self._refused = dict(list(self._refused.items())[-MAX_REMEMBERED:])
        return granted

    async def _on_summons(self, relay: PeerId, connection: MuxedConnection, question: bytes) -> bytes:
        """Answer a relay at which we have a place and through which another peer wants to reach us."""
        token, _, kb_per_s = SUMMONS.unpack(question)
        end = self._dialled().get(relay)
        if relay not in self._places or end is None or self._nursery is None:
            return b"\0"
        if self._coming[relay] >= MAX_CIRCUITS_PER_PEER:
            return b"\0"  # the relay leads no more circuits than that to us
        self._coming[relay] += 1
        self._nursery.start_soon(guarded, self._serve, relay, end, token, _way(relay, kb_per_s))
        return b"\x01"

    async def _serve(self, relay: PeerId, end: End, token: bytes, way: Way) -> None:
        try:
            sock = await self._come(end, token)
        except OSError as error:
            log.debug("no circuit: %s", error)
            return
        finally:
            self._coming[relay] -= 1
            self._coming += Counter()  # without relays whose count is zero
        await self._take(trio.SocketStream(sock), relayed_group(relay), way)

    async def _come(self, relay: End, token: bytes) -> trio.socket.SocketType:
        """Open our end of a circuit.  Raises OSError."""
        return await dial(relay, FIRST_BYTE + token, DIAL_S)


def _way(relay: PeerId, kb_per_s: int) -> Way:
    return Way(LinkKind.RELAYED, relay, kb_per_s * 1000.0 or inf)


async def dial(end: End, first: bytes, deadline_s: float) -> trio.socket.SocketType:
    """Open a socket to this end and send `first` on it.  Raises OSError."""
    sock = trio.socket.socket(trio.socket.AF_INET6 if ":" in end[0] else trio.socket.AF_INET, trio.socket.SOCK_STREAM)
    try:
        with trio.fail_after(deadline_s):
            await sock.connect(end)
            await send(sock, first)
    except trio.TooSlowError as error:
        sock.close()
        raise OSError(f"{end[0]} does not answer") from error
    except BaseException:
        sock.close()
        raise
    return sock


def relays_of(addresses: Sequence[CircuitAddress]) -> list[PeerId]:
    """Return the relays in these addresses, each once."""
    return list(dict.fromkeys(address.relay for address in addresses))
