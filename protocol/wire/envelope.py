"""The signed envelope: the only form in which a statement of a peer comes in.

`{v, run, kind, from, body, sig}` in canonical msgpack.  `sig` is over everything else under a domain string, so a
statement made for one run, or of one kind, can never be shown as another.  `open_envelope` checks size, form, run and
signature before anything looks at the body; the body is decoded by `protocol.wire.messages`.  An envelope can be forwarded
whole: it is evidence to a third party.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, Hash
from protocol.wire.identity import SIGNATURE_BYTES, Identity, PeerId, public_key_of, verify

VERSION = 1
FIELDS = {"v", "run", "kind", "from", "body", "sig"}
MAX_ENVELOPE_BYTES = 7 << 18
"""Size of the largest motion: with all members and their batches of rollouts, all chunks and all rolls."""
MAX_GOSSIP_BYTES = 60_000
_DOMAIN = b"manyhands envelope 1\n"


@dataclass(frozen=True)
class Envelope:
    """A statement and its proof of origin.  `body` is canonical msgpack; `raw` is the whole envelope as it travels."""

    run: Hash
    kind: str
    sender: PeerId
    body: bytes
    signature: bytes
    raw: bytes


def seal(identity: Identity, run: Hash, kind: str, body: bytes) -> Envelope:
    """Sign `body` (canonical msgpack) as a statement of `kind` within `run`."""
    sender = identity.peer_id
    return rebuild(run, kind, sender, body, identity.sign(_signed_bytes(run, kind, sender, body)))


def rebuild(run: Hash, kind: str, sender: PeerId, body: bytes, signature: bytes) -> Envelope:
    """Build an envelope from its parts, unchecked; `is_authentic` tells whether the signature holds."""
    raw = canonical.encode({"v": VERSION, "run": run, "kind": kind, "from": sender, "body": body, "sig": signature})
    return Envelope(run, kind, sender, body, signature, raw)


def is_authentic(envelope: Envelope) -> bool:
    """Return True if the signature is the sender's, over this body, kind and run."""
    signed = _signed_bytes(envelope.run, envelope.kind, envelope.sender, envelope.body)
    return verify(envelope.sender, envelope.signature, signed)


def open_envelope(data: bytes | memoryview, run: Hash, *, max_bytes: int = MAX_ENVELOPE_BYTES) -> Envelope:
    """Return the envelope in `data`, its signature checked; raise `Malformed` with one sentence otherwise."""
    fields = canonical.decode(data, max_bytes=max_bytes, max_values=2 * len(FIELDS))
    if not isinstance(fields, dict) or set(fields) != FIELDS:
        raise Malformed("not an envelope")
    if type(fields["v"]) is not int or fields["v"] != VERSION:
        raise Malformed(f"envelope of protocol version {fields['v']!r:.20}; this peer speaks {VERSION}")
    if not isinstance(fields["run"], bytes) or len(fields["run"]) != HASH_BYTES or fields["run"] != run:
        raise Malformed("envelope of another run")
    kind, sender, body, signature = fields["kind"], fields["from"], fields["body"], fields["sig"]
    if not (isinstance(kind, str) and isinstance(sender, str) and isinstance(body, bytes)):
        raise Malformed("envelope with fields of the wrong type")
    if not isinstance(signature, bytes) or len(signature) != SIGNATURE_BYTES:
        raise Malformed("envelope without a signature")
    public_key_of(PeerId(sender))
    envelope = Envelope(run, kind, PeerId(sender), body, signature, bytes(data))
    if not is_authentic(envelope):
        raise Malformed("envelope with a false signature")
    return envelope


def _signed_bytes(run: Hash, kind: str, sender: PeerId, body: bytes) -> bytes:
    return _DOMAIN + canonical.encode([VERSION, run, kind, sender, body])
