"""Amendments: signed changes of the organiser to a run that has begun, carried in the chain.

A plan carries at most one amendment, and so does the record made from it: of the task sets (`protocol.wire.tasks`), or an
extension of the run (`protocol.wire.messages`).
"""

from __future__ import annotations

from protocol.wire import canonical
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Extension, Record, unpack
from protocol.wire.tasks import MAX_AMENDMENT_BYTES, Amendment


def open_amendment(raw: bytes, run: Hash, organiser: PeerId) -> Amendment | Extension:
    """Return the amendment that the organiser of this run signed; raises `Malformed` for anything else."""
    sender, body, _ = unpack(raw, run, max_bytes=MAX_AMENDMENT_BYTES)
    if not isinstance(body, Amendment | Extension) or sender != organiser:
        raise Malformed("no amendment of the organiser")
    return body


def tasks_of(record: Record) -> Amendment | None:
    """Return the amendment of the task sets in a verified record; None if it carries none."""
    body = _read(record.amendment)
    return body if isinstance(body, Amendment) else None


def extension_of(record: Record) -> Extension | None:
    """Return the extension of the run in a verified record; None if it carries none."""
    body = _read(record.amendment)
    return body if isinstance(body, Extension) else None


def _read(raw: bytes | None) -> Amendment | Extension | None:
    if raw is None:
        return None
    fields = canonical.decode(raw, max_bytes=MAX_AMENDMENT_BYTES)
    assert isinstance(fields, dict)
    if fields["kind"] == Extension.KIND:
        return decode_body(Extension, fields["body"], max_bytes=MAX_AMENDMENT_BYTES)
    return decode_body(Amendment, fields["body"], max_bytes=MAX_AMENDMENT_BYTES)
