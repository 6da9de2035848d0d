"""Whose averages are late in an exchange: later than an honest owner's can be, beside those of other owners."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from protocol.exchange.delays import SPREAD
from protocol.wire.identity import PeerId


class Ownership:
    """Which member the plan gave which chunks.  owners: of each.  members: how many the plan has.  begun: trio time.

    Others have had the time to average when all averages of more than half of those of the jury are here that own chunks,
    these own more than half of what the jury owns, and `SPREAD` of the time that this took has passed since.  An honest
    owner is among them, however early liars sign: these are fewer, and own less than half
    (`protocol.consensus.planning`).  Who owns nothing, or little, makes nobody look late, and an owner of more than those
    have gets so much more time as it has more to send.  (That all our own averages are made tells nothing: those of others
    may still be on their lines.)

    An honest owner averages when it has all parts, or has waited for the late ones as long as it may
    (`ExchangeMachine.wait_s`), for the fair time at least.  So where the lines of honest members differ by no more than
    that, another honest owner has their parts by then, too, and only waits for late ones: for a time that is bounded.
    """

    def __init__(self, owners: Sequence[PeerId], members: int, begun: float) -> None:
        self._all, self._members, self._begun = len(owners), members, begun
        self._chunks: dict[PeerId, list[int]] = {}
        for chunk, peer in enumerate(owners):
            self._chunks.setdefault(peer, []).append(chunk)
        self._reference: tuple[float, float] | None = None
        """When (s) the averages of more than half were here, and the mean load of their owners."""

    def late(
        self, here: Collection[int], jury: Collection[PeerId], owner: Callable[[int], PeerId], now: float
    ) -> set[PeerId]:
        """Who is late.  here: chunks whose averages are.  owner: of a chunk now; a successor is not late."""
        missing = {peer: [chunk for chunk in chunks if chunk not in here] for peer, chunks in self._chunks.items()}
        if self._reference is None:
            self._reference = self._refer(missing, jury, now)
        return {
            peer
            for peer, chunks in missing.items()
            if self._is_due(peer, now) and any(owner(chunk) == peer for chunk in chunks)
        }

    def _refer(
        self, missing: Mapping[PeerId, Sequence[int]], jury: Collection[PeerId], now: float
    ) -> tuple[float, float] | None:
        owned = {peer: len(self._chunks[peer]) for peer in jury if peer in self._chunks}
        done = [chunks for peer, chunks in owned.items() if not missing[peer]]
        if 2 * len(done) <= len(owned) or 2 * sum(done) <= sum(owned.values()):
            return None
        return now - self._begun, sum(map(self._load, done)) / len(done)

    def _is_due(self, peer: PeerId, now: float) -> bool:
        if self._reference is None:
            return False
        took_s, load = self._reference
        most = max(load, self._load(len(self._chunks[peer])))  # who owns less may have a slower line
        return (now - self._begun) * load >= (1 + SPREAD) * took_s * most

    def _load(self, chunks: int) -> int:
        """What an owner of so many sends, and receives, in chunks (`protocol.exchange.assignment`)."""
        return self._all + (self._members - 2) * chunks
