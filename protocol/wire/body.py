"""What every message is made of: the class of bodies, the types of fields, and their limits.

Limits are here, in one place: what is not allowed here cannot be said.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, ValidationError

from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.collector import collector_at_rest
from protocol.wire.envelope import MAX_ENVELOPE_BYTES
from protocol.wire.hashes import HASH_BYTES
from protocol.wire.identity import SIGNATURE_BYTES
from protocol.wire.ordered import Ordered
from protocol.wire.shape import largest

LARGE_BYTES = 16 << 10
"""Statements over this size are decoded in a worker thread."""
MAX_TOKEN_BYTES = 400
"""Of an invitation's token."""
MAX_ADMISSION_BYTES = 512
"""Of the proof that a peer was admitted."""
MAX_MEMBERS = 256
MAX_ELECTORS = 64
"""Voters of a ballot; where members vote, no more of them may be in a plan."""
MAX_ROLL_BYTES = 8192
"""Of a signed ROLL as it travels."""
MAX_CHUNKS = 4096
"""Chunks of a contribution; with 1 MiB chunks 4 G parameters a fragment.  A motion names and signs each."""
MAX_FRAGMENTS = 64
"""Fragments of a state, of which a round exchanges one."""
MAX_NUMBER = 1e9
MAX_LOSS = 1e6
"""A held-out loss beyond this says nothing but that training has failed."""

HashField = Annotated[bytes, Field(min_length=HASH_BYTES, max_length=HASH_BYTES)]
PeerField = Annotated[str, Field(min_length=46, max_length=60, pattern=r"^[1-9A-HJ-NP-Za-km-z]+$")]
SignatureField = Annotated[bytes, Field(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
LaterHash = Annotated[HashField | None, Field(exclude_if=lambda value: value is None)]
"""A hash that came after the first runs: where there is none it is not written, so what does without it keeps its encoding
and its hash.  One that is written as None is refused, as its encoding is not the only one."""
Absent = Annotated[list[PeerField], Field(max_length=MAX_ELECTORS)]
"""Electors that a ballot goes on without: sorted peer IDs."""
Count = Annotated[int, Field(ge=0, le=2**53)]
FragmentNumber = Annotated[int, Field(ge=0, lt=MAX_FRAGMENTS)]
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class Body(Ordered):
    """A statement.  `KIND` is the envelope's kind."""

    KIND: ClassVar[str] = ""


B = TypeVar("B", bound=Body)


def decode_body(cls: type[B], data: bytes, *, max_bytes: int = MAX_ENVELOPE_BYTES) -> B:
    """The body of class `cls` in canonical bytes; raises `Malformed`."""
    shape = largest(cls)
    limit, max_values = int(min(max_bytes, shape.bytes)), int(min(canonical.MAX_VALUES, shape.values))
    with collector_at_rest() if len(data) > LARGE_BYTES else nullcontext():
        return _decode_body(cls, *canonical.read(data, max_bytes=limit, max_values=max_values))


def _decode_body(cls: type[B], raw: bytes, fields: Any) -> B:
    try:
        body = cls.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Malformed(f"{cls.__name__} with a bad field {where!r:.60}: {first['msg']:.120}") from error
    if body.encode() != raw:  # an integer for a float, say, or keys in another order
        raise Malformed(f"{cls.__name__} that does not say again what it said")
    return body
