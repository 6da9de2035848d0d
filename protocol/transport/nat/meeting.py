"""Meetings: two connected peers, through a relay or otherwise, find a socket with no peer in between.

One peer asks with a nonce and the ends at which it may be dialled; the other answers with its own, and both begin to dial
(`race`).  Their sockets carry a token made of both nonces, so neither peer can make the other send bytes of its choice to
some other program.  Each has asked a peer that it can dial (`mirror`) for the end at which its router shows it.  The users
of the socket prove their identities on it, whatever socket was found.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import trio

from protocol.short_id import short_id
from protocol.transport.doorstep import Doorstep, receive
from protocol.transport.ends import End
from protocol.transport.host import at_interfaces
from protocol.transport.inbound import group_at_the_other_end
from protocol.transport.interface import Members, Unreachable
from protocol.transport.library import Host, MuxedConnection
from protocol.transport.named_ends import may_be_dialled
from protocol.transport.nat.circuits import Take
from protocol.transport.nat.mirror import reusable_socket, seen_at
from protocol.transport.nat.race import (
    CANDIDATES_BYTES,
    FOLLOWS,
    HELLO_BYTES,
    LEADS,
    MAX_CANDIDATES,
    TOKEN_BYTES,
    DialCandidate,
    Race,
    read_candidates,
    write_candidates,
)
from protocol.transport.rate_limit import guarded
from protocol.transport.reputation import Channel, Reputation
from protocol.transport.streams import answer_with, ask
from protocol.transport.way import LinkKind, Way
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId

ANSWER_S = 6.0
"""Seconds for the other end to look into a mirror and to answer."""
HELLO_S = 3.0
NONCE_BYTES = 16
OFFER_BYTES = NONCE_BYTES + CANDIDATES_BYTES
MAX_AT_ONCE = 32
"""Meetings at one time for which all strangers ask, and as many for members."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outside:
    """A port of ours, and the end at which our router shows it (`seen`)."""

    port: int
    seen: End


class Meetings:
    """The meetings of our peer.  `run` it.

    listening: returns our ends that others may dial.  mirrors: returns ends of peers that can tell us where our router shows
    us.  connected: returns True if we have reached a peer or it has greeted us.  take: as for `Circuits`.
    """

    def __init__(
        self,
        host: Host,
        run: Hash,
        members: Members,
        reputation: Reputation,
        connected: Callable[[PeerId], bool],
        doorstep: Doorstep,
        listening: Callable[[], Sequence[End]],
        mirrors: Callable[[], Sequence[End]],
        take: Take,
    ) -> None:
        self._host, self._members, self._reputation, self._connected = host, members, reputation, connected
        self._doorstep, self._listening, self._mirrors, self._take = doorstep, listening, mirrors, take
        self._protocol = f"/manyhands/1/{bytes(run).hex()[:16]}/meet"
        self._races: dict[tuple[bytes, bytes], Race] = {}
        self._running = {True: 0, False: 0}
        self._nursery: trio.Nursery | None = None
        answer_with(host, self._protocol, OFFER_BYTES, self._answer, ANSWER_S)

    async def run(self) -> None:
        """Keep the tasks of meetings running until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    async def meet(self, peer: PeerId) -> tuple[trio.socket.SocketType, Way]:
        """Return a socket to a connected peer, and its way.  Raises `Unreachable`."""
        with ExitStack() as held:
            outside = await self._outside(held)
            ours = self._offer(outside)
            theirs, _ = await ask(self._host, peer, self._protocol, ours, OFFER_BYTES, ANSWER_S)
            won = await self._race(token_of(ours, theirs), True, theirs, outside)
        if won is None:
            raise Unreachable(f"no way to {short_id(peer)} without a relay")
        return won[0], Way(won[1])

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """Hand an inbound socket to the race whose token it sends.  Without such a race, the caller closes it."""
        with self._doorstep.waits(sock, address), trio.fail_after(HELLO_S):
            hello = await receive(sock, HELLO_BYTES)
        wanted = LEADS if hello[-1:] == FOLLOWS else FOLLOWS
        race = self._races.get((hello[1:-1], wanted))
        if race is not None:
            ours = trio.socket.from_stdlib_socket(socket.socket(fileno=sock.detach()))
            if not race.has_come(ours):
                ours.close()

    async def _answer(self, peer: PeerId, connection: MuxedConnection, theirs: bytes) -> bytes:
        if self._nursery is None or not self._connected(peer) or not self._reputation.spend(peer, Channel.MEETING):
            raise Unreachable("no meeting now")
        with ExitStack() as held:
            held.enter_context(self._place(self._members.has_member(peer)))
            outside = await self._outside(held)
            ours = self._offer(outside)
            self._nursery.start_soon(guarded, self._follow, held.pop_all(), token_of(theirs, ours), theirs, outside)
        return ours

    @contextmanager
    def _place(self, is_member: bool) -> Iterator[None]:
        """Hold a place for a meeting that another peer asks for, during the block.  Raises `Unreachable` if none is free."""
        if self._running[is_member] >= MAX_AT_ONCE:
            raise Unreachable("too many meetings")
        self._running[is_member] += 1
        try:
            yield
        finally:
            self._running[is_member] -= 1

    async def _follow(self, held: ExitStack, token: bytes, theirs: bytes, outside: Outside | None) -> None:
        """Run a race that another peer asked for.  held: resources that are released when the race is over."""
        with held:
            won = await self._race(token, False, theirs, outside)
        if won is not None:
            await self._take(trio.SocketStream(won[0]), group_at_the_other_end(won[0]), Way(won[1]))

    async def _race(
        self, token: bytes, leads: bool, theirs: bytes, outside: Outside | None
    ) -> tuple[trio.socket.SocketType, LinkKind] | None:
        """Return the winner among our sockets to the offered ends and the other peer's sockets to us; None if none won."""
        race, name = Race(token, leads, outside.port if outside is not None else None), (token, LEADS if leads else FOLLOWS)
        self._races[name] = race
        try:
            candidates = dict.fromkeys(read_candidates(theirs[NONCE_BYTES:]))
            own = at_interfaces(self._listening())
            return await race.run([each for each in candidates if may_be_dialled(each.end, lambda: own)])
        finally:
            del self._races[name]

    def _offer(self, outside: Outside | None) -> bytes:
        return os.urandom(NONCE_BYTES) + write_candidates(self._candidates(outside))

    def _candidates(self, outside: Outside | None) -> list[DialCandidate]:
        punched = [DialCandidate(outside.seen, True)] if outside is not None else []
        return [*punched, *map(DialCandidate, self._listening())][:MAX_CANDIDATES]

    async def _outside(self, held: ExitStack) -> Outside | None:
        """Find out where our router shows a port from which we shall dial; return None if no mirror tells.

        held: gets the socket that was shown; it stays open so that the router keeps its translation.
        """
        for mirror in [end for end in self._mirrors() if ":" not in end[0]][:2]:
            try:
                with ExitStack() as shown:
                    sock = shown.enter_context(reusable_socket())
                    outside = Outside(sock.getsockname()[1], await seen_at(sock, mirror))
                    held.push(shown.pop_all())
                    return outside
            except (OSError, trio.TooSlowError) as error:
                log.debug("%s is no mirror: %r", mirror, error)
        return None


def token_of(asked: bytes, answered: bytes) -> bytes:
    """Return the token of a meeting's sockets, from the offers of both ends."""
    return hash_bytes("meeting", asked[:NONCE_BYTES] + answered[:NONCE_BYTES])[:TOKEN_BYTES]
