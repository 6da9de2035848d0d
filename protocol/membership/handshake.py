"""Admitting peers to our run: greetings given and taken, and the peers that they let in.

What a greeting must contain is `protocol.run.admission`'s business.  In an open run every peer may speak at once; otherwise
a peer may once it is listed, is a member of a record of our chain, or has greeted us with a good token.

Being named in a record is admission for good, so a voter must know that the members of a record were admitted.  For members
that it has not met, the proposer vouches with the tokens that it was shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.network.interface import Network, NetworkError, Refused, Unreachable
from protocol.run.admission import Hello, admit, answer_hello, make_hello
from protocol.run.manifest import Admission, RunManifest
from protocol.run.settings import NodeSettings
from protocol.state.history import History
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import decode_body
from protocol.wire.questions import MAX_VOUCHED, VouchReply, VouchRequest

GREET_TIMEOUT_S = 10.0
VOUCH_TIMEOUT_S = 4.0
MAX_HELLO_BYTES = 8192
MAX_VOUCH_BYTES = 128 << 10
COMING_IN_S = 86_400.0
"""Seconds from the handshake to the first record."""
NO_RECORDS = " (this peer has no records yet; it lets members in as soon as it has them)"
MAX_WELCOME = 4096
"""Peers remembered as let in; the longest known makes room, and greets again."""


class Handshake:
    """Knows the peers that may speak, and those that a record may name."""

    def __init__(self, manifest: RunManifest, run: Hash, settings: NodeSettings, history: History) -> None:
        self._manifest, self._run, self._settings, self._history = manifest, run, settings, history
        self._welcome: dict[PeerId, bytes | None] = {}
        """The peers let in, with the tokens that they showed."""

    def may_speak(self, peer: PeerId) -> bool:
        """Whether statements of `peer` count here."""
        if self._manifest.admission is Admission.OPEN or peer in self._welcome:
            return True
        return self._is_introduced(peer) or self.may_contribute(peer)

    def may_contribute(self, peer: PeerId) -> bool:
        """Whether a record may name `peer` as a member: it is one already, or came in with a token and is on its way.

        Fetching the state and a first round take time: a token that was good at the handshake counts for `COMING_IN_S` more.
        """
        if self._manifest.admission is Admission.OPEN or self._is_introduced(peer):
            return True
        return self._may_be_named(peer, self._welcome.get(peer))

    def _may_be_named(self, peer: PeerId, token: bytes | None) -> bool:
        then = self._settings.wall_clock() - COMING_IN_S
        return admit(self._manifest, peer, token, then, member=self._history.has_member(peer)) is None

    def _is_introduced(self, peer: PeerId) -> bool:
        """A newcomer without records learns the chain, which names the members, from the peers that its invitation names."""
        by_token = self._manifest.admission is Admission.INVITE
        return by_token and self._history.length == 0 and peer in self._settings.introduced

    def answer_hello(self, peer: PeerId, data: bytes) -> bytes:
        """The answer to a greeting; raises `Refused` with the sentence that the other's user shall read."""
        try:
            hello = decode_body(Hello, data, max_bytes=MAX_HELLO_BYTES)
        except Malformed as error:
            raise Refused(str(error)) from error
        settings = self._settings
        reply = answer_hello(
            self._manifest,
            self._run,
            peer,
            hello,
            settings.wall_clock(),
            settings.version,
            member=self._history.has_member(peer),
        )
        if isinstance(reply, str):
            raise Refused(reply if self._history.length else f"{reply}{NO_RECORDS}")
        self._let_in(peer, hello.token)
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

    # -- vouching -----------------------------------------------------------------------------------------------------

    async def all_admitted(self, network: Network, peers: Iterable[PeerId], voucher: PeerId) -> bool:
        """Whether a record may name all of `peers`; the tokens of those whom we have not met are asked of `voucher`."""
        unknown = [peer for peer in peers if peer != network.peer_id and not self.may_contribute(peer)]
        if not unknown:
            return True
        if len(unknown) > MAX_VOUCHED:
            return False
        question = VouchRequest(peers=list(unknown))
        try:
            answer = await network.request(voucher, "vouch", question.encode(), timeout_s=VOUCH_TIMEOUT_S)
            reply = decode_body(VouchReply, answer, max_bytes=MAX_VOUCH_BYTES)
        except (NetworkError, Malformed):
            return False
        for peer, token in zip(unknown, reply.tokens, strict=False):
            if self._may_be_named(peer, token):
                self._let_in(peer, token)
        return all(self.may_contribute(peer) for peer in unknown)

    def answer_vouch(self, data: bytes) -> bytes:
        """The tokens that some peers have shown us; raises `Refused`."""
        try:
            question = decode_body(VouchRequest, data, max_bytes=MAX_HELLO_BYTES)
        except Malformed as error:
            raise Refused(str(error)) from error
        return VouchReply(tokens=[self._welcome.get(PeerId(peer)) or b"" for peer in question.peers]).encode()

    def _let_in(self, peer: PeerId, token: bytes | None) -> None:
        if len(self._welcome) >= MAX_WELCOME and peer not in self._welcome:
            self._welcome.pop(next(iter(self._welcome)))
        self._welcome[peer] = token
