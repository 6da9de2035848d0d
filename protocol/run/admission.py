"""Who may take part in a run, as anybody can check: what a peer shows to be let in, and what a record can carry.

An admission proof is the organiser's token and, where that is a bearer token, the signature of the token's key over the run
and one peer ID.  Whoever sees a proof can check it, and nobody but that peer can use it.  In runs that are open or have a
list the proof is empty.  Everything here is pure: given the same arguments, every peer comes to the same result.  Only
`has_expired` depends on a clock, whose reading the caller gives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from protocol.run.manifest import Admission, RunManifest
from protocol.run.tokens import Token, peek_token, read_token
from protocol.wire import canonical
from protocol.wire.body import MAX_ADMISSION_BYTES, MAX_TOKEN_BYTES, Body, SignatureField, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId, peer_id_of, verify
from protocol.wire.presence import Role

_DOMAIN = b"manyhands admission 1\n"


class AdmissionProof(Body):
    """token: the organiser's.  signature: of the token's key, over run and peer; None for a token that names the peer."""

    token: Annotated[bytes, Field(min_length=1, max_length=MAX_TOKEN_BYTES)]
    signature: SignatureField | None


@dataclass(frozen=True)
class AdmittedBy:
    """What admits a peer.  token: its name, None where the manifest alone decides; then the rest has no meaning.

    expires: unix seconds.  until_round: the last round whose record may be the first with this peer; None for any.
    uses: how many peers the token may admit.
    """

    token: Hash | None = None
    role: Role = Role.TRAINER
    expires: int = 0
    until_round: int | None = None
    uses: int = 1

    def require(self, role: Role, round: int | None) -> None:
        """Raises `Malformed` when the token is not for this role or too old for this round.

        A trainer's token is good for every role, and everybody's for a seed.
        """
        if self.token is None:
            return
        if self.role is not Role.TRAINER and role not in (self.role, Role.SEED):
            raise Malformed(f"the token is for the role {self.role.value}")
        if round is not None and self.until_round is not None and round > self.until_round:
            raise Malformed(f"the token admits until round {self.until_round}, and this is round {round}")


BY_MANIFEST = AdmittedBy()
"""The organiser, the listed, and everybody in an open run."""


def needs_proof(manifest: RunManifest, peer: PeerId) -> bool:
    """Whether `peer` has to show something; who need not must show nothing."""
    return manifest.admission is Admission.INVITE and peer != manifest.organiser


def make_proof(token: bytes, run: Hash, peer: PeerId, key: Identity | None = None) -> bytes:
    """The admission proof of `peer`.  key: of a bearer token.  That the token is good is not checked."""
    return AdmissionProof(token=token, signature=key.sign(_signed_bytes(run, peer)) if key is not None else None).encode()


def verify_admission(
    manifest: RunManifest, run: Hash, peer: PeerId, proof: bytes, round: int | None = None, *, role: Role = Role.TRAINER
) -> AdmittedBy:
    """What admits `peer` to run `run` of this manifest, in `role`; raises `Malformed` with the reason.

    round: of the record that names the peer, or would; None when that is not known.  Neither the clock nor how often a
    token has been used is looked at (`has_expired`, `TokenUses`).
    """
    if manifest.admission is Admission.ALLOWLIST and peer not in manifest.allowlist and peer != manifest.organiser:
        raise Malformed("the run's list does not name the peer")
    if not needs_proof(manifest, peer):
        if proof:
            raise Malformed("an admission proof where none is needed")
        return BY_MANIFEST
    if not proof:
        raise Malformed("no admission proof")
    shown = decode_body(AdmissionProof, proof, max_bytes=MAX_ADMISSION_BYTES)
    token = read_token(shown.token, run, PeerId(manifest.organiser))
    if token.key is None:
        if token.peer != peer:
            raise Malformed(f"the token is for {token.peer}")
        if shown.signature is not None:
            raise Malformed("a token for one peer with the signature of a key")
    elif shown.signature is None or not verify(peer_id_of(token.key), shown.signature, _signed_bytes(run, peer)):
        raise Malformed("a bearer token without its key's signature for this peer")
    admitted = AdmittedBy(token.name, token.role, token.expires, token.until_round, token.uses)
    admitted.require(role, round)
    return admitted


def has_expired(admitted: AdmittedBy, wall_now: float) -> bool:
    """Whether the token had expired at `wall_now` (unix seconds, by the caller's clock)."""
    return admitted.token is not None and admitted.expires <= wall_now


class TokenUses:
    """Which peers the tokens of a run have admitted, as a chain of records tells: a value that records are folded into.

    A peer counts for the token of its first admission, and for no other later.  Proofs are not verified here.
    """

    def __init__(self) -> None:
        self._token_of: Mapping[PeerId, Hash] = {}
        self._count: Mapping[Hash, int] = {}

    def count(self, token: Hash) -> int:
        """How many peers this token has admitted."""
        return self._count.get(token, 0)

    def may_admit(self, peer: PeerId, proof: bytes) -> bool:
        """Whether `peer` has been admitted before, or the token of its proof still has a use.  False for odd proofs."""
        try:
            self.after([(peer, proof)])
        except Malformed:
            return False
        return True

    def after(self, admissions: Iterable[tuple[PeerId, bytes]]) -> TokenUses:
        """The uses after a record with these members and their verified proofs; `self` where nobody is new.

        Raises `Malformed` when a token admits more peers than it may, or a proof is none.
        """
        new: dict[PeerId, Hash] = {}
        count: Counter[Hash] = Counter()
        for peer, proof in admissions:
            if not proof or peer in self._token_of or peer in new:
                continue
            token = _token_in(proof)
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


def _token_in(proof: bytes) -> Token:
    return peek_token(decode_body(AdmissionProof, proof, max_bytes=MAX_ADMISSION_BYTES).token)


def _signed_bytes(run: Hash, peer: PeerId) -> bytes:
    return _DOMAIN + canonical.encode([run, peer])
