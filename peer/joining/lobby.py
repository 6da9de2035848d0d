"""Stand-in for the node until the peer has its run's manifest: the peer can send requests, but answers none.

The network needs handlers from its start; the node needs the manifest, which an invited peer must first fetch through that
network.  Until then, the lobby replaces the node; once the node runs, the lobby forwards every call to it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import trio

from peer.discovery.search import Search
from peer.errors import ExitCode, PeerError
from protocol.run.invitation import Invitation
from protocol.run.manifest import SignedManifest, open_manifest
from protocol.transport.interface import Acceptance, Handlers, Landing, Network, NetworkError, Refused
from protocol.transport.network import NetworkSettings, open_network
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId

ASK_TIMEOUT_S = 10.0
ASK_AGAIN_S = 0.5


class Lobby:
    """Handlers (`protocol.transport.interface.Handlers`) that stand in for the later node."""

    def __init__(self) -> None:
        self._node: Handlers | None = None
        self._open = trio.Event()

    def admit(self, node: Handlers) -> None:
        """Forward all calls to `node` from now on; it must be running."""
        self._node = node
        self._open.set()

    def has_member(self, peer: PeerId) -> bool:
        """Return the node's answer; before the node runs, no member is known."""
        return self._node is not None and self._node.has_member(peer)

    def has_allowance(self, peer: PeerId) -> bool:
        """Return the node's answer; before the node runs, all peers share one allowance."""
        return self._node is not None and self._node.has_allowance(peer)

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """Return the node's answer; before the node runs, gossip is ignored, and therefore not forwarded."""
        return self._node.on_gossip(forwarder, data) if self._node else Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """Return the node's answer; before the node runs, a greeting waits, and other requests raise Refused."""
        if kind == "hello":
            await self._open.wait()  # until its sender gives up, and greets again
        if self._node is None:
            raise Refused("this peer is still starting; ask again")
        return await self._node.on_request(peer, kind, data)

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """Return the node's answer; before the node runs, None, which is a refusal."""
        return await self._node.open_push(peer, header, size) if self._node else None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """Let the node finish a push; before the node runs there are no pushes."""
        if self._node is not None:
            await self._node.finish_push(peer, header, landing)

    def on_peer_connected(self, peer: PeerId) -> None:
        """Tell the node; when it starts, it looks up the connected peers itself."""
        if self._node is not None:
            self._node.on_peer_connected(peer)

    def on_peer_disconnected(self, peer: PeerId) -> None:
        """Tell the node."""
        if self._node is not None:
            self._node.on_peer_disconnected(peer)


async def fetch_manifest(network: Network, run: Hash, organiser: PeerId, on_wait: Callable[[str], None]) -> SignedManifest:
    """Return the manifest of `run` from a connected peer; wait until a peer has it.

    on_wait: called with a sentence about the wait.  A peer's answer is believed only if its hash is right.
    """
    while True:
        peers = list(network.connected())
        if not peers:
            on_wait("no peer of the invitation answers yet")
        for peer in peers:
            try:
                signed = open_manifest(await network.request(peer, "manifest", b"", timeout_s=ASK_TIMEOUT_S))
            except (NetworkError, Malformed) as error:
                on_wait(f"asking for the run's manifest: {error}")
                continue
            if signed.run == run and signed.manifest.organiser == organiser:
                return signed
            on_wait("a peer answered with the manifest of another run")
        await trio.sleep(ASK_AGAIN_S)


# ------------------------------------------------------------------------------------------------------------------------
# Request for a run's manifest to the peers of an invitation, without joining the run or storing anything.
#
# The request uses a new identity, so the peer of this computer may run at the same time.


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
    raise PeerError(f"the run's manifest is not available now: {problem}", ExitCode.UNREACHABLE)
