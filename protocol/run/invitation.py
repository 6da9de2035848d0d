"""An invitation: one string to paste, enough to find a run and to be let in.

`mh1` and base58 of a checksum and canonical msgpack `{run, organiser, addresses, anchor, token, secret}`.  It does not
contain the manifest, which any peer can give and which is checked against the run ID.  The checksum detects mistyping;
nothing here proves that the run is a good one, so an invitation is only as trustworthy as its giver.

With a bearer token it contains the token's private key, and is a secret: its holder makes the proofs that let peers in.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Protocol

import base58
from pydantic import Field

from protocol.run.admission import make_proof
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_TOKEN_BYTES, Body, HashField, PeerField, decode_body
from protocol.wire.hashes import Hash, hash_bytes
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


PREFIX = "mh1"
AROUND = "\"'`<>()[]*_“”‘’„«»,;.:!?…"
"""Characters that mail and chats put around an invitation."""
MAX_ADDRESSES = 16
BASE, ZERO = 58, "1"
"""Base of the digits of base58, and the one that stands for a zero byte at the beginning."""
MAX_INVITATION_BYTES = 5000
MAX_INVITATION_CHARACTERS = 7500
CHECKSUM_BYTES = 4
MAX_BEGINNINGS = 4
"""Places in one text at which an invitation is looked for."""
MAX_RUNS = 256
"""Pieces into which line breaks may have cut an invitation, with the words of a sentence behind it."""
LEAST_IN_A_SENTENCE = 32
"""Characters of the first piece of an invitation that stands in a sentence."""
RUN = re.compile("[1-9A-HJ-NP-Za-km-z]+")
BEGINNING = re.compile(f"(?<![0-9A-Za-z/]){PREFIX}[1-9A-HJ-NP-Za-km-z]*")

MAX_ADDRESS_CHARACTERS = 200
ADDRESS_FORM = r"^(/[!-.0-~]+)+$"
Address = Annotated[str, Field(min_length=2, max_length=MAX_ADDRESS_CHARACTERS, pattern=ADDRESS_FORM)]
"""A multiaddr: printable ASCII, no spaces.  The network decides whether it can be dialled."""
Secret = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Invitation(Body):
    """An invitation.  run: run ID.  addresses: where to ask first.  anchor: a record of the chain, if the inviter knows one.

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
    body = invitation.encode()
    return PREFIX + base58.b58encode(_checksum(body) + body).decode()


def looks_like_invitation(text: str) -> bool:
    """Return True if the text is meant as an invitation or its beginning, maybe in a sentence, and not as a file name."""
    compact = _compact(text)
    if compact.startswith(PREFIX):
        return len(compact) > 64 or (len(compact) > 16 and compact.isalnum())
    return any(len(found[0]) >= LEAST_IN_A_SENTENCE for found in BEGINNING.finditer(_seen(text)))


def read_invitation(text: str) -> Invitation:
    """Return the invitation in `text`, undoing the changes of mail and chats; raise `Malformed` if there is none.

    Line breaks inside, quotes, angle brackets, invisible characters and a sentence around the invitation are removed: the
    checksum says where it ends.
    """
    if len(text) > 2 * MAX_INVITATION_CHARACTERS:
        raise Malformed("this text is too long for an invitation; paste the invitation alone")
    text = _seen(text)
    beginnings = islice(BEGINNING.finditer(text), MAX_BEGINNINGS)
    body = next((body for found in beginnings if (body := _body_at(text, found.start())) is not None), None)
    if body is None:
        raise Malformed(_problem(text))
    invitation = decode_body(Invitation, body, max_bytes=MAX_INVITATION_BYTES)
    public_key_of(PeerId(invitation.organiser))
    return invitation


def _body_at(text: str, start: int) -> bytes | None:
    """Return the body of the invitation that begins at `start`; None if no invitation with a right checksum does.

    Runs of permitted characters are joined one by one, for a line may be broken anywhere, until the checksum fits.
    """
    joined = ""
    value: int = 0
    for number, run in enumerate(RUN.finditer(text, start)):
        piece = run[0] if number else run[0][len(PREFIX) :]
        joined += piece
        if number >= MAX_RUNS or len(PREFIX + joined) > MAX_INVITATION_CHARACTERS:
            return None
        # each character is decoded once: decoding takes time that grows with the square of the length
        value = value * BASE ** len(piece) + base58.b58decode_int(piece)
        zeros = len(joined) - len(joined.lstrip(ZERO))
        raw = bytes(zeros) + value.to_bytes((value.bit_length() + 7) // 8, "big")
        if len(raw) > CHECKSUM_BYTES and raw[:CHECKSUM_BYTES] == _checksum(raw[CHECKSUM_BYTES:]):
            return raw[CHECKSUM_BYTES:]
    return None


def _problem(text: str) -> str:
    """Return the reason why a text has no invitation, as a sentence with the remedy."""
    compact = _compact(text)
    found = BEGINNING.search(text)
    if not compact.startswith(PREFIX) and (found is None or len(found[0]) < LEAST_IN_A_SENTENCE):
        return f"an invitation begins with {PREFIX}; copy it whole from where you got it"
    if len(compact) > MAX_INVITATION_CHARACTERS:
        return "this text is too long for an invitation; paste the invitation alone"
    if compact.startswith(PREFIX) and RUN.fullmatch(compact) is None:
        return "the invitation has a character that cannot be in one; copy it again"
    return (
        "the invitation is incomplete or mistyped; copy it again, from mh1 to the very end, and put it between quotes if "
        "it has line breaks"
    )


def _seen(text: str) -> str:
    """Return the text without invisible characters: zero-width ones, soft hyphens, marks of direction."""
    return "".join(each for each in text if unicodedata.category(each) != "Cf")


def _compact(text: str) -> str:
    return "".join(_seen(text).split()).strip(AROUND)


def _checksum(body: bytes) -> bytes:
    return hash_bytes("invitation", body)[:CHECKSUM_BYTES]
