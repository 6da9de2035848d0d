"""An invitation: one string to paste, enough to find a run and to be let in.

`mh1` and base58 of a checksum and canonical msgpack `{run, organiser, addresses, anchor, token, secret}`.  It does not
contain the manifest, which any peer can give and which is checked against the run ID.  The checksum detects mistyping;
nothing here proves that the run is a good one, so an invitation is only as trustworthy as its giver.

With a bearer token it contains the token's private key, and is a secret: its holder makes the proofs that let peers in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import Field

from protocol.run.admission import make_proof
from protocol.run.invitation_text import body_in, invitation_text
from protocol.wire.envelope import MAX_TOKEN_BYTES, Body, HashField, PeerField, decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import KEY_BYTES, Identity, PeerId, public_key_of

# ------------------------------------------------------------------------------------------------------------------------
# A record of the run that an invitation names: so a newcomer cannot be shown another history, and a person can choose one.


MAX_ROUNDS = 1 << 53


class AnchorChain(Protocol):
    """Our chain, or a branch of it."""

    @property
    def length(self) -> int:
        """Rounds up to the end of the chain."""
        ...

    def tip_at(self, rounds: int) -> Hash:
        """Return the tip after `rounds` rounds, at most `length`."""
        ...


class Anchor(Body):
    """The tip that the chain has after so many rounds: a final record of the inviting peer, or a record that it chose."""

    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
    tip: HashField

    def holds(self, chain: AnchorChain) -> bool:
        """Return True if the chain goes through this record."""
        return chain.length >= self.rounds and chain.tip_at(self.rounds) == self.tip


# ------------------------------------------------------------------------------------------------------------------------


MAX_ADDRESSES = 16
MAX_INVITATION_BYTES = 5000
MAX_ADDRESS_CHARACTERS = 200
ADDRESS_FORM = r"^(/[!-.0-~]+)+$"
Address = Annotated[str, Field(min_length=2, max_length=MAX_ADDRESS_CHARACTERS, pattern=ADDRESS_FORM)]
"""A multiaddr: printable ASCII, no spaces.  The network decides whether it can be dialled."""
Secret = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Invitation(Body):
    """An invitation.

    run: run ID.  addresses: addresses to ask first.  anchor: a record of the chain, if the inviter knows one.
    token: a signed `protocol.run.admission.Token`, for runs that want one.  secret: the seed of a bearer token's key.
    """

    run: HashField
    organiser: PeerField
    addresses: Annotated[list[Address], Field(min_length=1, max_length=MAX_ADDRESSES)]
    anchor: Anchor | None = None
    token: Annotated[bytes, Field(max_length=MAX_TOKEN_BYTES)] | None
    secret: Annotated[Secret | None, Field(repr=False)]

    def proof_for(self, peer: PeerId) -> bytes:
        """Return the admission proof with which `peer` comes in; empty if the invitation has no token."""
        if not self.token:
            return b""
        key = Identity.from_seed(self.secret) if self.secret is not None else None
        return make_proof(self.token, Hash(self.run), peer, key)


def can_be_named(address: str) -> bool:
    """Return True if an address has the form that invitations require."""
    return len(address) <= MAX_ADDRESS_CHARACTERS and re.fullmatch(ADDRESS_FORM, address) is not None


def make_invitation(
    run: Hash,
    organiser: PeerId,
    addresses: Sequence[str],
    token: bytes | None = None,
    secret: bytes | None = None,
    anchor: Anchor | None = None,
) -> str:
    """Return the invitation as text; raise ValueError for addresses or a token that cannot be in one."""
    invitation = Invitation(
        run=run, organiser=organiser, addresses=list(addresses), anchor=anchor, token=token, secret=secret
    )
    return invitation_text(invitation.encode())


def read_invitation(text: str) -> Invitation:
    """Return the invitation in `text`, as `invitation_text.body_in` finds it; raise `Malformed` if there is none."""
    invitation = decode_body(Invitation, body_in(text), max_bytes=MAX_INVITATION_BYTES)
    public_key_of(PeerId(invitation.organiser))
    return invitation
