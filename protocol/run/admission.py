"""Admission to a run: the proof that a peer shows to be let in and that a record can carry, and the greeting at the door.

An admission proof is the organiser's token and, for a bearer token, the signature of the token's key over the run and one
peer ID.  Every peer that sees a proof can check it, and only that one peer can use it.  In runs that are open or have a
list the proof is empty.  Everything here is pure: given the same arguments, every peer comes to the same result.  Only
`has_expired` depends on a clock, whose reading the caller gives it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from protocol.run.manifest import PROTOCOL_VERSION, Admission, RunManifest
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import (
    MAX_ADMISSION_BYTES,
    MAX_TOKEN_BYTES,
    Body,
    Count,
    HashField,
    PeerField,
    SignatureField,
    decode_body,
    open_envelope,
)
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import KEY_BYTES, Identity, PeerId, peer_id_of, public_key_of, verify
from protocol.wire.messages import pack
from protocol.wire.presence import Role

# ------------------------------------------------------------------------------------------------------------------------
# Tokens: the organiser's signed permission to come into a run that admits by invitation.
#
# A token is bound to one peer, or it is a bearer token: then it names a public key made for it, whose private half is in the
# invitation text alone.  A token by itself admits nobody: a peer shows an admission proof, which is made from the token.


DEFAULT_USES = 64
"""Default number of peers that a bearer token admits: as many as vote, or train together by default."""
MAX_USES = 4096


class Token(Body):
    """Permission to take part, in a role and until a time: exactly one of `peer` and `key` is set.

    expires: unix seconds, checked by each peer with its own clock when a peer comes in.  until_round: no record of a later
    round may be the first that names the peer; all peers check this alike.  key: an Ed25519 public key (32 bytes),
    of a bearer token.  uses: number of different peers that it may admit in this run; 1 if it is bound to one.
    """

    KIND: ClassVar[str] = "token"
    run: HashField
    role: Annotated[Role, Field(strict=False)]
    expires: Count
    until_round: Count | None
    peer: PeerField | None
    key: Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)] | None
    uses: Annotated[int, Field(ge=1, le=MAX_USES)]

    @model_validator(mode="after")
    def _is_for_a_peer_or_for_holders_of_a_key(self) -> Self:
        if (self.peer is None) == (self.key is None):
            raise ValueError("a token is for a peer or for the holders of a key")
        if self.peer is not None and self.uses != 1:
            raise ValueError("a token for one peer has one use")
        return self

    @property
    def name(self) -> Hash:
        """Hash by which peers count the token's uses.

        It excludes the signature, because a token could have several valid signatures.
        """
        return hash_bytes("token", self.encode())


def bound_token(
    organiser: Identity,
    run: Hash,
    peer: PeerId,
    *,
    expires: int,
    role: Role = Role.TRAINER,
    until_round: int | None = None,
) -> bytes:
    """Sign a token for one peer.  expires: unix seconds.  Raises `Malformed` for a `peer` that is not a peer ID."""
    public_key_of(peer)
    token = Token(run=run, role=role, expires=expires, until_round=until_round, peer=peer, key=None, uses=1)
    return pack(organiser, run, token).raw


def bearer_token(
    organiser: Identity,
    run: Hash,
    key: Identity,
    *,
    expires: int,
    role: Role = Role.TRAINER,
    until_round: int | None = None,
    uses: int = DEFAULT_USES,
) -> bytes:
    """Sign a token for up to `uses` peers.  `key` was made for this token; its seed goes into the invitation."""
    token = Token(run=run, role=role, expires=expires, until_round=until_round, peer=None, key=key.public_key, uses=uses)
    return pack(organiser, run, token).raw


def read_token(token: bytes, run: Hash, organiser: PeerId) -> Token:
    """Return the token in an envelope that the organiser signed for this run; raise `Malformed` if there is none."""
    envelope = open_envelope(token, run, max_bytes=MAX_TOKEN_BYTES)
    if envelope.kind != Token.KIND:
        raise Malformed("a signed statement, but not a token")
    if envelope.sender != organiser:
        raise Malformed("a token that the run's organiser did not sign")
    body = decode_body(Token, envelope.body, max_bytes=MAX_TOKEN_BYTES)
    if body.run != run:
        raise Malformed("a token of another run")
    return body


def peek_token(token: bytes) -> Token:
    """Return a token that was verified before: the signature is not checked.  Raises `Malformed`."""
    fields = canonical.decode(token, max_bytes=MAX_TOKEN_BYTES)
    if not isinstance(fields, dict) or not isinstance(fields.get("body"), bytes):
        raise Malformed("not a token")
    return decode_body(Token, fields["body"], max_bytes=MAX_TOKEN_BYTES)


# ------------------------------------------------------------------------------------------------------------------------
# Proofs of admission.


_DOMAIN = b"manyhands admission 1\n"


class AdmissionProof(Body):
    """Proof that a peer is admitted.  token: the organiser's signed token.

    signature: the signature of the token's key over run and peer; None for a token that names the peer.
    """

    token: Annotated[bytes, Field(min_length=1, max_length=MAX_TOKEN_BYTES)]
    signature: SignatureField | None


@dataclass(frozen=True)
class AdmittedBy:
    """Grounds for a peer's admission.

    token: the token's name; None if the manifest alone decides, in which case the other fields have no meaning.
    expires: unix seconds.  until_round: the last round whose record may be the first with this peer; None for any.
    uses: number of peers that the token may admit.
    """

    token: Hash | None = None
    role: Role = Role.TRAINER
    expires: int = 0
    until_round: int | None = None
    uses: int = 1

    def require(self, role: Role, round: int | None) -> None:
        """Raise `Malformed` if the token is not for this role or too old for this round.

        A trainer's token is valid for every role, and every token is valid for a seed.
        """
        if self.token is None:
            return
        if self.role is not Role.TRAINER and role not in (self.role, Role.SEED):
            raise Malformed(f"the token is for the role {self.role.value}")
        if round is not None and self.until_round is not None and round > self.until_round:
            raise Malformed(f"the token expired after round {self.until_round}; this is round {round}")


BY_MANIFEST = AdmittedBy()
"""Admission of the organiser, of listed peers, and of everybody in an open run."""


def needs_proof(manifest: RunManifest, peer: PeerId) -> bool:
    """Return True if `peer` has to show a proof; all other peers must show none."""
    return manifest.admission is Admission.INVITE and peer != manifest.organiser


def make_proof(token: bytes, run: Hash, peer: PeerId, key: Identity | None = None) -> bytes:
    """Return the admission proof of `peer`.  key: the key of a bearer token.  The token is not checked."""
    return AdmissionProof(token=token, signature=key.sign(_signed_bytes(run, peer)) if key is not None else None).encode()


def verify_admission(
    manifest: RunManifest, run: Hash, peer: PeerId, proof: bytes, round: int | None = None, *, role: Role = Role.TRAINER
) -> AdmittedBy:
    """Return the grounds for admitting `peer` to run `run` of this manifest, in `role`; raise `Malformed` with the reason.

    round: the round of the record that names the peer or would name it; None if it is unknown.  Neither the clock nor the
    uses of the token are checked (`has_expired`, `TokenUses`).
    """
    if manifest.admission is Admission.ALLOWLIST and peer not in manifest.allowlist and peer != manifest.organiser:
        raise Malformed("the run's list does not name the peer")
    if not needs_proof(manifest, peer):
        if proof:
            raise Malformed("an admission proof although none is needed")
        return BY_MANIFEST
    if not proof:
        raise Malformed("no admission proof")
    shown = decode_body(AdmissionProof, proof, max_bytes=MAX_ADMISSION_BYTES)
    token = read_token(shown.token, run, PeerId(manifest.organiser))
    if token.key is None:
        if token.peer != peer:
            raise Malformed(f"the token is for {token.peer}")
        if shown.signature is not None:
            raise Malformed("a key's signature with a token for one peer, which needs none")
    elif shown.signature is None or not verify(peer_id_of(token.key), shown.signature, _signed_bytes(run, peer)):
        raise Malformed("a bearer token without its key's signature for this peer")
    admitted = AdmittedBy(token.name, token.role, token.expires, token.until_round, token.uses)
    admitted.require(role, round)
    return admitted


def has_expired(admitted: AdmittedBy, wall_now: float) -> bool:
    """Return True if the token had expired at `wall_now` (unix seconds, by the caller's clock)."""
    return admitted.token is not None and admitted.expires <= wall_now


class TokenUses:
    """The peers that the tokens of a run have admitted in a chain of records: a value that records are folded into.

    A peer counts for the token of its first admission, and for no later one.  Proofs are not verified here.
    """

    def __init__(self) -> None:
        self._token_of: Mapping[PeerId, Hash] = {}
        self._count: Mapping[Hash, int] = {}

    def count(self, token: Hash) -> int:
        """Return the number of peers that this token has admitted."""
        return self._count.get(token, 0)

    def may_admit(self, peer: PeerId, proof: bytes) -> bool:
        """Return True if `peer` was admitted before, or if its proof's token still has a use; False for malformed proofs."""
        try:
            self.after([(peer, proof)])
        except Malformed:
            return False
        return True

    def after(self, admissions: Iterable[tuple[PeerId, bytes]]) -> TokenUses:
        """Return the uses after a record with these members and their verified proofs; `self` if nobody is new.

        Raises `Malformed` if a token admits more peers than it may, or if a proof is malformed.
        """
        new: dict[PeerId, Hash] = {}
        count: Counter[Hash] = Counter()
        for peer, proof in admissions:
            if not proof or peer in self._token_of or peer in new:
                continue
            token = peek_token(decode_body(AdmissionProof, proof, max_bytes=MAX_ADMISSION_BYTES).token)
            new[peer] = token.name
            count[token.name] += 1
            if self.count(token.name) + count[token.name] > token.uses:
                raise Malformed(f"the token of {peer} has admitted {token.uses} peers, and may admit no more")
        if not new:
            return self
        uses = TokenUses()
        uses._token_of = {**self._token_of, **new}
        uses._count = {**self._count, **{token: self.count(token) + more for token, more in count.items()}}
        return uses


def _signed_bytes(run: Hash, peer: PeerId) -> bytes:
    return _DOMAIN + canonical.encode([run, peer])


# ------------------------------------------------------------------------------------------------------------------------
# The greeting between two peers: checks that they speak the same protocol, and that one may come in to the other.
#
# A refusal is a sentence that the refused peer shows to its user.  The node sends greetings and deals with connections after
# a refusal.  A token is for coming in: a member of a committed record is in, and stays in when its token expires.


OLDEST_PROTOCOL_VERSION = PROTOCOL_VERSION
"""Oldest version of the protocol that this software still speaks."""

LAST_SECOND = 253_402_300_799
"""End of the year 9999, in unix seconds: the last second that a date can show."""

VersionNumber = Annotated[int, Field(ge=1, le=1_000_000)]
VersionName = Annotated[str, Field(max_length=40)]


class Hello(Body):
    """The first question to another peer.  admission: the sender's admission proof; empty if the run asks for none."""

    KIND: ClassVar[str] = "hello"
    protocol_min: VersionNumber
    protocol_max: VersionNumber
    version: VersionName
    run: HashField
    role: Annotated[Role, Field(strict=False)]
    admission: Annotated[bytes, Field(max_length=MAX_ADMISSION_BYTES)]


class HelloReply(Body):
    """Welcome to a peer.  protocol: the version to speak.  version: the answerer's software.  clock: its unix second."""

    KIND: ClassVar[str] = "hello-reply"
    protocol: VersionNumber
    version: VersionName
    clock: Annotated[int, Field(ge=0, le=LAST_SECOND)]


def make_hello(run: Hash, role: Role, admission: bytes, version: str) -> Hello:
    """Return our greeting."""
    return Hello(
        protocol_min=OLDEST_PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        version=version[:40],
        run=run,
        role=role,
        admission=admission,
    )


def admit_at_door(
    manifest: RunManifest,
    run: Hash,
    peer: PeerId,
    proof: bytes,
    wall_now: float,
    *,
    role: Role = Role.TRAINER,
    round: int | None = None,
) -> AdmittedBy | str:
    """Return the grounds for admitting `peer` now in `role`; or a sentence with the reason for refusal and the remedy.

    wall_now: unix seconds.  round: the round of the next record, the first that could name a newcomer; None if unknown.
    """
    if manifest.admission is Admission.INVITE and not proof and peer != manifest.organiser:
        return (
            f"the run {manifest.name} admits only invited peers; send its organiser your peer ID, {peer}, "
            "and join with the invitation that comes back"
        )
    try:
        admitted = verify_admission(manifest, run, peer, proof, round, role=Role.SEED)
    except Malformed as error:
        if manifest.admission is Admission.ALLOWLIST and not proof:
            return f"the run {manifest.name} admits only listed peers; ask its organiser to list {peer}"
        return f"the invitation is not valid for {peer} ({error}); ask the run's organiser for a new one"
    if has_expired(admitted, wall_now):
        return (
            "the token of the invitation has expired; ask the run's organiser for a new invitation (good until "
            f"{_date(admitted.expires)}; the clock of the computer that checked it shows {_date(wall_now)}: "
            "set it if that is wrong)"
        )
    try:
        admitted.require(role, round)
    except Malformed as error:
        return f"the invitation is not valid for this role ({error}); join with --role {admitted.role.value}"
    return admitted


def answer_hello(manifest: RunManifest, run: Hash, hello: Hello, version: str, wall_now: float) -> HelloReply | str:
    """Return the answer to a greeting, judged by run and software: a welcome, or a sentence with the reason of the refusal.

    wall_now: unix seconds.
    """
    if hello.run != run:
        return f"this peer takes part in another run ({run.hex()[:12]}); check the invitation"
    lowest = max(hello.protocol_min, OLDEST_PROTOCOL_VERSION, manifest.protocol_min)
    highest = min(hello.protocol_max, PROTOCOL_VERSION, manifest.protocol_max)
    if lowest <= highest:
        return HelloReply(protocol=highest, version=version[:40], clock=int(min(max(0, wall_now), LAST_SECOND)))
    behind = hello.protocol_max < max(OLDEST_PROTOCOL_VERSION, manifest.protocol_min)
    remedy = "install a newer version of manyhands" if behind else "install the swarm's version"
    return (
        f"software {hello.version!r} speaks protocol {_range(hello.protocol_min, hello.protocol_max)} and the "
        f"swarm ({version!r:.42}) protocol {_range(manifest.protocol_min, manifest.protocol_max)}; {remedy}"
    )


def version_problem(manifest: RunManifest) -> str | None:
    """Return the reason why this software cannot take part in the run, as a sentence; None if it can."""
    wanted = _range(manifest.protocol_min, manifest.protocol_max)
    problem = f"the run requires protocol {wanted}, but this software speaks "
    problem += _range(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION)
    if manifest.protocol_min > PROTOCOL_VERSION:
        return f"{problem}; install a newer version of manyhands"
    if manifest.protocol_max < OLDEST_PROTOCOL_VERSION:
        return f"{problem}; install an older version of manyhands"
    return None


def _date(seconds: float) -> str:
    """Return a time in unix seconds in a form for people."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(max(0.0, seconds), LAST_SECOND)))


def _range(lowest: int, highest: int) -> str:
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"
