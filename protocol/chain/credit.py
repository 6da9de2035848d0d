"""Credit of each peer on the record chain: tokens trained, and tokens of its rollouts that members learned from.

Pure: every peer that holds the chain computes the same credit.  Both numbers are signed by members of the records.  If
several members name a batch, the largest token count is used, so a lying member cannot reduce the credit that other members
claim.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from protocol.events.events import Event, RolloutsCounted
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Record

YOUNG_ROUNDS = 17
"""Most rounds in which an honest trainer may learn from one batch: `max_async` + 1 at most."""
MOST_TOLD = 64
"""Most rollout peers named in one event."""

Name = tuple[PeerId, Hash]
"""Name of a batch: its author and its root."""


@dataclass(frozen=True)
class Credit:
    """Credit of one peer on the chain.

    rounds, tokens: rounds and tokens as a member; tokens are weighted by the share of the peer's chunks that were averaged.
    batches, accepted_tokens: batches of its rollouts that members learned from, and their tokens; each batch counts once.
    """

    rounds: int = 0
    tokens: int = 0
    batches: int = 0
    accepted_tokens: int = 0


class Ledger:
    """Credit of every peer over the records added so far; every peer that holds the chain computes the same."""

    def __init__(self) -> None:
        self.credits: dict[PeerId, Credit] = {}
        self._young: deque[Mapping[Name, int]] = deque(maxlen=YOUNG_ROUNDS)

    def add(self, commit: Commit) -> None:
        """Count the next record."""
        credits = self.credits
        for peer, given in trained(commit):
            old = credits.get(peer, Credit())
            credits[peer] = Credit(old.rounds + given.rounds, old.tokens + given.tokens, old.batches, old.accepted_tokens)
        named = named_in([commit.record])
        for (author, root), tokens in named.items():
            said = [used[author, root] for used in self._young if (author, root) in used]
            old, more = credits.get(author, Credit()), max(0, tokens - max(said, default=0))
            credits[author] = Credit(old.rounds, old.tokens, old.batches + (not said), old.accepted_tokens + more)
        self._young.append(named)

    def to_fields(self) -> dict[str, Any]:
        """Return the ledger as plain values, for a file from which counting continues."""
        young = [[[author, root.hex(), tokens] for (author, root), tokens in used.items()] for used in self._young]
        return {"credits": {peer: list(vars(each).values()) for peer, each in self.credits.items()}, "young": young}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the ledger in such values.  Raises ValueError, TypeError, AttributeError or KeyError if it is damaged."""
        found = cls()
        found.credits = {PeerId(peer): Credit(*map(int, each)) for peer, each in fields["credits"].items()}
        for used in fields["young"]:
            found._young.append({(PeerId(by), Hash(bytes.fromhex(root))): int(tokens) for by, root, tokens in used})
        return found


def learned_by(records: Iterable[Record], member: PeerId) -> frozenset[Name]:
    """Return the batches, by author and root, that `member` learned from according to these records."""
    named = [each.rollouts for record in records for each in record.members if each.peer == member]
    return frozenset((batch.author, batch.root) for learned in named if learned is not None for batch in learned.batches)


def named_in(records: Iterable[Record]) -> Mapping[Name, int]:
    """Return the batches that members of these records learned from, each with the largest token count claimed."""
    named: dict[Name, int] = {}
    for record in records:
        for learned in (member.rollouts for member in record.members):
            for author, root, tokens in learned.batches if learned is not None else ():
                named[author, root] = max(tokens, named.get((author, root), 0))
    return named


def counted(record: Record, me: PeerId, before: Mapping[Name, int], rollouts_per_batch: int) -> list[Event]:
    """Return the event that names the authors of a record's rollouts; no event if the record has none.

    before: batches that earlier records named, with their tokens.  Each token is credited, and so reported, once.
    """
    named = named_in([record])
    if not named:
        return []
    used = {batch: tokens - before.get(batch, 0) for batch, tokens in named.items() if tokens > before.get(batch, -1)}
    new = used.keys() - before.keys()
    of_author: Counter[str] = Counter()
    for (author, _), tokens in used.items():
        of_author[author] += tokens
    told = {author: of_author[author] for author in sorted(of_author, key=lambda peer: (peer != me, -of_author[peer], peer))}
    shown = dict([*told.items()][:MOST_TOLD])
    mine, others = sorted(root.hex() for author, root in new if author == me), len(told) - len(shown)
    rollouts = len(new) * rollouts_per_batch
    return [RolloutsCounted(record.round, reward_of(record), len(new), sum(used.values()), shown, others, mine, rollouts)]


def reward_of(record: Record) -> float | None:
    """Return the mean of the rewards that members claim, weighted by their batches; None if no member claims one."""
    said = [
        (learned.reward, sum(1 for _ in learned.batches))
        for learned in (member.rollouts for member in record.members)
        if learned is not None and learned.reward is not None
    ]
    return sum(reward * batches for reward, batches in said) / sum(batches for _, batches in said) if said else None


def trained(commit: Commit) -> Iterable[tuple[PeerId, Credit]]:
    """Yield the credit of each member for training in this round."""
    for member, chunks in zip(commit.record.members, commit.averaged(), strict=True):
        yield PeerId(member.peer), Credit(int(chunks > 0), member.tokens * chunks // len(commit.index))
