"""Tokens: the organiser's signed permission to come into a run that admits by invitation.

A token is bound to one peer, or it is a bearer token: then it names a public key made for it, whose private half is in the
invitation text alone.  A token by itself admits nobody; what a peer shows is an admission proof, made from it in
`protocol.run.admission`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from protocol.wire import canonical
from protocol.wire.body import MAX_TOKEN_BYTES, Body, Count, HashField, PeerField, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import open_envelope
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import KEY_BYTES, Identity, PeerId, public_key_of
from protocol.wire.messages import pack
from protocol.wire.presence import Role

DEFAULT_USES = 16
MAX_USES = 4096


class Token(Body):
    """Who may take part, as what, and until when: exactly one of `peer` and `key` is there.

    expires: unix seconds, checked by each peer with its own clock when somebody comes in.  until_round: no record of a later
    round may be the first that names the peer; a rule that everybody checks alike.  key: an Ed25519 public key (32 bytes),
    of a bearer token.  uses: how many different peers it may admit in this run; 1 where it is bound to one.
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
        """Names the token when its uses are counted.  Independent of the signature, of which there could be several."""
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
    """A signed token for one peer.  expires: unix seconds.  Raises `Malformed` for a `peer` that is no peer ID."""
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
    """A signed token for up to `uses` peers.  `key` was made for this token; its seed goes into the invitation."""
    token = Token(run=run, role=role, expires=expires, until_round=until_round, peer=None, key=key.public_key, uses=uses)
    return pack(organiser, run, token).raw


def read_token(token: bytes, run: Hash, organiser: PeerId) -> Token:
    """The token in an envelope that the organiser signed for this run; raises `Malformed`."""
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
    """What a token says, for those who have verified it before: the signature is not checked.  Raises `Malformed`."""
    fields = canonical.decode(token, max_bytes=MAX_TOKEN_BYTES)
    if not isinstance(fields, dict) or not isinstance(fields.get("body"), bytes):
        raise Malformed("not a token")
    return decode_body(Token, fields["body"], max_bytes=MAX_TOKEN_BYTES)
