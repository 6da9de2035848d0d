"""The bytes of a batch: the rollouts that a peer hands in at once, one after the other.

head     how many rollouts (4 bytes, unsigned, big-endian)
each     its bytes (4), then `Rollout.encode`
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.rl.rollout import MAX_BYTES, Rollout

MAX_ROLLOUTS = 1 << 16
_LENGTH = 4


def encode_batch(rollouts: Sequence[Rollout]) -> bytes:
    """The bytes of these rollouts, at most `MAX_ROLLOUTS`."""
    assert 0 < len(rollouts) <= MAX_ROLLOUTS
    encoded = [rollout.encode() for rollout in rollouts]
    return len(encoded).to_bytes(_LENGTH, "big") + b"".join(len(each).to_bytes(_LENGTH, "big") + each for each in encoded)


def decode_batch(data: bytes) -> list[Rollout]:
    """The rollouts that `data` encodes, at least one; raises ValueError for all other bytes than `encode_batch` gives."""
    count = _number(data, 0)
    if not 0 < count <= MAX_ROLLOUTS:
        raise ValueError(f"a batch has 1 to {MAX_ROLLOUTS} rollouts, not {count}")
    rollouts: list[Rollout] = []
    at = _LENGTH
    for _ in range(count):
        size = _number(data, at)
        at += _LENGTH
        if size > MAX_BYTES or at + size > len(data):
            raise ValueError(f"rollout {len(rollouts)} of a batch has {size} bytes, more than there are")
        rollouts.append(Rollout.decode(data[at : at + size]))
        at += size
    if at != len(data):
        raise ValueError(f"a batch has {len(data) - at} bytes after its last rollout")
    return rollouts


def _number(data: bytes, at: int) -> int:
    if at + _LENGTH > len(data):
        raise ValueError("a batch ends before its rollouts do")
    return int.from_bytes(data[at : at + _LENGTH], "big")
