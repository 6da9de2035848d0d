"""Request for a run's manifest to the peers of an invitation.  Nobody joins, and nothing is stored.

The request uses an identity of its own, so the peer of this computer may run meanwhile.
"""

from __future__ import annotations

from importlib import import_module

import trio

from peer.discovery.search import Search
from peer.errors import ExitCode, PeerError
from peer.joining.lobby import Lobby, fetch_manifest
from protocol.run.invitation import Invitation
from protocol.run.manifest import SignedManifest
from protocol.transport.interface import NetworkError
from protocol.transport.network import NetworkSettings, open_network
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId

ANSWER_S = 20.0
"""Seconds for reaching a peer of the invitation and receiving the manifest."""


def ask_for_manifest(invitation: Invitation) -> SignedManifest:
    """Return the manifest of the invitation's run, from its peers.  Raises `PeerError` with the reason."""
    return trio.run(_ask, invitation)


async def _ask(invitation: Invitation) -> SignedManifest:
    await trio.to_thread.run_sync(import_module, "libp2p")
    run, addresses = Hash(invitation.run), tuple(invitation.addresses)
    waits = ["no peer of the invitation answers"]
    try:
        settings = NetworkSettings("127.0.0.1", relay_rate=0)
        async with open_network(Identity.generate(), run, Lobby(), settings) as network:
            network.remember(addresses)
            search = Search(network, addresses, lambda event: None, lambda: False)
            with trio.move_on_after(ANSWER_S):
                return await fetch_manifest(network, run, PeerId(invitation.organiser), waits.append)
            problem = waits[-1] if network.connected() else search.failure(ANSWER_S)
    except NetworkError as error:
        problem = str(error)
    raise PeerError(f"the run's manifest cannot be had now: {problem}", ExitCode.UNREACHABLE)
