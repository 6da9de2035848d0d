"""Masks: which members of a record have their part in a chunk, one bit a member."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.wire.canonical import Malformed


def mask_of(indices: Sequence[int], members: int) -> bytes:
    """The mask with these members in: bit i of byte i // 8."""
    bits = sum(1 << index for index in indices)
    return bits.to_bytes((members + 7) // 8, "little")


def members_in(mask: bytes, members: int) -> list[int]:
    """Indices of the members in a mask (bit i of byte i // 8); raises `Malformed` for an empty or ill-sized one."""
    bits = int.from_bytes(mask, "little")
    if len(mask) != (members + 7) // 8 or bits == 0 or bits >> members:
        raise Malformed("a chunk mask that does not fit the members")
    return [index for index in range(members) if bits >> index & 1]
