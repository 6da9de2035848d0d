"""Admission of peers to our run: greetings that we send and answer, and the peers that they admit.

`protocol.run.admission` defines the contents of a greeting.  In an open run every peer may speak at once.  In other runs a
peer may speak if it is on the allowlist, is a member of a record of our chain, or has shown a valid admission proof.  The
proof is in the peer's greeting to us, or in a statement for our tip, which gossip also brings to peers that it has not
greeted.  That statement is a READY, or a heartbeat of a rollout peer or a validator, which are in no record and send no
READY.

A peer that is named in a record is admitted permanently, so a voter must know that the members of a record were admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import trio

from protocol.bounds import Backoff, BoundedDict
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
# Newcomers that were admitted, and the proof of each.  Their number is limited for each token and overall, so newcomers with
# one token do not crowd out newcomers with another.


MAX_GUESTS = 4096
"""Limit on the admitted peers that are remembered; a peer that is forgotten greets again."""


@dataclass(frozen=True)
class Guest:
    """An admitted peer, with its proof.

    admitted: the content of the proof, such as a token; None if the peer was admitted because it is a member.
    """

    proof: bytes
    admitted: AdmittedBy | None

    @property
    def token(self) -> Hash | None:
        """Name of the token that admitted the peer; None if there was none."""
        return self.admitted.token if self.admitted is not None else None


class Guests:
    """Register of admitted peers.  stays: returns True for a peer that keeps its place, such as a member of the chain.

    A token has as many places as uses.  When all of them are taken, a new peer replaces the token's longest known newcomer,
    unless all of them are taken by peers that stay.  When `MAX_GUESTS` is reached, a new peer takes a place from the token
    with the most places.
    """

    def __init__(self, stays: Callable[[PeerId], bool]) -> None:
        self._stays = stays
        self._guests: dict[PeerId, Guest] = {}
        self._of_token: dict[Hash | None, dict[PeerId, None]] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def get(self, peer: PeerId) -> Guest | None:
        """Return the proof and the admission of `peer`; None if it was not admitted."""
        return self._guests.get(peer)

    def add(self, peer: PeerId, proof: bytes, admitted: AdmittedBy | None) -> bool:
        """Remember a peer; return False if its token has no place left."""
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
        """Return True if the token has a place for `peer`, after evicting a newcomer if needed."""
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
# Comparison of our clock with the clocks of other peers.  Each peer that we greet tells us its time.
#
# Only the expiry of invitations depends on a wall clock.  The comparison yields a warning and changes nothing else.  It uses
# the median of several peers, so no single peer can falsify it.


MAX_PEERS = 32
"""Limit on the peers compared; the peers greeted last are kept."""
LEAST_PEERS = 2
"""Fewest peers compared: with ours, there are three clocks, and a clock that differs from two equal ones is wrong."""
TOLERANCE_S = 60.0


class ClockOffsets:
    """Clocks of the peers that we greeted last, as seconds ahead of `boot`.

    wall: our clock, in unix seconds.  boot: seconds on a clock that is never set, so `skew` ends once the wall clock is
    corrected.
    """

    def __init__(self, wall: Callable[[], float], boot: Callable[[], float]) -> None:
        self._wall, self.boot = wall, boot
        self._offsets = BoundedDict[PeerId, float](MAX_PEERS)
        self._warned = False

    def note(self, peer: PeerId, clock: float, asked: float) -> None:
        """Record the `clock` in an answer of `peer` that has just arrived.  asked: the time of our question, by `boot`."""
        self._offsets.renew(peer, clock - (asked + self.boot()) / 2)

    @property
    def compared(self) -> int:
        """Number of peers with which our clock is compared; 0 while there are too few."""
        return len(self._offsets) if len(self._offsets) >= LEAST_PEERS else 0

    @property
    def skew(self) -> str:
        """Phrase such as "2 h 3 min behind the clocks of 5 peers"; empty within the tolerance, or with too few peers."""
        if not self.compared:
            return ""
        offsets_s = [each - (self._wall() - self.boot()) for each in self._offsets.values()]
        # between two middle clocks, our own clock decides
        offset_s = median(offsets_s if len(offsets_s) % 2 else [*offsets_s, 0.0])
        if abs(offset_s) <= TOLERANCE_S:
            return ""
        return f"{_span(abs(offset_s))} {'behind' if offset_s > 0 else 'ahead of'} the clocks of {self.compared} peers"

    def take_warning(self) -> str:
        """Return the warning for the log once; return an empty string if there is none, or if it was returned before."""
        skew = self.skew
        if not skew or self._warned:
            return ""
        self._warned = True
        return f"this computer's clock is {skew}; set the clock, because invitations expire by it"


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} days"


# ------------------------------------------------------------------------------------------------------------------------


GREET_TIMEOUT_S = 10.0
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Seconds between two greetings of a connected peer that does not answer: at first, and at most."""
MAX_HELLO_BYTES = 8192
COMING_IN_S = 86_400.0
"""Seconds for which a token still counts after its expiry, for a peer on its way from the handshake to a record."""
NO_RECORDS = " (this peer has no records yet; it admits members as soon as it has them)"


class Handshake:
    """Gatekeeper of the run, which decides on the peers that may speak and the peers that a record may name.

    clocks: our clock, compared with the clocks of the peers that we greeted.
    """

    def __init__(
        self, session: Session, manifest: RunManifest, settings: NodeSettings, history: History, activity: Activity
    ) -> None:
        self._session, self._manifest, self._run, self._settings = session, manifest, session.run, settings
        self._history, self._activity = history, activity
        self.clocks = ClockOffsets(settings.wall_clock, settings.boot_clock)
        self._guests = Guests(history.has_member)
        """Newcomers admitted with proofs; empty in runs that require none."""
        self._greetings: dict[PeerId, object] = {}
        """Newest greeting of each peer that has not answered yet."""

    def may_speak(self, peer: PeerId) -> bool:
        """Return True if we accept statements of `peer`."""
        return self._guests.get(peer) is not None or self.may_contribute(peer)

    def may_contribute(self, peer: PeerId) -> bool:
        """Return True if a record may name `peer`, because it is a member, or was admitted with a token and is joining.

        Because fetching the state and completing a first round take time, a token that was valid at the handshake counts for
        another `COMING_IN_S`.  In an open run every peer may be named; in a run with an allowlist, the peers on it.
        """
        manifest = self._manifest
        if manifest.admission is Admission.OPEN or peer == manifest.organiser:
            return True
        if manifest.admission is Admission.ALLOWLIST:
            return peer in manifest.allowlist
        # a newcomer fetches the chain, which names the members, from the peers that its invitation names
        is_introduced = self._history.length == 0 and peer in self._settings.introduced
        return self._history.has_member(peer) or is_introduced or self._is_coming_in(peer)

    def _is_coming_in(self, peer: PeerId) -> bool:
        guest = self._guests.get(peer)
        if guest is None or guest.admitted is None:
            return False
        try:
            guest.admitted.require(Role.TRAINER, self._history.length)
        except Malformed:
            return False
        return not has_expired(guest.admitted, self._settings.wall_clock() - COMING_IN_S)

    def is_elector(self, peer: PeerId) -> bool:
        """Return True if `peer` votes on the next record."""
        return peer in self._history.roster.electorate.electors

    def has_allowance(self, peer: PeerId) -> bool:
        """Return True if `peer` is active, or was admitted to a run that is not open: there a key costs an admission."""
        is_admitted = self._manifest.admission is not Admission.OPEN and self.may_speak(peer)
        return is_admitted or self._history.is_active(peer)

    # -- greetings ----------------------------------------------------------------------------------------------------

    @answers("hello", Hello, anyone=True)
    async def answer_hello(self, peer: PeerId, hello: Hello) -> bytes:
        """Return the answer to a greeting; raise `Refused` with a sentence for the user of the other peer."""
        reply = answer_hello(self._manifest, self._run, hello, self._settings.version, self._settings.wall_clock())
        refusal = reply if isinstance(reply, str) else self._let_in(peer, hello)
        if refusal is not None:
            raise Refused(refusal if self._history.length else f"{refusal}{NO_RECORDS}")
        assert not isinstance(reply, str)
        self._session.network.welcome(peer)
        return reply.encode()

    def _let_in(self, peer: PeerId, hello: Hello) -> str | None:
        """Remember the peer if it is admitted; otherwise return the reason, as a sentence."""
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
            return "the invitation has admitted all the peers that it allows; ask the run's organiser for a new invitation"
        return None

    async def greet(self, peer: PeerId) -> bool:
        """Greet a newly connected peer, and send our next heartbeat soon; return True if it accepts us.

        Without an answer, greet it again while it is connected: a peer that is too busy to answer in time might otherwise
        never hear us.  Warn the user of a refusal, and of a wrong clock.
        """
        greeting, backoff = object(), Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        self._greetings[peer] = greeting
        try:
            while True:
                try:
                    refusal = await self._refusal(peer)
                    break
                except Unreachable:
                    self._activity.tell_now()
                    await trio.sleep(backoff.failed())
                if self._greetings.get(peer) is not greeting or peer not in self._session.network.connected():
                    return False  # it is gone, or greeted on a newer connection
        finally:
            if self._greetings.get(peer) is greeting:
                del self._greetings[peer]
        self._activity.tell_now()
        self._activity.note_greeted(refusal)
        for warning in (self.clocks.take_warning(), refusal):
            if warning:
                self._session.emit(Notice("warning", warning))
        return refusal is None

    async def _refusal(self, peer: PeerId) -> str | None:
        """Greet a peer; return its reason for refusing us, or None if it accepts us.  Raises `Unreachable`."""
        settings = self._settings
        hello = make_hello(self._run, settings.role, settings.admission, settings.version)
        asked = settings.boot_clock()
        try:
            answer = await self._session.network.request(peer, "hello", hello.encode(), timeout_s=GREET_TIMEOUT_S)
        except Refused as refusal:
            return str(refusal)
        note_clock(self.clocks, peer, answer, asked)
        return None

    # -- READYs and heartbeats ----------------------------------------------------------------------------------------

    def meet(self, sender: PeerId, said: Body) -> None:
        """Admit a peer that shows a valid proof in a READY or a heartbeat for our tip.

        Other peers have admitted it, because it knows the tip.  The proof counts for `COMING_IN_S` after its token expired,
        as for peers that we admitted in a handshake ourselves.
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
        """Return True if a record may name the sender of a READY, judged by its proof and by the chain."""
        if not self.may_contribute(sender):
            return False
        if not ready.admission:
            return not needs_proof(self._manifest, sender) or self._history.has_member(sender)
        guest = self._guests.get(sender)
        return (guest is not None and guest.proof == ready.admission) or (
            self._admitted_by(sender, ready.admission) is not None
        )

    def _admitted_by(self, peer: PeerId, proof: bytes, role: Role = Role.TRAINER) -> AdmittedBy | None:
        """Return the admission that `proof` gives to `peer` as `role`, else None; a member's proof may have expired."""
        is_member = self._history.has_member(peer)
        try:
            round = None if is_member else self._history.length
            admitted = verify_admission(self._manifest, self._run, peer, proof, round, role=role)
        except Malformed:
            return None
        expired = has_expired(admitted, self._settings.wall_clock() - COMING_IN_S)
        return admitted if is_member or not expired else None


def note_clock(clocks: ClockOffsets, peer: PeerId, answer: bytes, asked: float) -> None:
    """Record the clock in a peer's answer, unless it is malformed.  asked: the time of our question, by `clocks.boot`."""
    with suppress(Malformed):
        clocks.note(peer, decode_body(HelloReply, answer, max_bytes=MAX_HELLO_BYTES).clock, asked)
