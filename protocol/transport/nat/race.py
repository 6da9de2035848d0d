"""A race of sockets between two peers: each dials all ends of the other, and the first socket with both tokens wins.

One of the two leads: it names the winner by one more byte, and the other waits for that byte.  If both dial each other at
the same moment from ports that their routers have shown to others, the two dials become one socket (simultaneous open,
RFC 9293, 3.5): each router takes the other's packets for answers to its own.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from protocol.transport.doorstep import GoneAway, receive, send
from protocol.transport.ends import End
from protocol.transport.nat.mirror import END, read_end, reusable_socket, write_end
from protocol.transport.way import LinkKind

FIRST_BYTE = b"\xb4"
TOKEN_BYTES = 16
RACE_S = 6.0
ATTEMPT_S = 1.4
"""Seconds for one attempt.  A second SYN leaves after one second, as the first may have come before the other router let it
in."""
PAUSE_S = 0.15
MAX_CANDIDATES = 6
"""Most ends of the other peer that are dialled, and most of its sockets that are checked at one time."""
LEADS, FOLLOWS, TAKEN = b"L", b"F", b"!"

log = logging.getLogger(__name__)
_FLAG = struct.Struct(">B")
CANDIDATE_BYTES = _FLAG.size + END.size
CANDIDATES_BYTES = MAX_CANDIDATES * CANDIDATE_BYTES
HELLO_BYTES = 1 + TOKEN_BYTES + 1


@dataclass(frozen=True)
class DialCandidate:
    """An end at which a peer may be dialled.  punched: it dials from there at the same moment; else it listens there."""

    end: End
    punched: bool = False


def write_candidates(candidates: Sequence[DialCandidate]) -> bytes:
    """Encode candidates for the wire, in a fixed size."""
    found = b"".join(_FLAG.pack(2 if each.punched else 1) + write_end(each.end) for each in candidates[:MAX_CANDIDATES])
    return found.ljust(CANDIDATES_BYTES, b"\0")


def read_candidates(data: bytes) -> list[DialCandidate]:
    """Decode candidates from any bytes of that size; invalid ones are left out."""
    found = []
    for at in range(0, CANDIDATES_BYTES, CANDIDATE_BYTES):
        flag = data[at]
        if flag in (1, 2):
            found.append(DialCandidate(read_end(data[at + 1 : at + CANDIDATE_BYTES]), flag == 2))
    return found


class Race:
    """One race.  local_port: port from which we dial punched candidates, as we told the other peer; None to dial none."""

    def __init__(self, token: bytes, leads: bool, local_port: int | None) -> None:
        self.token, self._leads, self._local_port = token, leads, local_port
        self._arrived_in, self._arrived = trio.open_memory_channel[trio.socket.SocketType](MAX_CANDIDATES)
        self._looked_at = 0
        self._won: tuple[trio.socket.SocketType, LinkKind] | None = None

    def has_come(self, sock: trio.socket.SocketType) -> bool:
        """Take an inbound socket that has said hello into the race.  Return False if it is not taken."""
        if self._looked_at >= MAX_CANDIDATES:
            return False
        try:
            self._arrived_in.send_nowait(sock)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        self._looked_at += 1
        return True

    async def run(self, theirs: Sequence[DialCandidate]) -> tuple[trio.socket.SocketType, LinkKind] | None:
        """Return the socket that won and its kind; None if none won in time.  All others are closed."""
        try:
            with trio.move_on_after(RACE_S):
                async with trio.open_nursery() as nursery:
                    for candidate in theirs:
                        nursery.start_soon(self._dial, candidate, nursery.cancel_scope)
                    while True:
                        sock = await self._arrived.receive()
                        kind = LinkKind.REVERSED if self._leads else LinkKind.DIRECT
                        nursery.start_soon(self._check, sock, kind, nursery.cancel_scope, True)
        except BaseException:
            if self._won is not None:
                self._won[0].close()  # no caller will get it
            raise
        finally:
            self._arrived_in.close()
            self._close_late_ones()
        return self._won

    def _close_late_ones(self) -> None:
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                self._arrived.receive_nowait().close()

    async def _dial(self, candidate: DialCandidate, scope: trio.CancelScope) -> None:
        """Dial a candidate again and again until cancelled, and check each socket."""
        kind = LinkKind.PUNCHED if candidate.punched else LinkKind.DIRECT if self._leads else LinkKind.REVERSED
        while True:
            with trio.move_on_after(ATTEMPT_S), suppress(OSError):
                sock = self._new_socket(candidate)
                try:
                    await sock.connect(candidate.end)
                except BaseException:
                    sock.close()
                    raise
                await self._check(sock, kind, scope, False)
            await trio.sleep(PAUSE_S)

    def _new_socket(self, candidate: DialCandidate) -> trio.socket.SocketType:
        """Return a socket for dialling a candidate.  Raises OSError."""
        if candidate.punched:
            if self._local_port is None:
                raise OSError("no port to dial from")
            return reusable_socket(self._local_port)
        family = trio.socket.AF_INET6 if ":" in candidate.end[0] else trio.socket.AF_INET
        return trio.socket.socket(family, trio.socket.SOCK_STREAM)

    async def _check(self, sock: trio.socket.SocketType, kind: LinkKind, scope: trio.CancelScope, has_said: bool) -> None:
        """Say hello on a socket; make it the winner if the leader names it, else close it.  has_said: its hello was read."""
        ours, other = (LEADS, FOLLOWS) if self._leads else (FOLLOWS, LEADS)
        try:
            await send(sock, FIRST_BYTE + self.token + ours)
            if not has_said and await receive(sock, HELLO_BYTES) != FIRST_BYTE + self.token + other:
                raise GoneAway("somebody else is there")
            if self._leads and self._won is None:
                self._won = sock, kind  # no other may be named from here on
                await send(sock, TAKEN)
                scope.cancel()
            elif not self._leads and await receive(sock, 1) == TAKEN and self._won is None:
                self._won = sock, kind
                scope.cancel()
        except (OSError, GoneAway, trio.ClosedResourceError) as error:
            log.debug("a socket to a meeting failed: %r", error)
            if self._won is not None and self._won[0] is sock:
                self._won = None
        finally:
            if has_said:
                self._looked_at -= 1
            if self._won is None or self._won[0] is not sock:
                sock.close()
