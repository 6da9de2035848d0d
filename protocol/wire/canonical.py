"""Canonical msgpack: exactly one byte string for each value.

Signed and hashed values must have exactly one encoding.  The encoding is msgpack with strings in sorted order as map keys,
the shortest form of every number, and no extension types.  `decode` refuses all other encodings, so a signature or hash of
the bytes is a signature or hash of the value.
"""

from __future__ import annotations

from typing import Any

import msgpack

MAX_DEPTH = 16
"""Most levels of nesting in a message; our deepest message has 5."""
MAX_VALUES = 1 << 16
"""Most values in one message, including keys: one byte can become an empty map in memory.  Our largest message has 45 000
values."""
_COUNTED_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length field, by the head of a byte string or text."""
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes of the length field, and number of values in one item, by the head of a list or map."""
_NUMBER_BYTES = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}


def _fixed_size(head: int) -> int:
    """Return the bytes of a value that begins with `head`, including the head; 0 if the head does not determine it."""
    if head < 0x80 or head >= 0xE0 or head in (0xC0, 0xC2, 0xC3):
        return 1
    return 1 + (head & 31) if 0xA0 <= head < 0xC0 else _NUMBER_BYTES.get(head, 0)


_FIXED_SIZES = tuple(_fixed_size(head) for head in range(256))


class Malformed(ValueError):
    """The error for bytes from outside that break a rule of the protocol.  The text is one sentence for a person."""


def encode(value: Any) -> bytes:
    """Return the canonical bytes of `value` (None, bool, int, float, str, bytes, sequences and str-keyed maps)."""
    return encode_sorted(_sorted(value, 0))


def encode_sorted(value: Any) -> bytes:
    """Encode a value whose maps already have str keys in sorted order, as the caller must ensure."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def decode(data: bytes | memoryview, *, max_bytes: int, max_values: int = MAX_VALUES) -> Any:
    """Return the value in `data`; raise `Malformed` if it is too long, not msgpack, or not in canonical form."""
    raw, value = read(data, max_bytes=max_bytes, max_values=max_values)
    try:
        canonical = encode(value) == raw
    except (ValueError, TypeError, RecursionError, UnicodeError, OverflowError) as error:
        raise Malformed(f"not a message: {type(error).__name__}") from error
    if not canonical:
        raise Malformed("message is not in canonical form")
    return value


def read(data: bytes | memoryview, *, max_bytes: int, max_values: int = MAX_VALUES) -> tuple[bytes, Any]:
    """Return `data` and the value in it, canonical or not, for callers that encode the value again and compare.

    Raises `Malformed` if `data` is too long, is not msgpack, or has too many values.
    """
    if len(data) > max_bytes:
        raise Malformed(f"message of {len(data)} bytes is over the limit of {max_bytes}")
    raw = bytes(data)
    try:
        _measure(raw, max_values)
        return raw, msgpack.unpackb(raw, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, UnicodeError, OverflowError, msgpack.UnpackException) as error:
        raise Malformed(f"not a message: {type(error).__name__}") from error


def place_of(raw: bytes, key: str) -> slice | None:
    """Return the place of the value of `key` in the bytes of a map; None if there is no such value.

    Nothing else is decoded.  `raw` must be canonical bytes of our own.
    """
    reader = msgpack.Unpacker(max_buffer_size=len(raw))
    reader.feed(raw)
    try:
        for _ in range(reader.read_map_header()):
            found, start = reader.unpack(), reader.tell()
            reader.skip()
            if found == key:
                return slice(start, reader.tell())
    except (ValueError, TypeError, UnicodeError, msgpack.UnpackException):
        return None
    return None


def _measure(raw: bytes, max_values: int) -> None:
    """Scan the heads of all values, before any is allocated; raise ValueError for too many values or too deep nesting."""
    sizes, end, room = _FIXED_SIZES, len(raw), max_values
    outer: list[int] = []
    left, at = 1, 0
    while True:
        while left:
            if at >= end:
                raise ValueError("the end")
            left -= 1
            head = raw[at]
            if size := sizes[head]:
                at += size
                continue
            if head == 0xC4 and at + 1 < end:
                at += 2 + raw[at + 1]
                continue
            width, length, children = _long_value(raw, at) if head >= 0xA0 else (1, 0, (head & 15) << (head < 0x90))
            at += width + length
            if children:
                room -= children
                outer.append(left)
                left = children
                if room < 0 or len(outer) > MAX_DEPTH + 2:
                    raise ValueError("too many values")
        if not outer:
            return
        left = outer.pop()


def _long_value(raw: bytes, at: int) -> tuple[int, int, int]:
    """Measure the value at `at`, which states its length: (bytes of its head, bytes after it, values in it).

    Raises ValueError if no such value begins there.
    """
    head = raw[at]
    if head in _COUNTED_BYTES:
        width = _COUNTED_BYTES[head]
        return 1 + width, int.from_bytes(raw[at + 1 : at + 1 + width], "big"), 0
    if head in _CONTAINERS:
        width, each = _CONTAINERS[head]
        return 1 + width, 0, int.from_bytes(raw[at + 1 : at + 1 + width], "big") * each
    raise ValueError("a type that the protocol does not use")


def _sorted(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("map keys must be strings")
        return {key: _sorted(value[key], depth + 1) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_sorted(item, depth + 1) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical form")
