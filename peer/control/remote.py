"""Control socket over the network, for the owner alone: TLS 1.3, and a proof of identity by each end.

The certificates are made for one process and prove no identity; the signatures inside the connection do.  The peer signs the
hash of its certificate, which shows the caller that there is no man in the middle.  Then the caller signs that hash and the
peer's nonce.  The signature proves the caller's identity to the peer and is valid for this connection only.  All further
bytes belong to the control socket's protocol.

    peer:   nonce (32 bytes), Ed25519 signature (64)
    caller: public key (32), Ed25519 signature (64)
    peer:   one byte, if the caller is an owner
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import logging
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from peer.control.client import ControlError, socket_address
from protocol.transport.limits import Doorstep
from protocol.wire.canonical import Malformed
from protocol.wire.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, PeerId, peer_id_of, public_key_of, verify

HANDSHAKE_S = 5.0
"""Seconds for TLS and both proofs."""
MAX_CALLS = 32
"""Most connections of owners at one time; an interface has two."""
CHUNK_BYTES = 64 << 10
NONCE_BYTES = 32
PEER_SAYS, CALLER_SAYS = b"manyhands control 1, the peer: ", b"manyhands control 1, the caller: "
WELCOME = b"\x01"

log = logging.getLogger(__name__)


class NotOurs(Exception):
    """Error: the other end has not proved the identity that we require."""


class Door:
    """Entry for the owners' calls.  owners: their peer IDs.  Call `serve` with each socket on which TLS begins.

    Each call becomes a connection to the control socket of `data_dir`, under the rules and limits of that socket.
    """

    def __init__(self, identity: Identity, owners: Collection[PeerId], data_dir: Path) -> None:
        self._identity, self._owners, self._data_dir = identity, frozenset(owners), data_dir
        self._certificate, self._context = _listening()
        self._handshakes = Doorstep()
        self._calls = 0

    async def serve(self, sock: trio.socket.SocketType, address: str) -> None:
        """Serve a call from its first byte to its end; raises nothing, and the caller closes the socket."""
        stream = trio.SSLStream(trio.SocketStream(sock), self._context, server_side=True)
        try:
            with self._handshakes.waits(sock, address), trio.move_on_after(HANDSHAKE_S) as handshake:
                await self._admit(stream)
            if handshake.cancelled_caught or self._calls >= MAX_CALLS:
                return
            self._calls += 1
            try:
                with socket_address(self._data_dir) as path:
                    inside = await trio.open_unix_socket(path)
                async with inside:
                    await join(stream, inside)
            finally:
                self._calls -= 1
        except (OSError, NotOurs, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.debug("a call to the control socket was turned away: %r", error)

    async def _admit(self, stream: trio.SSLStream) -> None:
        nonce = os.urandom(NONCE_BYTES)
        await stream.send_all(nonce + self._identity.sign(PEER_SAYS + self._certificate + nonce))
        answer = await receive(stream, KEY_BYTES + SIGNATURE_BYTES)
        caller = peer_id_of(answer[:KEY_BYTES])
        if caller not in self._owners:
            raise NotOurs(f"{caller} is not the owner")
        if not verify(caller, answer[KEY_BYTES:], CALLER_SAYS + self._certificate + nonce):
            raise NotOurs(f"a false proof of {caller}")
        await stream.send_all(WELCOME)


async def call(address: str, identity: Identity) -> trio.SSLStream:
    """Connect to the control socket of the peer at a multiaddr that ends with /p2p/ and its ID.  Raises ControlError."""
    host, port, peer = parts_of(address)
    try:
        with trio.fail_after(HANDSHAKE_S):
            sock = await trio.open_tcp_stream(host, port)
            try:
                stream = trio.SSLStream(sock, _calling())
                await stream.do_handshake()
                await _prove(stream, peer, identity)
            except BaseException:
                await trio.aclose_forcefully(sock)
                raise
            return stream
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise ControlError(f"{address} does not answer; check that the peer runs and that its port is forwarded") from error
    except NotOurs as error:
        raise ControlError(str(error)) from error


async def _prove(stream: trio.SSLStream, peer: PeerId, identity: Identity) -> None:
    shown = stream.getpeercert(binary_form=True)
    assert isinstance(shown, bytes), "a TLS server always presents a certificate"
    certificate = hashlib.sha256(shown).digest()
    hello = await receive(stream, NONCE_BYTES + SIGNATURE_BYTES)
    nonce, signature = hello[:NONCE_BYTES], hello[NONCE_BYTES:]
    if not verify(peer, signature, PEER_SAYS + certificate + nonce):
        raise NotOurs(f"the peer at this address is not {peer}; find its address with `peer status` on its own computer")
    await stream.send_all(identity.public_key + identity.sign(CALLER_SAYS + certificate + nonce))
    try:
        await receive(stream, len(WELCOME))
    except (trio.BrokenResourceError, NotOurs) as error:
        raise NotOurs(
            f"{peer} does not accept you as its owner; on its computer, run `peer config owner {identity.peer_id}`, and "
            "restart it"
        ) from error


def parts_of(address: str) -> tuple[str, int, PeerId]:
    """Return IP address or name, port and peer ID of a multiaddr.  Raises ControlError."""
    with contextlib.suppress(Malformed, ValueError):
        _, kind, host, tcp, port, p2p, peer = address.split("/")
        if kind in ("ip4", "ip6", "dns", "dns4", "dns6") and (tcp, p2p) == ("tcp", "p2p") and 0 < int(port) < 65536:
            public_key_of(PeerId(peer))
            return host, int(port), PeerId(peer)
    raise ControlError(f"{address} is not the address of a peer; give an address from its `peer status`: /ip4/…/tcp/…/p2p/…")


async def join(one: trio.abc.Stream, other: trio.abc.Stream) -> None:
    """Copy bytes both ways until either end closes."""
    async with trio.open_nursery() as nursery:

        async def carry(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream) -> None:
            with contextlib.suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                while data := await source.receive_some(CHUNK_BYTES):
                    await sink.send_all(data)
            nursery.cancel_scope.cancel()

        nursery.start_soon(carry, one, other)
        nursery.start_soon(carry, other, one)


async def receive(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    """Receive `size` bytes.  Raises `NotOurs` if the stream ends earlier."""
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            raise NotOurs("the connection was closed")
        data += more
    return data


def _calling() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the other end proves its identity by signing the certificate
    return context


def _listening() -> tuple[bytes, ssl.SSLContext]:
    """Return a new certificate's SHA-256, and a context that shows the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    always = datetime.datetime(2000, 1, 1), datetime.datetime(2100, 1, 1)  # noqa: DTZ001 - never checked
    certificate = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), *always).sign(
        key, hashes.SHA256()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    with tempfile.NamedTemporaryFile() as file:  # readable by us alone; the library accepts only a path
        file.write(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return certificate.fingerprint(hashes.SHA256()), context


# ------------------------------------------------------------------------------------------------------------------------
# Bridge: a socket in a local folder that leads to the control socket of a remote peer.
#
# Programs made for peers on this computer talk to the remote peer through the bridge.


@asynccontextmanager
async def bridge(folder: Path, address: str, identity: Identity) -> AsyncIterator[None]:
    """Keep the bridge open for the block.  folder: private to this user.  Raises ControlError if no peer answers."""
    await trio.aclose_forcefully(await call(address, identity))
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    with listener, socket_address(folder) as path:
        await listener.bind(path)
        listener.listen(16)
        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                while True:
                    connection, _ = await listener.accept()
                    nursery.start_soon(_lead, trio.SocketStream(connection), address, identity)

            nursery.start_soon(accept)
            yield
            nursery.cancel_scope.cancel()


async def _lead(inside: trio.SocketStream, address: str, identity: Identity) -> None:
    """Serve one connection to its end; close it at once if the peer does not answer, so that the client notices."""
    async with inside:
        try:
            outside = await call(address, identity)
        except ControlError as error:
            log.debug("%s", error)
            return
        try:
            await join(inside, outside)
        finally:
            await trio.aclose_forcefully(outside)
