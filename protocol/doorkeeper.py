"""Who may speak in our run: greetings given and taken, and the peers they let in.

What a greeting must contain is `protocol.admission`'s business.  In an open run everybody may speak at once; otherwise a
peer may once it is listed, or has greeted us with a good token.
"""

from __future__ import annotations

from protocol.admission import Hello, admit, answer_hello, make_hello
from protocol.canonical import Malformed
from protocol.hashes import Hash
from protocol.identity import PeerId
from protocol.manifest import Admission, RunManifest
from protocol.messages import decode_body
from protocol.network import Network, Refused, Unreachable
from protocol.parts import NodeSettings

GREET_TIMEOUT_S = 10.0
MAX_HELLO_BYTES = 8192
MAX_WELCOME = 4096
"""Peers remembered as let in; the longest known makes room, and greets again."""


class Doorkeeper:
    """Keeps the door of one run."""

    def __init__(self, manifest: RunManifest, run: Hash, settings: NodeSettings) -> None:
        self._manifest, self._run, self._settings = manifest, run, settings
        self._welcome: dict[PeerId, None] = {}

    def may_speak(self, peer: PeerId) -> bool:
        """Whether statements of `peer` count here."""
        if self._manifest.admission is Admission.OPEN or peer in self._welcome:
            return True
        return admit(self._manifest, peer, None, self._settings.wall_clock()) is None

    def answer_hello(self, peer: PeerId, data: bytes) -> bytes:
        """The answer to a greeting; raises `Refused` with the sentence that the other's user shall read."""
        try:
            hello = decode_body(Hello, data, max_bytes=MAX_HELLO_BYTES)
        except Malformed as error:
            raise Refused(str(error)) from error
        reply = answer_hello(self._manifest, self._run, peer, hello, self._settings.wall_clock(), self._settings.version)
        if isinstance(reply, str):
            raise Refused(reply)
        if len(self._welcome) >= MAX_WELCOME:
            self._welcome.pop(next(iter(self._welcome)))
        self._welcome[peer] = None
        return reply.encode()

    async def greet(self, network: Network, peer: PeerId) -> str | None:
        """Greet a newly connected peer.  The reason why it will not have us; None when it will, or is gone again."""
        hello = make_hello(self._run, self._settings.role, self._settings.token, self._settings.version)
        try:
            await network.request(peer, "hello", hello.encode(), timeout_s=GREET_TIMEOUT_S)
        except Refused as refusal:
            return str(refusal)
        except Unreachable:
            return None
        return None
