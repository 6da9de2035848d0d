"""An invitation: one string to paste, enough to find a run and to be let in.

`mh1` and base58 of a checksum and canonical msgpack `{run, organiser, addresses, anchor, token, secret}`.  It does not
contain the manifest: that is asked of any peer and checked against the run ID.  The checksum is for mistyping; nothing here
proves that the run is a good one, so an invitation is as trustworthy as whoever gave it.

With a bearer token it contains the token's private key, and is a secret: its holder makes the proofs that let peers in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import base58
from pydantic import Field

from protocol.run.admission import make_proof
from protocol.run.anchor import Anchor
from protocol.wire.body import MAX_TOKEN_BYTES, Body, HashField, PeerField, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import KEY_BYTES, Identity, PeerId, public_key_of

PREFIX = "mh1"
AROUND = "\"'`<>“”‘’„«»,;."
"""What mail and chats put around an invitation."""
MAX_ADDRESSES = 16
MAX_INVITATION_BYTES = 5000
MAX_INVITATION_CHARACTERS = 7500
CHECKSUM_BYTES = 4

MAX_ADDRESS_CHARACTERS = 200
ADDRESS_FORM = r"^(/[!-.0-~]+)+$"
Address = Annotated[str, Field(min_length=2, max_length=MAX_ADDRESS_CHARACTERS, pattern=ADDRESS_FORM)]
"""A multiaddr: printable ASCII, no spaces.  Whether it can be dialled is the network's question."""
Secret = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Invitation(Body):
    """run: run ID.  addresses: where to ask first.  anchor: a record of the chain, if whoever invites knows one.

    token: a signed `tokens.Token`, for runs that want one.  secret: the seed of a bearer token's key.
    """

    run: HashField
    organiser: PeerField
    addresses: Annotated[list[Address], Field(min_length=1, max_length=MAX_ADDRESSES)]
    anchor: Anchor | None = None
    token: Annotated[bytes, Field(max_length=MAX_TOKEN_BYTES)] | None
    secret: Annotated[Secret | None, Field(repr=False)]

    def proof_for(self, peer: PeerId) -> bytes:
        """The admission proof with which `peer` comes in; empty where the invitation has no token."""
        if not self.token:
            return b""
        key = Identity.from_seed(self.secret) if self.secret is not None else None
        return make_proof(self.token, Hash(self.run), peer, key)


def can_be_named(address: str) -> bool:
    """Whether an address has the form of those in invitations."""
    return len(address) <= MAX_ADDRESS_CHARACTERS and re.fullmatch(ADDRESS_FORM, address) is not None


def make_invitation(
    run: Hash,
    organiser: PeerId,
    addresses: Sequence[str],
    token: bytes | None = None,
    secret: bytes | None = None,
    anchor: Anchor | None = None,
) -> str:
    """The invitation as text; raises ValueError for addresses or a token that cannot be in one."""
    invitation = Invitation(
        run=run, organiser=organiser, addresses=list(addresses), anchor=anchor, token=token, secret=secret
    )
    body = invitation.encode()
    return PREFIX + base58.b58encode(_checksum(body) + body).decode()


def looks_like_invitation(text: str) -> bool:
    """Whether somebody meant an invitation, or the beginning of one, and not the name of a file."""
    compact = _compact(text)
    return compact.startswith(PREFIX) and (len(compact) > 64 or (len(compact) > 16 and compact.isalnum()))


def read_invitation(text: str) -> Invitation:
    """The invitation in `text`, without line breaks of a wrapped copy and quotes around it; raises `Malformed`."""
    if len(text) > 2 * MAX_INVITATION_CHARACTERS:
        raise Malformed("this text is too long for an invitation; paste the invitation alone")
    compact = _compact(text)
    if not compact.startswith(PREFIX):
        raise Malformed(f"an invitation begins with {PREFIX}; copy it whole from where you got it")
    if len(compact) > MAX_INVITATION_CHARACTERS:
        raise Malformed("this text is too long for an invitation; paste the invitation alone")
    try:
        raw = base58.b58decode(compact[len(PREFIX) :].encode("ascii"))
    except ValueError as error:  # also UnicodeEncodeError
        raise Malformed("the invitation has a character that cannot be in one; copy it again") from error
    body = raw[CHECKSUM_BYTES:]
    if len(raw) <= CHECKSUM_BYTES or raw[:CHECKSUM_BYTES] != _checksum(body):
        raise Malformed("the invitation is incomplete or mistyped; copy it again, from mh1 to the very end")
    invitation = decode_body(Invitation, body, max_bytes=MAX_INVITATION_BYTES)
    public_key_of(PeerId(invitation.organiser))
    return invitation


def _compact(text: str) -> str:
    return "".join(text.split()).strip(AROUND)


def _checksum(body: bytes) -> bytes:
    return hash_bytes("invitation", body)[:CHECKSUM_BYTES]
