"""Canonical msgpack: one byte string for one value.

What peers sign and hash must have exactly one encoding.  Ours is msgpack with map keys that are strings in sorted
order, the shortest form of every number and no extension types.  `decode` refuses anything else, so a signature or a
hash over the bytes is a signature or a hash over the value.
"""

from __future__ import annotations

from typing import Any

import msgpack

MAX_DEPTH = 16
"""Nesting allowed in a message; our deepest message has 5 levels."""
MAX_VALUES = 1 << 16
"""Values in one message, keys included: a byte can be a whole empty map in memory.  Our largest message has 45 000."""
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Of bytes, strings, lists and maps that say their length in so many bytes."""
_PLAIN_BYTES = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""Of numbers, after their first byte."""


class Malformed(ValueError):
    """Bytes from outside that do not say what they should.  The text is one sentence for a person."""


def encode(value: Any) -> bytes:
    """The canonical bytes of `value` (None, bool, int, float, str, bytes, sequences and str-keyed maps)."""
    packed: bytes = msgpack.packb(_sorted(value, 0), use_bin_type=True)
    return packed


def decode(data: bytes | memoryview, *, max_bytes: int) -> Any:
    """The value in `data`; raises `Malformed` when it is too long, not msgpack, or not in canonical form."""
    if len(data) > max_bytes:
        raise Malformed(f"message of {len(data)} bytes is over the limit of {max_bytes}")
    raw = bytes(data)
    try:
        _measure(raw)
        value = msgpack.unpackb(raw, raw=False, strict_map_key=True)
        canonical = encode(value) == raw
    except (ValueError, TypeError, RecursionError, UnicodeError, OverflowError, msgpack.UnpackException) as error:
        raise Malformed(f"not a message: {type(error).__name__}") from error
    if not canonical:
        raise Malformed("message is not in canonical form")
    return value


def _measure(raw: bytes) -> None:
    """Walk over the heads of all values; raises ValueError for too many or too deep ones, before room is made for any."""
    left, at, values = [1], 0, 0
    while left:
        if not left[-1]:
            left.pop()
            continue
        left[-1] -= 1
        head = raw[at] if at < len(raw) else 0xC1
        at += 1
        children = -1
        if 0x80 <= head < 0xA0:
            children = (head & 15) * (2 if head < 0x90 else 1)
        elif 0xA0 <= head < 0xC0:
            at += head & 31
        elif head in _LENGTH_BYTES:
            width = _LENGTH_BYTES[head]
            length = int.from_bytes(raw[at : at + width], "big")
            at += width
            if head < 0xDC:
                at += length
            else:
                children = length * (2 if head >= 0xDE else 1)
        elif head in _PLAIN_BYTES:
            at += _PLAIN_BYTES[head]
        elif head == 0xC1 or 0xC7 <= head <= 0xD8:
            raise ValueError("the end, or a type that we do not use")
        if children >= 0:
            values += children
            left.append(children)
            if values > MAX_VALUES or len(left) > MAX_DEPTH + 2:
                raise ValueError("too many values")


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
