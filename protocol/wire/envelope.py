"""The signed envelope, the only form in which a peer's statement is received, and the body in it.

`{v, run, kind, from, body, sig}` in canonical msgpack.  `sig` signs all other fields under a domain string, so a statement
made for one run, or of one kind, can never pass for another.  `open_envelope` checks size, form, run and signature before
the body is decoded; `protocol.wire.messages` decodes the body.  An envelope can be forwarded whole, so it is evidence to a
third party.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import MaxLen
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from protocol.formats.section import Ordered
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, Hash
from protocol.wire.identity import SIGNATURE_BYTES, Identity, PeerId, public_key_of, verify

VERSION = 1
FIELDS = {"v", "run", "kind", "from", "body", "sig"}
MAX_ENVELOPE_BYTES = 7 << 18
"""Size of the largest record proposal: with all members and their batches of rollouts, all chunks and all view changes."""
MAX_GOSSIP_BYTES = 60_000
_DOMAIN = b"manyhands envelope 1\n"


@dataclass(frozen=True)
class Envelope:
    """A statement and its proof of origin.  `body` is canonical msgpack; `raw` is the whole encoded envelope."""

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
    """Build an envelope from its parts, unchecked; `is_authentic` checks the signature."""
    raw = canonical.encode({"v": VERSION, "run": run, "kind": kind, "from": sender, "body": body, "sig": signature})
    return Envelope(run, kind, sender, body, signature, raw)


def is_authentic(envelope: Envelope) -> bool:
    """Return True if the signature is the sender's, over this body, kind and run."""
    signed = _signed_bytes(envelope.run, envelope.kind, envelope.sender, envelope.body)
    return verify(envelope.sender, envelope.signature, signed)


def open_envelope(data: bytes | memoryview, run: Hash, *, max_bytes: int = MAX_ENVELOPE_BYTES) -> Envelope:
    """Return the envelope in `data` after checking its signature; otherwise raise `Malformed` with one sentence."""
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


# ------------------------------------------------------------------------------------------------------------------------
# The largest size of a message of a class, according to its fields' limits.
#
# A message that is longer, or has more values, is refused before it is decoded.  The limit follows from the schema, so no
# message needs a limit of its own.


HEAD_BYTES = 5
"""Most bytes of the head of a string, a list or a map."""
NUMBER_BYTES = 9
UTF8_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """Size of the largest encoding: its bytes, and the values inside it, with keys.

    Infinite without limits in the schema.
    """

    bytes: float
    values: float


_UNLIMITED = Shape(math.inf, math.inf)


@cache
def largest(cls: type[BaseModel]) -> Shape:
    """Return the size of the largest message of a class."""
    size, values = float(HEAD_BYTES), 0.0
    for name, field in cls.model_fields.items():
        shape = _largest(field.annotation, field.metadata)
        size += HEAD_BYTES + len(name) + shape.bytes
        values += 2 + shape.values
    return Shape(size, values)


def _largest(annotation: Any, metadata: Iterable[Any]) -> Shape:
    """Return the size of the largest value of this type.  metadata: limits of the type."""
    limits = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _largest(arguments[0], [*arguments[1:], *limits])
    if origin in (Union, UnionType):
        return _either([_largest(each, limits) for each in arguments])
    if origin is Literal:
        return _either([Shape(HEAD_BYTES + UTF8_BYTES * len(str(each)), 0) for each in arguments])
    length = min((limit.max_length for limit in limits if isinstance(limit, MaxLen)), default=math.inf)
    if origin is list:
        item = _largest(arguments[0], [])
        return Shape(HEAD_BYTES + length * item.bytes, length * (1 + item.values))
    if not isinstance(annotation, type):
        return _UNLIMITED
    return _simple(annotation, length, limits)


def _simple(cls: type, length: float, limits: list[Any]) -> Shape:
    if issubclass(cls, BaseModel):
        return largest(cls)
    if issubclass(cls, Enum):
        return Shape(HEAD_BYTES + max(UTF8_BYTES * len(str(each.value)) for each in cls), 0)
    if issubclass(cls, NoneType | bool | int | float):
        return Shape(NUMBER_BYTES, 0)
    if issubclass(cls, bytes):
        return Shape(HEAD_BYTES + length, 0)
    if issubclass(cls, str):
        pattern = next((limit.pattern for limit in limits if getattr(limit, "pattern", None)), "")
        is_ascii = pattern and pattern.isascii() and "." not in pattern and "[^" not in pattern
        return Shape(HEAD_BYTES + length * (1 if is_ascii else UTF8_BYTES), 0)
    return _UNLIMITED


def _either(shapes: list[Shape]) -> Shape:
    return Shape(max(shape.bytes for shape in shapes), max(shape.values for shape in shapes))


# ------------------------------------------------------------------------------------------------------------------------
# Less work for Python's garbage collector, which stops all threads while it runs.
#
# The collector scans the young objects after each 700 new objects.  A large message makes tens of thousands of objects,
# which all stay: scanning them takes longer than making them.  Sometimes the collector scans all objects, most of which
# exist from the start.


_at_rest_lock = threading.Lock()
_at_rest: list[bool] = []
"""One entry for each context that is open now: True if collection was enabled before the first of them."""


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Disable garbage collection in all threads inside the context, which should be short.

    Contexts of several threads may overlap: collection is enabled again when the last context has ended.
    """
    with _at_rest_lock:
        _at_rest.append(_at_rest[0] if _at_rest else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _at_rest_lock:
            if _at_rest.pop() and not _at_rest:
                gc.enable()


def freeze_gc() -> None:
    """Exempt all present objects, mainly modules, from collection until the next call.  Call this once all is loaded.

    Objects that were exempt and are now garbage are freed: otherwise a process in which a peer repeatedly leaves and rejoins
    a run would keep every earlier network and node for ever, because these refer to each other.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


# ------------------------------------------------------------------------------------------------------------------------
# Bodies, and the types of their fields with limits: a value beyond a limit cannot be sent.


LARGE_BYTES = 16 << 10
"""Statements over this size are decoded in a worker thread."""
MAX_TOKEN_BYTES = 400
"""Most bytes of an invitation's token."""
MAX_ADMISSION_BYTES = 512
"""Most bytes of the proof that a peer was admitted."""
MAX_MEMBERS = 256
MAX_ELECTORS = 64
"""Most voters of a ballot; if the members vote, a plan may have no more members than this."""
MAX_VIEW_CHANGE_BYTES = 8192
"""Most bytes of a signed view change in its envelope."""
MAX_FRAGMENTS = 64
"""Most fragments of a state; a round exchanges one of them."""
MAX_NUMBER = 1e9
MAX_LOSS = 1e6
"""Largest held-out loss; a larger one would only mean that training has failed."""

HashField = Annotated[bytes, Field(min_length=HASH_BYTES, max_length=HASH_BYTES)]
PeerField = Annotated[str, Field(min_length=46, max_length=60, pattern=r"^[1-9A-HJ-NP-Za-km-z]+$")]
SignatureField = Annotated[bytes, Field(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
LaterHash = Annotated[HashField | None, Field(exclude_if=lambda value: value is None)]
"""A hash field added after the first runs.  It is not written without a value, so messages without it keep their encoding
and their hash.  A written None is refused, because each message has only one valid encoding."""
Absent = Annotated[list[PeerField], Field(max_length=MAX_ELECTORS)]
"""Electors without which a ballot is held: sorted peer IDs."""
Count = Annotated[int, Field(ge=0, le=2**53)]
FragmentNumber = Annotated[int, Field(ge=0, lt=MAX_FRAGMENTS)]
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class Body(Ordered):
    """A statement.  `KIND` is the envelope's kind.  `BY_GOSSIP` is True if it is sent to all peers by gossip."""

    KIND: ClassVar[str] = ""
    BY_GOSSIP: ClassVar[bool] = False

    def encode(self) -> bytes:
        """Return the canonical msgpack of the fields."""
        return canonical.encode_sorted(self.model_dump(mode="python"))


B = TypeVar("B", bound=Body)


def decode_body(cls: type[B], data: bytes, *, max_bytes: int = MAX_ENVELOPE_BYTES) -> B:
    """Return the body of class `cls` in canonical bytes; raise `Malformed` if there is none."""
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
        raise Malformed(f"{cls.__name__} has a bad field {where!r:.60}: {first['msg']:.120}") from error
    if body.encode() != raw:  # for example, an integer in place of a float, or keys in another order
        raise Malformed(f"{cls.__name__} is not in canonical form")
    object.__setattr__(body, "__pydantic_fields_set__", _field_names(cls))
    return body


@cache
def _field_names(cls: type[Body]) -> set[str]:
    """Return the names of a body's fields, one set for all bodies of the class.

    Pydantic gives each body a set of its own, which is a third of a heartbeat's memory.
    """
    return set(cls.model_fields)
