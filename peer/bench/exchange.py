"""Averaging speed of this computer: a few peers in this process, over real sockets on loopback, encrypted and checked."""

from __future__ import annotations

from contextlib import AsyncExitStack
from importlib import import_module

import trio

from peer.bench.exchange_peer import RUN, ExchangePeer, Introduction
from peer.bench.figures import ExchangeSpeed
from peer.errors import PeerError
from protocol.transport.interface import NetworkError
from protocol.transport.network import Libp2pNetwork, NetworkSettings, open_network
from protocol.wire.hashes import tree_root

PEERS = 3
PARAMETERS = 8 << 20
CHUNK = 1 << 20
SECONDS = 2.0
DEADLINE_S = 180.0


async def measure_exchange(
    peers: int = PEERS, parameters: int = PARAMETERS, chunk: int = CHUNK, seconds: float = SECONDS
) -> ExchangeSpeed:
    """Run exchanges for about `seconds`, after one that opens the sockets.  Raises PeerError."""
    await trio.to_thread.run_sync(import_module, "libp2p")  # takes a second
    members = [await trio.to_thread.run_sync(ExchangePeer, parameters, chunk) for _ in range(peers)]
    try:
        with trio.fail_after(DEADLINE_S + seconds):
            best_s = await _best_s(members, seconds)
    except* (NetworkError, OSError, trio.TooSlowError) as group:
        reason = str(group.exceptions[0]) or "it did not end in time"
        raise PeerError(f"the exchange could not be measured on this computer: {reason}") from group
    if len({bytes(member.result) for member in members}) > 1:
        raise PeerError("the peers of the measurement averaged to different results; report it, with your processor's name")
    return ExchangeSpeed(parameters / best_s, peers, parameters)


async def _best_s(members: list[ExchangePeer], seconds: float) -> float:
    """Return the shortest time from the start of an exchange until all members have its result."""
    settings, times = NetworkSettings(listen_host="127.0.0.1"), list[float]()
    async with AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(open_network(member.identity, RUN, member, settings)) for member in members]
        async with trio.open_nursery() as nursery:
            await _connect(ends)
            introductions = [Introduction(member.identity.peer_id, tree_root(member.leaves)) for member in members]
            began_at = trio.current_time()
            while len(times) < 3 or trio.current_time() - began_at < seconds:
                plan = members[0].plan(introductions, len(times), measured=False)
                begun = trio.current_time()
                async with trio.open_nursery() as together:
                    for member, end in zip(members, ends, strict=True):
                        together.start_soon(member.average, end, plan, nursery)
                times.append(trio.current_time() - begun)
            nursery.cancel_scope.cancel()
    return min(times[1:])


async def _connect(ends: list[Libp2pNetwork]) -> None:
    for end in ends:
        end.remember([address for other in ends if other is not end for address in other.addresses()])
    while any(len(end.connected()) < len(ends) - 1 for end in ends):
        await trio.sleep(0.02)
