"""What a contribution was made of in a run with rollouts: the batches, whose they are and what they hold, and their reward.

READY names them, and so the plan and the record: who holds the chain knows whose rollouts were learned from.  A batch takes
`ENTRY_BYTES`, not a map of its own, for a record has up to `MAX_USED_BY_ALL` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

from pydantic import Field

from protocol.wire.body import MAX_NUMBER, Body, Number, PeerField
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, Hash, tree_root
from protocol.wire.identity import PeerId

MAX_USED = 512
"""Batches that one member learns from in a round."""
MAX_USED_BY_ALL = 2048
"""Batches that all members of a round learn from."""
TOKENS_BYTES = 5
"""Of a batch's tokens, as a number with the greatest byte first."""
ENTRY_BYTES = HASH_BYTES + TOKENS_BYTES


class UsedBatch(NamedTuple):
    """A batch that was learned from.  tokens: that the model made, as its maker's statement has them."""

    author: PeerId
    root: Hash
    tokens: int


class UsedOfAuthor(Body):
    """Batches of one rollout peer.  batches: of each its root and its tokens, `ENTRY_BYTES` a batch, sorted."""

    author: PeerField
    batches: Annotated[bytes, Field(min_length=ENTRY_BYTES, max_length=ENTRY_BYTES * MAX_USED)]


class Learned(Body):
    """used: by author, sorted.  reward: mean of the rollouts as the member that learned from them says; None where it
    does not."""

    used: Annotated[list[UsedOfAuthor], Field(min_length=1, max_length=MAX_USED)]
    reward: Number | None

    @property
    def batches(self) -> Iterator[UsedBatch]:
        """All of them."""
        for each in self.used:
            for at in range(0, len(each.batches), ENTRY_BYTES):
                entry = each.batches[at : at + ENTRY_BYTES]
                tokens = int.from_bytes(entry[HASH_BYTES:], "big")
                yield UsedBatch(PeerId(each.author), Hash(entry[:HASH_BYTES]), tokens)

    @property
    def tokens(self) -> int:
        """Tokens of all the batches: a member that learned from them can claim no more, and at least one."""
        return max(1, sum(batch.tokens for batch in self.batches))

    @property
    def root(self) -> Hash:
        """Over the sorted names of the batches."""
        return tree_root(sorted(batch.root for batch in self.batches))


LaterLearned = Annotated[Learned | None, Field(exclude_if=lambda value: value is None)]
"""As `protocol.wire.body.LaterHash`: not written where there is none."""


def learned_from(batches: Iterable[UsedBatch], reward: float | None) -> Learned:
    """What a contribution of these batches, at least one, says of them."""
    entries: dict[PeerId, list[bytes]] = {}
    for batch in batches:
        entries.setdefault(batch.author, []).append(batch.root + batch.tokens.to_bytes(TOKENS_BYTES, "big"))
    used = [UsedOfAuthor(author=author, batches=b"".join(sorted(entries[author]))) for author in sorted(entries)]
    is_said = reward is not None and abs(reward) <= MAX_NUMBER  # which NaN is not
    return Learned(used=used, reward=reward if is_said else None)


def check_learned(learned: Learned, most_batches: int, most_tokens: int) -> None:
    """Whether a member can have learned from this; raises `Malformed`.  most_tokens: of a batch."""
    if any(len(each.batches) % ENTRY_BYTES for each in learned.used):
        raise Malformed("batches of rollouts that end in the middle of one")
    named = [(batch.author, batch.root) for batch in learned.batches]
    if named != sorted(set(named)) or len({each.author for each in learned.used}) != len(learned.used):
        raise Malformed("batches of rollouts that are named twice, or not in order")
    if len(named) > most_batches:
        raise Malformed(f"{len(named)} batches of rollouts, and a round has {most_batches} of a member at most")
    if any(batch.tokens > most_tokens for batch in learned.batches):
        raise Malformed("a batch of rollouts with more tokens than the run allows")
