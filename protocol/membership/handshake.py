"""Admitting peers to our run: greetings given and taken, and the peers that they let in.

What a greeting must contain is `protocol.run.greeting`'s business.  In an open run every peer may speak at once; otherwise
a peer may once it is listed, is a member of a record of our chain, or has shown a good admission proof: in its greeting to
us, or in a statement for our tip, which others forward to those that have not met it: a READY, or a heartbeat, for rollout
peers and validators are in no record and say no READY.

Being named in a record is admission for good, so a voter must know that the members of a record were admitted.
"""

from __future__ import annotations

from contextlib import suppress

from protocol.membership.clock_offsets import ClockOffsets
from protocol.membership.guests import Guests
from protocol.network.interface import MALFORMED, Network, Refused, Unreachable
from protocol.run.admission import AdmittedBy, has_expired, needs_proof, verify_admission
from protocol.run.greeting import Hello, HelloReply, admit_at_door, answer_hello, make_hello
from protocol.run.manifest import Admission, RunManifest
from protocol.run.settings import NodeSettings
from protocol.state.history import History
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Ready
from protocol.wire.presence import Heartbeat, Role

GREET_TIMEOUT_S = 10.0
MAX_HELLO_BYTES = 8192
COMING_IN_S = 86_400.0
"""Seconds from the handshake to the first record, for which an expired token still counts."""
NO_RECORDS = " (this peer has no records yet; it lets members in as soon as it has them)"


class Handshake:
    """Knows the peers that may speak, and those that a record may name.

    clocks: our clock, compared with the clocks of the peers that we greeted.
    """

    def __init__(self, manifest: RunManifest, run: Hash, settings: NodeSettings, history: History) -> None:
        self._manifest, self._run, self._settings, self._history = manifest, run, settings, history
        self.clocks = ClockOffsets(settings.wall_clock, settings.boot_clock)
        self._guests = Guests(history.has_member)
        """The newcomers let in with proofs; empty in runs that ask for none."""

    def may_speak(self, peer: PeerId) -> bool:
        """Whether statements of `peer` count here."""
        return self._guests.get(peer) is not None or self.may_contribute(peer)

    def may_contribute(self, peer: PeerId) -> bool:
        """Whether a record may name `peer` as a member: it is one already, or came in with a token and is on its way.

        Fetching the state and a first round take time: a token that was good at the door counts for `COMING_IN_S` more.
        """
        manifest = self._manifest
        if manifest.admission is Admission.OPEN or peer == manifest.organiser:
            return True
        if manifest.admission is Admission.ALLOWLIST:
            return peer in manifest.allowlist
        return self._history.has_member(peer) or self._is_introduced(peer) or self._is_coming_in(peer)

    def _is_coming_in(self, peer: PeerId) -> bool:
        guest = self._guests.get(peer)
        if guest is None or guest.admitted is None:
            return False
        try:
            guest.admitted.require(Role.TRAINER, self._history.length)
        except Malformed:
            return False
        return not has_expired(guest.admitted, self._settings.wall_clock() - COMING_IN_S)

    def _is_introduced(self, peer: PeerId) -> bool:
        """A newcomer without records learns the chain, which names the members, from the peers that its invitation names."""
        by_token = self._manifest.admission is Admission.INVITE
        return by_token and self._history.length == 0 and peer in self._settings.introduced

    # -- greetings ----------------------------------------------------------------------------------------------------

    def answer_hello(self, peer: PeerId, data: bytes) -> bytes:
        """The answer to a greeting; raises `Refused` with the sentence that the other's user shall read."""
        try:
            hello = decode_body(Hello, data, max_bytes=MAX_HELLO_BYTES)
        except Malformed as error:
            raise Refused(MALFORMED) from error
        reply = answer_hello(self._manifest, self._run, hello, self._settings.version, self._settings.wall_clock())
        refusal = reply if isinstance(reply, str) else self._let_in(peer, hello)
        if refusal is not None:
            raise Refused(refusal if self._history.length else f"{refusal}{NO_RECORDS}")
        assert not isinstance(reply, str)
        return reply.encode()

    def _let_in(self, peer: PeerId, hello: Hello) -> str | None:
        """Remember whoever may come in; else why it may not, as a sentence."""
        admitted = admit_at_door(
            self._manifest,
            self._run,
            peer,
            hello.admission,
            self._settings.wall_clock(),
            role=hello.role,
            round=self._history.length,
        )
        if self._manifest.admission is not Admission.INVITE:
            return admitted if isinstance(admitted, str) else None
        is_member = self._history.has_member(peer)
        if isinstance(admitted, str):
            if not is_member:
                return admitted
            self._guests.add(peer, b"", None)
        elif not self._guests.add(peer, hello.admission, admitted):
            return "the invitation has let in all the peers that it may; ask the run's organiser for a new one"
        return None

    async def greet(self, network: Network, peer: PeerId) -> str | None:
        """Greet a newly connected peer.  The reason why it will not have us; None when it will, or is gone again."""
        settings = self._settings
        hello = make_hello(self._run, settings.role, settings.admission, settings.version)
        asked = settings.boot_clock()
        try:
            answer = await network.request(peer, "hello", hello.encode(), timeout_s=GREET_TIMEOUT_S)
        except Refused as refusal:
            return str(refusal)
        except Unreachable:
            return None
        note_clock(self.clocks, peer, answer, asked)
        return None

    # -- READYs and heartbeats ----------------------------------------------------------------------------------------

    def meet(self, sender: PeerId, said: Ready | Heartbeat) -> None:
        """Let a peer in that shows a good proof in a statement for our tip: it had to be let in by others to know that.

        `COMING_IN_S` after its token expired is not too late, as for those that have come in by our own door.
        """
        tip, role = (said.base, Role.TRAINER) if isinstance(said, Ready) else (said.tip, said.role)
        if not said.admission or tip != self._history.tip or self.may_contribute(sender):
            return
        guest = self._guests.get(sender)
        if guest is not None and guest.proof == said.admission:
            return
        admitted = self._admitted_by(sender, said.admission, role)
        if admitted is not None and admitted.token is not None:
            self._guests.add(sender, said.admission, admitted)

    def may_be_named(self, sender: PeerId, ready: Ready) -> bool:
        """Whether a record may name the sender of a READY, by what everybody sees: the proof in it, and the chain."""
        if not self.may_contribute(sender):
            return False
        if not ready.admission:
            return not needs_proof(self._manifest, sender) or self._history.has_member(sender)
        guest = self._guests.get(sender)
        return (guest is not None and guest.proof == ready.admission) or (
            self._admitted_by(sender, ready.admission) is not None
        )

    def _admitted_by(self, peer: PeerId, proof: bytes, role: Role = Role.TRAINER) -> AdmittedBy | None:
        """What lets `peer` in as `role`, a trainer in the next record; a member's proof may be out of date."""
        is_member = self._history.has_member(peer)
        try:
            round = None if is_member else self._history.length
            admitted = verify_admission(self._manifest, self._run, peer, proof, round, role=role)
        except Malformed:
            return None
        expired = has_expired(admitted, self._settings.wall_clock() - COMING_IN_S)
        return admitted if is_member or not expired else None


def note_clock(clocks: ClockOffsets, peer: PeerId, answer: bytes, asked: float) -> None:
    """Note the clock in a peer's welcome; one that cannot be read tells nothing.  asked: when we asked, by `clocks.boot`."""
    with suppress(Malformed):
        clocks.note(peer, decode_body(HelloReply, answer, max_bytes=MAX_HELLO_BYTES).clock, asked)
