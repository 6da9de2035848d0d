"""Peers of the local network: the network tells its addresses, and dials what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from protocol.transport.network import open_network
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from tests.protocol.transport.recorder import LOOPBACK, RUN, Recorder, network


def test_peers_found_nearby_are_dialled_and_the_search_ends_with_the_network() -> None:
    identity, a, b = Identity.generate(), Recorder(), Recorder()
    told: list[tuple[Hash, PeerId, list[str]]] = []
    theirs: list[str] = []

    async def discover(
        run: Hash, me: PeerId, addresses: Callable[[], Sequence[str]], found: Callable[[Sequence[str]], None]
    ) -> None:
        try:
            found(theirs)
            await trio.sleep_forever()
        finally:
            told.append((run, me, list(addresses())))

    async def main() -> None:
        async with network(b) as other:
            theirs.extend(other.addresses())
            async with open_network(identity, RUN, a, replace(LOOPBACK, discover=discover)) as end:
                with trio.fail_after(60):
                    while other.peer_id not in end.connected():
                        await trio.sleep(0.01)
                nearby = end.own.nearby()
            assert told == [(RUN, identity.peer_id, nearby)]

    trio.run(main)
