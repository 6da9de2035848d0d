"""The ends of circuits: keeps places at relays while not everybody reaches us, opens circuits, and takes those to us."""

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
from protocol.transport.nat.dial_back import Verdict
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
"""Relays at which we have a place, so that one may go."""
LOOK_S = 2.0
KEEP_S = 30.0
"""A place at a relay is asked for again after so long: it may have been given to another, and nobody tells us."""
MAX_AGAIN_S = 60.0
"""Before a relay that refused is asked again: at first after `LOOK_S`, for we may not have greeted it yet, then after twice
as long each time, up to this."""
MAX_REMEMBERED = 1024
SOON_S, AT_ONCE = 0.5, 8
"""The next relay is asked after so long without an answer, up to so many at a time: who is mute holds nobody up."""

log = logging.getLogger(__name__)
Take = Callable[[trio.SocketStream, str, Way], Awaitable[None]]
"""Takes a socket by which a peer has come, with the name under which it is counted, and serves it to its end."""


class Circuits:
    """Those of one peer.  `run` it.

    dialled: the peers that we have dialled and are connected to, at which end.  reached: whether everybody reaches us: those
    without IPv6, too.  take: what is done with a socket by which a peer comes to us.
    """

    def __init__(
        self,
        host: Host,
        run: Hash,
        members: Members,
        dialled: Callable[[], dict[PeerId, End]],
        reached: Callable[[], Verdict],
        take: Take,
    ) -> None:
        self._host, self._members, self._dialled, self._reached, self._take = host, members, dialled, reached, take
        self._protocol = relay_protocol(run)
        self._places: dict[PeerId, float] = {}
        """When each was granted last."""
        self._met = trio.Event()
        self._refused: dict[PeerId, tuple[float, float]] = {}
        """When each relay is asked again, and how long that was from the time before."""
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
                if self._reached() is Verdict.REACHABLE:
                    self._places.clear()
                else:
                    await self._look_for_places()
                with trio.move_on_after(LOOK_S):
                    await self._met.wait()
                self._met = trio.Event()

    def connected(self) -> None:
        """There is another peer that may relay."""
        self._met.set()

    def disconnected(self, peer: PeerId) -> None:
        """We have no place there any more."""
        self._places.pop(peer, None)

    def addresses(self, me: PeerId) -> list[str]:
        """Where others reach us, through relays."""
        dialled = self._dialled()
        at = {relay: transport_address(*dialled[relay]) for relay in self._places if relay in dialled}
        return [str(CircuitAddress(address, relay, me)) for relay, address in at.items()]

    async def open(self, relay: PeerId, peer: PeerId) -> tuple[trio.socket.SocketType, Way]:
        """A socket that leads to `peer`.  Raises `Unreachable`, or OSError."""
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
        """At members first, also beside places at strangers, which they take over: a crowd of keys may be there before them.

        At relays on the internet already while it is not known whether we are reached: others will be looking for us.
        """
        dialled, now = self._dialled(), trio.current_time()
        for relay in self._places.keys() - dialled.keys():
            del self._places[relay]  # nobody is told of a place there
        in_vain = self._reached() is Verdict.UNREACHABLE
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
        """Whether there is not enough of what a place there would be."""
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
        """Whether we have a place there from now on; where not, it is asked again after a while, later each time."""
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
        """Somebody wants to reach us through a relay at which we have a place."""
        token, _, kb_per_s = SUMMONS.unpack(question)
        end = self._dialled().get(relay)
        if relay not in self._places or end is None or self._nursery is None:
            return b"\0"
        if self._coming[relay] >= MAX_CIRCUITS_PER_PEER:
            return b"\0"  # it leads no more than that to us
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
            self._coming += Counter()  # without those that are none
        await self._take(trio.SocketStream(sock), relayed_group(relay), way)

    async def _come(self, relay: End, token: bytes) -> trio.socket.SocketType:
        """Our end of a circuit.  Raises OSError."""
        return await dial(relay, FIRST_BYTE + token, DIAL_S)


def _way(relay: PeerId, kb_per_s: int) -> Way:
    return Way(LinkKind.RELAYED, relay, kb_per_s * 1000.0 or inf)


async def dial(end: End, first: bytes, deadline_s: float) -> trio.socket.SocketType:
    """A socket to this end, on which `first` was sent.  Raises OSError."""
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
    """The relays in these addresses."""
    return list(dict.fromkeys(address.relay for address in addresses))
