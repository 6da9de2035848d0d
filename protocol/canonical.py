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
        value = msgpack.unpackb(raw, raw=False, strict_map_key=True)
        canonical = encode(value) == raw
    except (ValueError, TypeError, RecursionError, UnicodeError, OverflowError, msgpack.UnpackException) as error:
        raise Malformed(f"not a message: {type(error).__name__}") from error
    if not canonical:
        raise Malformed("message is not in canonical form")
    return value


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
