"""Amendments: what the organiser may change about a run that has begun, signed and carried in the chain.

A plan, and the record that comes of it, carries one amendment at most: of the sets of tasks (`protocol.wire.tasks`), or an
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
    """The amendment that the organiser of this run signed; raises `Malformed` for anything else."""
    sender, body, _ = unpack(raw, run, max_bytes=MAX_AMENDMENT_BYTES)
    if not isinstance(body, Amendment | Extension) or sender != organiser:
        raise Malformed("no amendment of the organiser")
    return body


def tasks_of(record: Record) -> Amendment | None:
    """The amendment of the sets of tasks in a record that has been verified, if it carries one."""
    body = _read(record.amendment)
    return body if isinstance(body, Amendment) else None


def extension_of(record: Record) -> Extension | None:
    """The extension of the run in a record that has been verified, if it carries one."""
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
