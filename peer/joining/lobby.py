"""The peer before it has its run's manifest: it can ask, but has nothing to say.

The network wants somebody to call back from its first moment; the node needs the manifest, which an invited peer has
yet to fetch through that network.  The lobby stands in, and hands everything on once the node runs.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.run.manifest import SignedManifest, open_manifest
from protocol.transport.interface import Acceptance, Handlers, Landing, Network, NetworkError, Refused
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

ASK_TIMEOUT_S = 10.0
ASK_AGAIN_S = 0.5


class Lobby:
    """Implements `protocol.transport.interface.Handlers` for the node that will be here."""

    def __init__(self) -> None:
        self._node: Handlers | None = None
        self._open = trio.Event()

    def admit(self, node: Handlers) -> None:
        """From now on `node` is called; it must be running."""
        self._node = node
        self._open.set()

    def has_member(self, peer: PeerId) -> bool:
        """The node's answer; before it runs nobody is known."""
        return self._node is not None and self._node.has_member(peer)

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        """The node's answer; before it runs gossip is ignored, and so not forwarded."""
        return self._node.on_gossip(forwarder, data) if self._node else Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        """The node's answer; before it runs a greeting waits, and all else raises Refused."""
        if kind == "hello":
            await self._open.wait()  # who greets us now need not do it again; it waits as long as it likes
        if self._node is None:
            raise Refused("this peer is still starting; ask again")
        return await self._node.on_request(peer, kind, data)

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        """The node's answer; None, a refusal, before it runs."""
        return await self._node.open_push(peer, header, size) if self._node else None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        """The node's; before it runs there is no push to finish."""
        if self._node is not None:
            await self._node.finish_push(peer, header, landing)

    def on_peer_connected(self, peer: PeerId) -> None:
        """The node's; when it begins it looks for itself who is connected."""
        if self._node is not None:
            self._node.on_peer_connected(peer)

    def on_peer_disconnected(self, peer: PeerId) -> None:
        """The node's."""
        if self._node is not None:
            self._node.on_peer_disconnected(peer)


async def fetch_manifest(network: Network, run: Hash, organiser: PeerId, on_wait: Callable[[str], None]) -> SignedManifest:
    """The manifest of `run` from whoever is connected and has it; waits until somebody does.

    on_wait: gets a sentence about what is waited for.  What a peer answers is believed for its hash alone.
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
