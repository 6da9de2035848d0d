"""Admission of peers to our run: greetings given and taken, and the peers that they let in.

`protocol.run.admission` says what a greeting contains.  In an open run every peer may speak at once.  In other runs a peer
may speak if it is listed, is a member of a record of our chain, or has shown a good admission proof.  It shows the proof in
its greeting to us, or in a statement for our tip, which others forward to peers that have not met it.  That statement is a
READY, or the heartbeat of a rollout peer or a validator, for these are in no record and say no READY.

To be named in a record is admission for good, so a voter must know that the members of a record were admitted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from protocol.chain.history import History
from protocol.events.events import Notice
from protocol.membership.activity import Activity
from protocol.run.admission import (
    AdmittedBy,
    Hello,
    HelloReply,
    admit_at_door,
    answer_hello,
    has_expired,
    make_hello,
    needs_proof,
    verify_admission,
)
from protocol.run.manifest import Admission, RunManifest
from protocol.run.settings import NodeSettings
from protocol.transport.handlers import answers
from protocol.transport.interface import Refused, Session, Unreachable
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Ready
from protocol.wire.presence import Heartbeat, Role

# ------------------------------------------------------------------------------------------------------------------------
# Newcomers that were let in, and the proof of each.  Their number is limited, and newcomers of one token cannot push out
# newcomers of another.


MAX_GUESTS = 4096
"""Peers remembered as let in; a peer that is forgotten greets again."""


@dataclass(frozen=True)
class Guest:
    """A peer that came in with this proof.

    admitted: what the proof showed, such as a token; None if the peer came in because it is a member.
    """

    proof: bytes
    admitted: AdmittedBy | None

    @property
    def token(self) -> Hash | None:
        """Name of the token that let the peer in, if one did."""
        return self.admitted.token if self.admitted is not None else None


class Guests:
    """Peers that came in.  stays: returns True for a peer that keeps its place, as members of the chain do.

    A token has as many places as uses.  When they are taken, its longest known newcomer makes room; if all are taken by
    peers that stay, there is no place.  When all places of all tokens are taken, the token with the most gives one up.
    """

    def __init__(self, stays: Callable[[PeerId], bool]) -> None:
        self._stays = stays
        self._guests: dict[PeerId, Guest] = {}
        self._of_token: dict[Hash | None, dict[PeerId, None]] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def get(self, peer: PeerId) -> Guest | None:
        """Return the proof and the admission of `peer`; None if it did not come in."""
        return self._guests.get(peer)

    def add(self, peer: PeerId, proof: bytes, admitted: AdmittedBy | None) -> bool:
        """Remember a peer; return False if its token has no place any more."""
        token = admitted.token if admitted is not None else None
        known = self._guests.get(peer)
        uses = admitted.uses if admitted is not None and token is not None else None
        if (known is None or known.token != token) and not self._make_room_in(token, uses, peer):
            return False
        if known is not None:
            self._forget(peer)
        if len(self._guests) >= MAX_GUESTS:
            crowd = max(self._of_token.values(), key=len)
            self._forget(next((guest for guest in crowd if not self._stays(guest)), next(iter(crowd))))
        self._guests[peer] = Guest(proof, admitted)
        self._of_token.setdefault(token, {})[peer] = None
        return True

    def _make_room_in(self, token: Hash | None, uses: int | None, peer: PeerId) -> bool:
        """Return True if the token has a place for `peer` now."""
        places = self._of_token.get(token, {})
        if uses is None or len(places) < uses or self._stays(peer):
            return True
        gone = next((guest for guest in places if not self._stays(guest)), None)
        if gone is not None:
            self._forget(gone)
        return gone is not None

    def _forget(self, peer: PeerId) -> None:
        token = self._guests.pop(peer).token
        places = self._of_token[token]
        del places[peer]
        if not places:
            del self._of_token[token]


# ------------------------------------------------------------------------------------------------------------------------
# Comparison of our clock with the clocks of other peers: each peer that we greet tells the time of its own.
#
# Only the expiry of invitations depends on a wall clock.  The comparison makes a sentence and changes nothing else.  It is
# the median of several peers, so that no single peer can falsify it.


MAX_PEERS = 32
"""Number of peers compared: those greeted last."""
LEAST_PEERS = 3
TOLERANCE_S = 60.0


class ClockOffsets:
    """Clocks of the peers that we greeted last, each as seconds ahead of `boot`.

    wall: our clock, in unix seconds.  boot: seconds on a clock that nobody sets, so that `skew` ends when ours is set right.
    """

    def __init__(self, wall: Callable[[], float], boot: Callable[[], float]) -> None:
        self._wall, self.boot = wall, boot
        self._offsets: OrderedDict[PeerId, float] = OrderedDict()
        self._warned = False

    def note(self, peer: PeerId, clock: float, asked: float) -> None:
        """Take the `clock` in the answer of `peer`, which has just come.  asked: the time of our question, by `boot`."""
        self._offsets[peer] = clock - (asked + self.boot()) / 2
        self._offsets.move_to_end(peer)
        if len(self._offsets) > MAX_PEERS:
            self._offsets.popitem(last=False)

    @property
    def compared(self) -> int:
        """Number of peers with which our clock is compared; 0 while they are too few."""
        return len(self._offsets) if len(self._offsets) >= LEAST_PEERS else 0

    @property
    def skew(self) -> str:
        """Phrase such as "2 h 3 min behind the clocks of 5 peers"; empty within the tolerance, or if too few are known."""
        if not self.compared:
            return ""
        offset_s = median(self._offsets.values()) - (self._wall() - self.boot())
        if abs(offset_s) <= TOLERANCE_S:
            return ""
        return f"{_span(abs(offset_s))} {'behind' if offset_s > 0 else 'ahead of'} the clocks of {self.compared} peers"

    def take_warning(self) -> str:
        """Return the sentence for the log, once; return an empty string otherwise."""
        skew = self.skew
        if not skew or self._warned:
            return ""
        self._warned = True
        return f"this computer's clock is {skew}; set it (invitations end by it)"


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} days"


# ------------------------------------------------------------------------------------------------------------------------


GREET_TIMEOUT_S = 10.0
MAX_HELLO_BYTES = 8192
COMING_IN_S = 86_400.0
"""Seconds from the handshake to the first record, for which an expired token still counts."""
NO_RECORDS = " (this peer has no records yet; it lets members in as soon as it has them)"


class Handshake:
    """Gatekeeper of the run, which knows the peers that may speak and the peers that a record may name.

    clocks: our clock, compared with the clocks of the peers that we greeted.
    """

    def __init__(
        self, session: Session, manifest: RunManifest, settings: NodeSettings, history: History, activity: Activity
    ) -> None:
        self._session, self._manifest, self._run, self._settings = session, manifest, session.run, settings
        self._history, self._activity = history, activity
        self.clocks = ClockOffsets(settings.wall_clock, settings.boot_clock)
        self._guests = Guests(history.has_member)
        """Newcomers let in with proofs; empty in runs that ask for none."""

    def may_speak(self, peer: PeerId) -> bool:
        """Return True if statements of `peer` count here."""
        return self._guests.get(peer) is not None or self.may_contribute(peer)

    def may_contribute(self, peer: PeerId) -> bool:
        """Return True if a record may name `peer` as a member, because it is one, or came in with a token and is on its way.

        Because fetching the state and completing a first round take time, a token that was valid at the handshake counts for
        another `COMING_IN_S`.  In an open run every peer may be named; in a run with an allowlist, the peers on it.
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
        """Return True if we have no records yet and our invitation names `peer`.

        A newcomer learns the chain, which names the members, from the peers that its invitation names.
        """
        by_token = self._manifest.admission is Admission.INVITE
        return by_token and self._history.length == 0 and peer in self._settings.introduced

    # -- greetings ----------------------------------------------------------------------------------------------------

    @answers("hello", Hello, anyone=True)
    async def answer_hello(self, peer: PeerId, hello: Hello) -> bytes:
        """Return the answer to a greeting; raise `Refused` with a sentence for the other peer's user."""
        reply = answer_hello(self._manifest, self._run, hello, self._settings.version, self._settings.wall_clock())
        refusal = reply if isinstance(reply, str) else self._let_in(peer, hello)
        if refusal is not None:
            raise Refused(refusal if self._history.length else f"{refusal}{NO_RECORDS}")
        assert not isinstance(reply, str)
        self._session.network.welcome(peer)
        return reply.encode()

    def _let_in(self, peer: PeerId, hello: Hello) -> str | None:
        """Remember the peer if it may come in; else return the reason why it may not, as a sentence."""
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

    async def greet(self, peer: PeerId) -> bool:
        """Greet a newly connected peer, and show our next heartbeat soon; return False if it refuses us.

        The user is told of the refusal, and of a clock that is wrong.
        """
        refusal = await self._refusal(peer)
        self._activity.tell_now()
        for warning in (self.clocks.take_warning(), refusal):
            if warning:
                self._session.emit(Notice("warning", warning))
        return refusal is None

    async def _refusal(self, peer: PeerId) -> str | None:
        """Greet a peer; return its reason for refusing us, or None if it accepts us or is gone again."""
        settings = self._settings
        hello = make_hello(self._run, settings.role, settings.admission, settings.version)
        asked = settings.boot_clock()
        try:
            answer = await self._session.network.request(peer, "hello", hello.encode(), timeout_s=GREET_TIMEOUT_S)
        except Refused as refusal:
            return str(refusal)
        except Unreachable:
            return None
        note_clock(self.clocks, peer, answer, asked)
        return None

    # -- READYs and heartbeats ----------------------------------------------------------------------------------------

    def meet(self, sender: PeerId, said: Body) -> None:
        """Let a peer in that shows a good proof in a READY or a heartbeat for our tip.

        Others have let it in, as it knows the tip.  The proof counts for `COMING_IN_S` after its token expired, as it does
        for peers that came in by our own door.
        """
        if not isinstance(said, Ready | Heartbeat):
            return
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
        """Return True if a record may name the sender of a READY, by the proof in it and the chain, which everybody sees."""
        if not self.may_contribute(sender):
            return False
        if not ready.admission:
            return not needs_proof(self._manifest, sender) or self._history.has_member(sender)
        guest = self._guests.get(sender)
        return (guest is not None and guest.proof == ready.admission) or (
            self._admitted_by(sender, ready.admission) is not None
        )

    def _admitted_by(self, peer: PeerId, proof: bytes, role: Role = Role.TRAINER) -> AdmittedBy | None:
        """Return the admission of `peer` as `role` (a trainer of the next record); a member's proof may be out of date."""
        is_member = self._history.has_member(peer)
        try:
            round = None if is_member else self._history.length
            admitted = verify_admission(self._manifest, self._run, peer, proof, round, role=role)
        except Malformed:
            return None
        expired = has_expired(admitted, self._settings.wall_clock() - COMING_IN_S)
        return admitted if is_member or not expired else None


def note_clock(clocks: ClockOffsets, peer: PeerId, answer: bytes, asked: float) -> None:
    """Note the clock in a peer's welcome, if it can be read.  asked: the time of our question, by `clocks.boot`."""
    with suppress(Malformed):
        clocks.note(peer, decode_body(HelloReply, answer, max_bytes=MAX_HELLO_BYTES).clock, asked)
