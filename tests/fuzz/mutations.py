"""Changed copies of valid messages: at random in their bytes, or in what they say."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import msgpack

from protocol.wire import canonical
from protocol.wire.canonical import Malformed

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**53, 2**53 + 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 1e308, float("inf"), float("nan")),
    *("", "x" * 300, "\x00", "é", b"", b"\xff" * 31, b"\xff" * 33, bytes(65)),
    *([], {}, [[]], {"": {}}, [None] * 300, [{}] * 20),
]
BOMBS: list[bytes] = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\x91" * 3000,
    b"\xdd\x00\x0f\xff\xff" * 1000,
    b"\x81\xa0" * 1000,
    b"\xff" * 64,
    b"[" * 4000,
]
"""Few bytes that announce much."""


def mutated(data: bytes, random: Random) -> bytes:
    """`data` with one to four changes."""
    for _ in range(random.randint(1, 4)):
        data = random.choice(_WAYS)(data, random)
    return data[: 1 << 17]


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def _set(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    place = random.randrange(len(data))
    value = random.choice((0, 1, 0x7F, 0x80, 0x90, 0xC1, 0xFF, random.randrange(256)))
    return data[:place] + bytes([value]) + data[place + 1 :]


def _cut(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    return data[:start] + data[start + random.choice((1, 2, 8, 64, len(data))) :]


def _double(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    return data[:start] + data[start : start + random.choice((1, 4, 32, 300))] * 2 + data[start:]


def _insert(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    piece = random.choice((random.randbytes(random.randint(1, 8)), struct.pack(">I", random.getrandbits(32)), *BOMBS))
    return data[:start] + piece + data[start:]


def _say_otherwise(data: bytes, random: Random) -> bytes:
    """Another value somewhere in the message, in canonical form where it has one."""
    try:
        value = canonical.decode(data, max_bytes=1 << 20)
    except Malformed:
        return _flip(data, random)
    changed = _changed(value, random)
    try:
        return canonical.encode(changed)
    except (ValueError, TypeError):
        packed: bytes = msgpack.packb(changed)
        return packed


def _changed(value: Any, random: Random) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(sorted(value))
        if random.random() < 0.1:
            return {other: value[other] for other in value if other != key}
        return {**value, key: _changed(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        if random.random() < 0.3:
            return value * random.choice((0, 2, 40))
        return [*value[:place], _changed(value[place], random), *value[place + 1 :]]
    if isinstance(value, int) and random.random() < 0.5:
        return max(-(2**63), min(2**64 - 1, value + random.choice((-1, 1, 255, 2**31))))
    return random.choice(ODD)


_WAYS = (_flip, _set, _cut, _double, _insert, _say_otherwise, _say_otherwise, _say_otherwise)
