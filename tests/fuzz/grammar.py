"""Well-formed messages of the wrong sense, made by the schema of the messages.

Each class of message is a rule: its fields are made by their types and limits, out of words that were heard in a real swarm
(peers, hashes, signatures, whole records and plans), or a heard message is said again with a field changed.  A kind that is
added to the protocol is made without a change here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from random import Random
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from protocol.wire.envelope import Body
from protocol.wire.hashes import HASH_BYTES
from protocol.wire.identity import SIGNATURE_BYTES, PeerId

KEPT = 400
"""Words of one sort that are remembered."""
TRIES = 20


def every_class(base: type[Body] = Body) -> Iterator[type[Body]]:
    """All classes of messages of the protocol, once each.  The manifest of a corpus is a file, and no message."""
    for cls in base.__subclasses__():
        if cls.__module__.startswith("protocol.") and "corpora" not in cls.__module__ and cls.model_fields:
            yield cls
        yield from every_class(cls)


class Words:
    """What was heard: by class of message, and bytes by their length."""

    def __init__(self, peers: list[PeerId]) -> None:
        self.peers = peers
        self.bodies: dict[type, list[Any]] = {}
        self.bytes: dict[int, list[bytes]] = {HASH_BYTES: [bytes(HASH_BYTES)]}
        self.numbers: list[int] = [0, 1, 2, 3]
        self.raw: list[bytes] = []
        """Whole envelopes."""

    def hear(self, value: Any) -> None:
        """Remember a message and all its parts."""
        if isinstance(value, BaseModel):
            _keep(self.bodies.setdefault(type(value), []), value)
            for name in type(value).model_fields:
                self.hear(getattr(value, name))
        elif isinstance(value, list):
            for each in value[:8]:
                self.hear(each)
        elif isinstance(value, bytes) and len(value) <= 64:
            _keep(self.bytes.setdefault(len(value), []), value)
        elif type(value) is int:
            _keep(self.numbers, value)


def _keep(words: list[Any], word: Any) -> None:
    words.append(word)
    if len(words) > KEPT:
        del words[: KEPT // 2]


class Grammar:
    """Makes messages out of `words`."""

    def __init__(self, words: Words, random: Random) -> None:
        self.words, self._random = words, random

    def body(self, cls: type[Any]) -> Any:
        """A message of this class: valid in form, of whatever sense."""
        random = self._random
        heard = self.words.bodies.get(cls)
        for _ in range(TRIES):
            fields: dict[str, Any] = {}
            if heard and random.random() < 0.7:
                base = random.choice(heard)
                fields = {name: getattr(base, name) for name in cls.model_fields}
                if random.random() < 0.15:
                    return base
                changed = random.sample(sorted(fields), min(len(fields), random.choice([1, 1, 2, 4])))
            else:
                changed = list(cls.model_fields)
            for name in changed:
                field = cls.model_fields[name]
                fields[name] = self._value(field.annotation, field.metadata)
            try:
                return cls(**fields)
            except ValidationError:
                continue  # a rule over several fields, or a pattern that no word fits
        return None

    def _value(self, annotation: Any, metadata: list[Any]) -> Any:
        random = self._random
        limits = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._value(arguments[0], [*arguments[1:], *limits])
        if origin in (Union, UnionType):
            return self._value(random.choice(arguments), limits)
        if origin is Literal:
            return random.choice(arguments)
        if origin is list:
            least, most = _lengths(limits)
            size = min(most, max(least, random.choice([0, 1, 1, 2, 3, 4, 8])))
            return [self._value(arguments[0], []) for _ in range(size)]
        return self._simple(annotation, limits)

    def _simple(self, annotation: Any, limits: list[Any]) -> Any:
        random = self._random
        if annotation is NoneType:
            return None
        if annotation is bool:
            return random.random() < 0.5
        if annotation is int:
            return self._number(limits)
        if annotation is float:
            low, high = _bounds(limits, 1e300)
            return float(min(high, max(low, random.choice([0.0, -0.0, 1.0, 1.5, -1.0, 1e-300, low, high]))))
        if annotation is bytes:
            return self._bytes(limits)
        if annotation is str:
            return self._text(limits)
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return random.choice(list(annotation))
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self.body(annotation)
        return None

    def _number(self, limits: list[Any]) -> int:
        random = self._random
        low, high = _bounds(limits, 2**53)
        near = random.choice(self.words.numbers) + random.choice([-1, 0, 0, 0, 1, 2])
        return int(min(high, max(low, random.choice([near, near, near, low, high, 2**31, 0]))))

    def _bytes(self, limits: list[Any]) -> bytes:
        random = self._random
        least, most = _lengths(limits)
        if least == most and random.random() < 0.95:
            return bytes(random.choice(self.words.bytes.get(least) or [random.randbytes(least)]))
        if most > SIGNATURE_BYTES and self.words.raw and random.random() < 0.6:
            return random.choice(self.words.raw)[: min(most, 1 << 20)]
        known = [word for size, words in self.words.bytes.items() if least <= size <= most for word in words[-3:]]
        if known and random.random() < 0.7:
            return bytes(random.choice(known))
        return random.randbytes(min(most, max(least, random.choice([0, 1, 2, 7, 8, 32, 300]))))

    def _text(self, limits: list[Any]) -> str:
        random = self._random
        _, most = _lengths(limits)
        pattern = any(getattr(limit, "pattern", None) for limit in limits)
        if pattern or random.random() < 0.3:
            return random.choice(self.words.peers)
        return random.choice(
            ["", "n", "int4", "\x1b[2J", "/ip4/127.0.0.1/tcp/1", "/x/p2p/" + self.words.peers[0], "\u202e"]
        )[: int(min(most, 400))]


def _lengths(limits: list[Any]) -> tuple[int, int]:
    least = max((limit.min_length for limit in limits if isinstance(limit, MinLen)), default=0)
    return least, min((limit.max_length for limit in limits if isinstance(limit, MaxLen)), default=1 << 20)


def _bounds(limits: list[Any], widest: float) -> tuple[float, float]:
    low, high = -widest, widest
    for limit in limits:
        if isinstance(limit, Ge | Gt):
            low = max(low, float(str(limit.ge)) if isinstance(limit, Ge) else math.nextafter(float(str(limit.gt)), math.inf))
        if isinstance(limit, Le | Lt):
            high = min(high, float(str(limit.le)) if isinstance(limit, Le) else float(str(limit.lt)) - 1)
    return low, high
